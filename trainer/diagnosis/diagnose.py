"""Chooses among signs what failed first, and says it in at most ten lines.

found = diagnose(signs)
for line in in_words(found, job="digits"): print(line)
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from trainer.config.printable import printable
from trainer.diagnosis.causes import Cause, find
from trainer.diagnosis.signs import Sign, cut

_LONGEST = 240  # characters of a line of evidence
_MOST_AFTER = 3  # lines of what followed
_LONGEST_DETAIL = 200  # lines that came with a sign, the newest

# A rank that another names as the one that is missing.
_NAMED = re.compile(
    r"(?:not in the collective: |no sign of life from )(rank \d+)"
    r"|([Rr]ank \d+)[^,;\]]*? (?:did not come|failed to pass)"
)
# Causes for which another line is the better evidence; of two the one with the lower number.
_VAGUE = {"killed": 1, "raised": 2}
_LEFT = "left early"  # only the launcher sees it: the other ranks see a lost peer, or hang
_GONE = re.compile(r", after (rank \d+) had ended with 0")
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+), in (.+)')
_HEAD = re.compile(r"[ \t^~]|Traceback ")
_NOT_OWN = re.compile(
    r"site-packages|/lib/python|<frozen|/trainer/(engine|strategies|launcher)/|__main__"
)


@dataclass(frozen=True)
class Diagnosis:
    """What failed first, its cause, the line that shows it, and what came after."""

    sign: Sign
    cause: Cause
    evidence: str
    after: tuple[tuple[Sign, Cause], ...] = ()


def diagnose(signs: Iterable[Sign]) -> Diagnosis | None:
    """Return what failed first; None when no sign is one of a failure.

    What follows from another failure comes last, however early it was seen: a rank that notices a
    lost peer may write so before the peer's own launcher does. Then comes what its launcher says was
    not the first, which is a guess where ranks end at once; then the earliest is first.
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
    """Return a sign's cause, and the line that shows it: its text, or a line that came with it."""
    cause = find(sign.text)
    if cause is not None and cause.name not in ("raised", _LEFT):
        return cause, sign.text
    # The newest lines first, without a traceback's head, its frames and a program's own code.
    lines = [line for line in reversed(_plain(sign)) if line.strip() and not _HEAD.match(line)]
    found = [(one, line) for line in lines if (one := find(line)) is not None]
    best = min(found, key=lambda one: _VAGUE.get(one[0].name, 0), default=None)
    if cause and cause.name == _LEFT and best and (best[0].follows or best[0].name == "hang"):
        return cause, sign.text
    if best:
        # Of an error in several lines the one that names a rank.
        same = [one for one in found if one[0] is best[0]]
        return next((one for one in same if _NAMED.search(one[1])), best)
    return cause, lines[0] if lines and cause is not None else sign.text


def _plain(sign: Sign) -> list[str]:
    """Return the lines of a sign without the rank that torch.distributed puts before a traceback's."""
    return [re.sub(r"^\[rank\d+\]: ?", "", line) for line in sign.detail]


def in_words(found: Diagnosis, *, job: str) -> list[str]:
    """Return a diagnosis in lines: what failed first, why, the evidence, what to do, what followed."""
    sign, cause = found.sign, found.cause
    named = (_GONE if cause.name == _LEFT else _NAMED).search(found.evidence)
    who = next(filter(None, named.groups())).lower() if named else sign.who
    at = f", {datetime.fromtimestamp(sign.time, UTC):%Y-%m-%d %H:%M:%S} UTC" if sign.time else ""
    lines = [
        f"first     {who or 'unknown'}{at}",
        f"cause     {cause.meaning} ({cause.name})",
        f"evidence  {found.evidence[:_LONGEST]} [{sign.source}]",
    ]
    if place := _place(_plain(sign)):
        lines.append(f"at        {place}")
    lines.append(f"do        {cause.do.replace('{job}', job)}")
    lines += [f"then      {text}" for text in _after(found.after)]
    return [printable(line) for line in lines]


def _place(detail: Sequence[str]) -> str:
    """Return the innermost frame of a traceback that is the user's own."""
    frames = [found for line in detail if (found := _FRAME.match(line))]
    own = [frame for frame in frames if not _NOT_OWN.search(frame[1])]
    return f"{own[-1][1]}, line {own[-1][2]}, in {own[-1][3]}" if own else ""


def _after(after: Sequence[tuple[Sign, Cause]]) -> list[str]:
    """Return what followed, those with one cause in one line."""
    by_cause: dict[str, list[str]] = {}
    for sign, cause in after:
        whose = by_cause.setdefault(cause.name, [])
        if sign.who not in whose:
            whose.append(sign.who)
    lines = []
    for name, whose in by_cause.items():
        shown = ", ".join(filter(None, whose[:4])) + (
            f" and {len(whose) - 4} more" if len(whose) > 4 else ""
        )
        lines.append(f"{name}: {shown}" if shown else name)
    return lines[:_MOST_AFTER]
