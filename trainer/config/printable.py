"""Make text from other sources safe to print: it cannot move the cursor or write to the clipboard.

print(printable(line))
"""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Control characters except the tab, those of C1, characters that change the direction of writing, and
# surrogates, which JSON may hold but a UTF-8 file cannot.
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return `text` without colours, and with every other control character escaped."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], _COLOUR.sub("", text))
