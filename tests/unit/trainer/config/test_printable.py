"""Text from other sources is shown without control characters of terminals."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),  # OSC: the window's title
        ("\x1b]52;c;cm0gLXJm\x1b\\", "\\x1b]52;c;cm0gLXJm\\x1b\\"),  # the clipboard
        ("ok\x1b[2K\x1b[1Afailed", "ok\\x1b[2K\\x1b[1Afailed"),  # CSI: over the line before
        ("\x9b2Jx", "\\x9b2Jx"),  # the same in one character of C1
        ("safe\rfake", "safe\\rfake"),
        ("a\nb", "a\\nb"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\tb ä 漢 🙂", "a\tb ä 漢 🙂"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f]", printable(text))
    assert printable(printable(text)) == printable(text)
