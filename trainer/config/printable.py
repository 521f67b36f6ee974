"""Text from elsewhere for a person to read: no character in it moves a cursor or writes to a clipboard.

print(printable(line))
"""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Control characters but for the tab, those of C1, what turns the direction of writing, and halves of
# characters, which JSON may hold and no file can.
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return `text` without colours, and with every other control character spelled out."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], _COLOUR.sub("", text))
