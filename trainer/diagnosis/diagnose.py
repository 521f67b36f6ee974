"""Finds which of several signs shows the first failure, and describes it in a few lines.

found = diagnose(signs)
for line in in_words(found, job="digits"): print(line)
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from trainer.config.printable import printable
from trainer.diagnosis.causes import Cause, find
from trainer.diagnosis.errors import errors, is_raised, place, plain, until, wraps
from trainer.diagnosis.signs import Sign, cut

_LONGEST = 240  # characters of a line of evidence
_MOST_AFTER = 3  # lines of what followed
_LONGEST_DETAIL = 200  # newest lines of a sign's detail that are read

# A rank that another rank names as missing.
_NAMED = re.compile(
    r"(?:not in the collective: |no sign of life from )(rank \d+)"
    r"|([Rr]ank \d+)[^,;\]]*? (?:did not (?:come|join)|failed to pass)"
)
# Causes that say little: another line is better evidence. A lower number says more.
_VAGUE = {"crash": 1, "killed": 2, "raised": 4}
_SAYS_WHY, _FOLLOWS, _SAYS_NOTHING = 0, 3, 5
_LEFT = "left early"  # only the launcher sees it; the other ranks see a lost peer, or hang
_GONE = re.compile(r", after (rank \d+) had ended with 0")
_NO_REASON = re.compile(
    r"ended\b|raised, and was ended|Signal \d|exit \d"
)  # these say only how it ended
_GIVES_REASON = re.compile(r"own code 1\b")
THREAD = re.compile(r"Exception in thread ")
_HEAD = re.compile(r"[ \t^~]|Traceback |\W*$|.*(Warning|WARN)")  # lines that give no reason


@dataclass(frozen=True)
class Diagnosis:
    """What failed first, its cause, the line that shows it, and what came after."""

    sign: Sign
    cause: Cause
    evidence: str
    after: tuple[tuple[Sign, Cause], ...] = ()


def diagnose(signs: Iterable[Sign]) -> Diagnosis | None:
    """Return what failed first; None when no sign is one of a failure.

    Results of other failures come last, however early they were seen: a rank that notices a lost peer
    may write so before the peer's own launcher does. Before them come failures that a launcher calls
    later ones, which is a guess if ranks end at the same time. Among equals the earliest is first.
    """
    known = [
        (sign, cause, evidence)
        for sign in dict.fromkeys(map(_cut, signs))
        for cause, evidence in [_cause_of(sign)]
        if cause is not None
    ]
    if not known:
        return None
    known.sort(key=lambda one: (one[1].follows, one[0].follows, _time(one[0])))
    (sign, cause, evidence), *rest = known
    return Diagnosis(sign, cause, evidence, tuple((one, why) for one, why, _ in rest))


def _cut(sign: Sign) -> Sign:
    detail = tuple(map(cut, sign.detail[-_LONGEST_DETAIL:]))
    return replace(sign, text=cut(sign.text), detail=detail)


def _time(sign: Sign) -> float:
    return float("inf") if sign.time is None else sign.time


def _cause_of(sign: Sign) -> tuple[Cause | None, str]:
    """Return a sign's cause and the evidence: its text, or an error in its detail.

    If the rank wrote an error, its other lines are ignored: a warning is not a cause.
    """
    cause = find(sign.text)
    lines = plain(sign.detail)
    # A thread that died explains a hang: the rank itself went on.
    unexplained = ["raised", "crash", "no script", _LEFT] + ["hang"] * any(map(THREAD.match, lines))
    gone = _GONE.search(sign.text)
    is_of_gone = gone and _is_of_others(find(_GONE.sub("", sign.text)))
    if cause is not None and (is_of_gone or cause.name not in unexplained):
        return cause, sign.text
    groups = errors(lines)
    messages = [text for group in groups for text in group]
    best = _best(groups)
    if not messages or wraps(messages[0]):
        # A command's own lines say why it failed; a traceback's frames do not.
        said = [one for one in reversed(lines) if not _HEAD.match(one)]
        known = [(one, text) for text in said if (one := find(text)) is not None]
        best = min([*filter(None, [best]), *known], key=_vague, default=None)
        messages += said
    if best and best[0].name == "rendezvous":  # torch only warns about an unknown host name
        known = [(one, text) for text in lines if "gai error" in text and (one := find(text))]
        best = next(iter(known), best)
    # However the rank ended, even by SIGABRT: the reason was that another rank had left.
    if gone and best and (best[0].follows or best[0].name == "hang"):
        return find(gone[0]), sign.text
    if best and best[0].name not in _VAGUE:
        # Of an error with several lines, take the line that names a rank.
        same = [text for text in messages if find(text) is best[0] and _NAMED.search(text)]
        return best[0], next(iter(same), best[1])
    if cause is None or not messages or not (cause.name == "hang" or _NO_REASON.match(sign.text)):
        return cause, sign.text
    # gloo may abort a rank that raised an error, while Python shuts down.
    if "SIGABRT" in sign.text and best is None and is_raised(messages[0]):
        best = (find("raised, and was ended") or cause, messages[0])
    is_after = best is not None and best[0].name == "raised" and "SIGABRT" in sign.text
    # With code 1 (sys.exit(text), shells) the last line is the reason; otherwise it may be anything.
    is_quiet = best is None and not groups and not _GIVES_REASON.search(sign.text)
    if is_quiet or (cause.name == "crash" and not is_after):
        return cause, f"{sign.text}: {messages[0]}"
    shown = best or (cause, messages[0])
    return shown[0], next((_chain(group) for group in groups if shown[1] in group), shown[1])


def _best(groups: Sequence[Sequence[str]]) -> tuple[Cause, str] | None:
    """Return the cause that the newest errors with a reason show, and the error that shows it.

    An earlier error is not the reason, because the program went on after it.
    """
    best: tuple[Cause | None, str] = (None, "")
    for group in groups:
        found = [(find(text), text) for text in group]
        if _is_of_others(found[0][0]):  # raised while the rank handled an earlier error
            found = [one for one in found if not _is_of_others(one[0])] or found
        best = min([best, *found], key=_vague)
        if _vague(best) in (_SAYS_WHY, _VAGUE["raised"]):
            break
    return (best[0], best[1]) if best[0] else None


def _is_of_others(cause: Cause | None) -> bool:
    return cause is not None and (cause.follows or cause.name == "hang")


def _vague(found: tuple[Cause | None, str]) -> int:
    """Return how vague a cause is: of several, the one with the lowest number is shown."""
    cause, text = found
    if cause is None or (cause.name == "raised" and wraps(text)):
        return _VAGUE["raised"] if is_raised(text) else _SAYS_NOTHING
    return _VAGUE.get(cause.name, _FOLLOWS if cause.follows else _SAYS_WHY)


def _chain(group: Sequence[str]) -> str:
    """Return the first and the last of a chain of errors if that is short, else the last."""
    both = f"{group[-1]}, then {group[0]}"
    return both if len(group) > 1 and len(both) <= _LONGEST else group[0]


def in_words(found: Diagnosis, *, job: str, silent: Sequence[str] = ()) -> list[str]:
    """Return a diagnosis in lines: what failed first, why, the evidence, what to do, what followed.

    `silent`: the ranks without an error; if the cause is a hang, the other ranks waited for these.
    """
    sign, cause = found.sign, found.cause
    named = (_GONE if cause.name == _LEFT else _NAMED).search(found.evidence)
    missing = ", ".join(silent) if cause.name == "hang" else ""
    who = next(filter(None, named.groups())).lower() if named else missing or sign.who
    when = f", {datetime.fromtimestamp(sign.time, UTC):%Y-%m-%d %H:%M:%S} UTC" if sign.time else ""
    lines = [
        f"first     {who or 'unknown'}{when}",
        f"cause     {cause.meaning} ({cause.name})",
        f"evidence  {_shown(found)} [{sign.source}]",
    ]
    if at := place(until(plain(sign.detail), found.evidence)):
        lines.append(f"at        {at}")
    lines.append(f"do        {cause.do.replace('{job}', job)}")
    lines += [f"then      {text}" for text in _after(found.after)]
    return [printable(line) for line in lines]


def _shown(found: Diagnosis) -> str:
    """Return the evidence, cut so that it contains the match of the cause's pattern."""
    known = found.cause.pattern.search(found.evidence)
    if known is None or known.end() <= _LONGEST:
        return found.evidence[:_LONGEST]
    return f"... {found.evidence[known.start() :][:_LONGEST]}"


def _after(after: Sequence[tuple[Sign, Cause]]) -> list[str]:
    """Return what followed, one line for each cause."""
    by_cause: dict[str, list[str]] = {}
    for sign, cause in after:
        whose = by_cause.setdefault(cause.name, [])
        if not any(f"{one} ".startswith(f"{sign.who} ") for one in whose):
            # The same rank may be there without its host.
            whose[:] = [one for one in whose if not sign.who.startswith(f"{one} ")] + [sign.who]
    lines = []
    for name, whose in by_cause.items():
        shown = ", ".join(filter(None, whose[:4])) + (
            f" and {len(whose) - 4} more" if len(whose) > 4 else ""
        )
        lines.append(f"{name}: {shown}" if shown else name)
    return lines[:_MOST_AFTER]
