"""Finds errors in what a rank wrote last: how tracebacks end, C++ exceptions, whose line it was.

errors(["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "KeyError: 7"])
"""

import re
from collections.abc import Sequence

_LONGEST = 20  # lines of a message

_START = re.compile(r"(?:.* )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)(?:, in (.+))?$')
_RAISED = re.compile(r"[^\W\d][\w.]*(: |:?$)")
_MESSAGE = re.compile(r"\s*what\(\): +(.+)|((?:Fatal Python error|ERROR|FATAL|CRITICAL)\b.+)")
_OTHER = re.compile(
    r"\s*$|\[[A-Z]\d{4} |(During handling of|The above exception) |Exception raised from"
)
# Of faulthandler, whose frames have no comma before `in`.
_DUMP = re.compile(r".*[Tt]hread 0x\w+.*\(most recent call first\)")
_DUMPED = re.compile(r'\s*File "([^"]+)", line (\d+) in (.+)')
_NOT_OWN = re.compile(
    r"site-packages|/lib/python|<frozen|/trainer/(engine|strategies|launcher)/|__main__"
)


def plain(lines: Sequence[str]) -> list[str]:
    """Return lines without the rank that torch.distributed puts before those of a traceback."""
    return [re.sub(r"^\[rank\d+\]: ?", "", line) for line in lines]


def errors(lines: Sequence[str]) -> list[str]:
    """Return tracebacks' messages, C++ exceptions and ERROR lines, each in one line, newest first."""
    found: list[list[str]] = []
    is_frame = is_message = False
    for line in lines:
        if said := _MESSAGE.match(line):
            found.append([said[1] or said[2]])
            is_frame, is_message = False, True
        elif _START.match(line) or _FRAME.match(line):
            is_frame, is_message = True, False
        elif is_frame and _RAISED.match(line):
            found.append([line])
            is_frame, is_message = False, True
        elif _OTHER.match(line):
            is_message = False
        elif is_message and len(found[-1]) < _LONGEST:
            found[-1].append(line)
    return [" ".join(" ".join(message).split()) for message in reversed(found)]


def place(lines: Sequence[str]) -> str:
    """Return the innermost frame that is the user's own, with its code if that was written."""
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
