"""Finds errors in a rank's last lines: ends of tracebacks, C++ exceptions, the user's line of code.

errors(["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "KeyError: 7"])
"""

import re
from collections.abc import Mapping, Sequence

_LONGEST = 20  # lines of a message

_START = re.compile(r"(?:.* )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)(?:, in (.+))?$')
_RAISED = re.compile(r"[^\W\d][\w.]*(: |:?$)")
_MESSAGE = re.compile(r"\s*what\(\): +(.+)|((?:Fatal Python error|ERROR|FATAL|CRITICAL)\b.+)")
_OTHER = re.compile(
    r"\s*$|\[[A-Z]\d{4} |(During handling of|The above exception) |Exception raised from"
    r"|.*(\w*Warning\b|WARNING\b|\d%\|)|-- Process \d+ terminated"
)
# The error after these lines belongs to the one before: it was caused by it, contains or repeats it.
_LINK = re.compile(
    r"(During handling of|The above exception) |.*Original Traceback|-- Process \d+ terminated"
    r"|\S*CheckpointException: "
)
# Frames of multiprocessing, and what each means for the error below it.
_MEANINGS = {
    re.compile(r".*, in _fixup_main_from_(path|name)$"): (
        "in a new process that imported the program again:"
    ),
    re.compile(r".*resource_sharer\.py.*, in get_connection$"): "asked a process that has ended:",
}
_ELSEWHERE = re.compile(
    r"Exception in thread |Process \S+:$"
)  # this error may explain the next one
# Errors that Python reports but does not raise: at exit, or in logging.
_IGNORED = re.compile(r"Exception ignored |Error in atexit|--- Logging error ---|Call stack:$")
_WRAPS = re.compile(
    r"\w*Error: Caught \w+ in |\S*(ProcessRaised|Checkpoint)Exception: |\S*ChildFailedError:"
    r"|\S*CalledProcessError: "
)
# Written by faulthandler, whose frames have no comma before `in`.
_DUMP = re.compile(r".*[Tt]hread 0x\w+.*\(most recent call first\)")
_DUMPED = re.compile(r'\s*File "([^"]+)", line (\d+) in (.+)')
_WAITS = re.compile(r"/torch/(distributed|autograd)/")
_NOT_OWN = re.compile(
    r"site-packages|/lib/python|<frozen|/trainer/(engine|strategies|launcher)/|__main__"
)


def plain(lines: Sequence[str]) -> list[str]:
    """Return lines without what stands before lines of a traceback.

    That is `[rank0]: ` of torch.distributed, and the margin of an ExceptionGroup.
    """
    return [re.sub(r"^(\[rank\d+\]: ?)?( +\| | +\+-.*-$)?", "", line) for line in lines]


def errors(lines: Sequence[str]) -> list[list[str]]:
    """Return tracebacks' messages, C++ exceptions and ERROR lines, each in one line, newest first.

    Errors of one chain are in one list. One below a frame of `_MEANINGS` comes after its meaning.
    """
    found: list[list[str]] = []
    linked: list[bool] = []  # to the previous one
    meaning: list[str] = []
    is_frame = is_message = is_linked = is_elsewhere = is_ignored = False
    for line in lines:
        is_linked |= bool(_LINK.match(line))
        is_elsewhere |= bool(_ELSEWHERE.match(line))
        is_ignored |= bool(_IGNORED.match(line))
        meaning = [text for frame, text in _MEANINGS.items() if frame.match(line)] or meaning
        said = _MESSAGE.match(line)
        if is_frame and is_ignored and _RAISED.match(line):
            is_frame = is_message = is_ignored = False
        elif said or (is_frame and _RAISED.match(line)):
            found.append([*meaning, said[1] or said[2] if said else line])
            linked.append(is_linked)
            is_frame, is_message, is_linked, is_elsewhere = False, True, is_elsewhere, False
            meaning = []
        elif _START.match(line) or _FRAME.match(line):
            is_frame, is_message = True, False
        elif _OTHER.match(line) or _ELSEWHERE.match(line) or _IGNORED.match(line):
            is_message = False
        elif not is_frame and is_ignored:  # it had no traceback
            is_ignored = False
        elif is_message and len(found[-1]) < _LONGEST:
            found[-1].append(line)
    groups: list[list[str]] = []
    for message, is_next in zip(found, linked, strict=True):
        if not (is_next and groups):
            groups.append([])
        groups[-1].insert(0, " ".join(" ".join(message).split()))
    return [_bare(group) for group in reversed(groups)]


def _bare(group: list[str]) -> list[str]:
    """Return errors without those that only wrap another one."""
    return [one for one in group if not _WRAPS.match(one)] or group


def is_raised(text: str) -> bool:
    """Tell whether it is a Python exception, and not only the report of a failed command or process."""
    return bool(_RAISED.match(text)) and not (_WRAPS.match(text) or _MESSAGE.match(text))


def wraps(text: str) -> bool:
    """Tell whether a text only says that a command or a process failed, or where."""
    return bool(_WRAPS.match(text))


def until(lines: Sequence[str], evidence: str) -> Sequence[str]:
    """Return the lines up to the error that is the evidence; all lines if it is not among them."""
    last = [n for n, line in enumerate(lines) if _RAISED.match(line) and line.strip() in evidence]
    return lines[: last[-1]] if last else lines


def place(lines: Sequence[str]) -> str:
    """Return the innermost frame in the user's code, with its line of code if the traceback has it."""
    own = [
        (number, frame)
        for number, line in enumerate(lines)
        if (frame := _FRAME.match(line) or _DUMPED.match(line)) and not _NOT_OWN.search(frame[1])
    ]
    if not own:
        return ""
    number, frame = own[0 if any(map(_DUMP.match, lines)) else -1]
    function = f", in {frame[3]}" if frame[3] else ""
    code = lines[number + 1].strip() if number + 1 < len(lines) else ""
    is_code = bool(code) and lines[number + 1].startswith("    ")
    return f"{frame[1]}, line {frame[2]}{function}{f': {code}' if is_code else ''}"


def stuck(stacks: Mapping[str, Sequence[str]]) -> str:
    """Return the only rank whose faulthandler stack shows no wait for other ranks.

    "" if there are several such ranks or none, or if only one rank has a stack.
    """
    innermost = {}
    for who, lines in stacks.items():
        dumps = [number for number, line in enumerate(lines) if _DUMP.match(line)]
        frames = filter(None, map(_DUMPED.match, lines[dumps[-1] :] if dumps else ()))
        if frame := next(frames, None):
            innermost[who] = frame[1]
    others = [who for who, file in innermost.items() if not _WAITS.search(file)]
    return others[0] if len(others) == 1 < len(innermost) else ""
