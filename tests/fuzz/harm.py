"""Mutates inputs, and reports whether one did harm.

attempt(TARGETS["job file"], mutate(seeds, random.Random(1)), folder)
"""

import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.fuzz.targets import Target
from trainer.config.exits import Exit, Fault

_SECONDS = 5  # of processor time for one input
_WAITING = 6  # times as long may pass, because a busy machine is slower
_NUMBERS = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64,
)
_PIECES = (
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"  ",
        b"- ",
        b": ",
        b"{}",
        b"[]",
        b"[[[[",
        b"{{{{",
        b'"',
        b"'",
        b"\\",
    ),
    *(b"&a ", b"*a", b"<<: *a", b"!!binary ", b"!!python/name:os.system ", b"---\n", b"null", b"~"),
    *(
        b"\\ud800",
        b"NaN",
        b"Infinity",
        b"-1",
        b"1e999",
        b"0x_",
        b"true",
        b"../",
        b"/dev/zero",
        b"\x1b]0;x\x07",
    ),
    *(b"\xff\xfe", b"\xed\xa0\x80", b"\xf0\x9f\x99\x82", b"%s%n", b"${x}", b"{{ x }}", b"\x80\x04"),
)


def attempt(target: Target, data: bytes, folder: Path) -> None:
    """Run a target on one input; errors are raised.

    SIGPROF ends the process after 5 s of processor time, SIGALRM after 30 s of waiting.
    """
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _WAITING * _SECONDS)
    try:
        target.run(data, folder)
    except Fault as fault:
        if fault.code not in (Exit.CONFIG, Exit.DATA) or "\n" in str(fault):
            raise AssertionError(f"{fault.code}: {fault}") from fault


def mutate(seeds: Sequence[bytes], dice: Random) -> bytes:
    """Return one of `seeds` after some random changes."""
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.choice((1, 1, 1, 2, 3, 5, 8, 16))):
        start = dice.randrange(len(data) + 1)
        end = min(len(data), start + dice.choice((1, 1, 2, 4, 8, 64, 1000)))
        match dice.randrange(9):
            case 0 if data and start < len(data):
                data[start] ^= 1 << dice.randrange(8)
            case 1:
                data[start:end] = dice.randbytes(end - start)
            case 2:
                del data[start:end]
            case 3:
                data[start:start] = data[start:end] * dice.choice((1, 2, 10, 300))
            case 4:
                data[start:start] = dice.choice(_PIECES)
            case 5:
                data[start:end] = str(dice.choice(_NUMBERS) * dice.choice((1, -1))).encode()
            case 6:
                size = dice.choice((1, 2, 4, 8))
                number = dice.choice(_NUMBERS) % 256**size
                data[start : start + size] = number.to_bytes(size, dice.choice(("big", "little")))
            case 7:  # a part of another input
                other = dice.choice(seeds)
                place = dice.randrange(len(other) + 1)
                data[start:end] = other[place : place + dice.choice((4, 30, 300))]
            case _:  # a line at another place
                lines = bytes(data).split(b"\n")
                lines.insert(dice.randrange(len(lines)), lines.pop(dice.randrange(len(lines))))
                data = bytearray(b"\n".join(lines))
    return bytes(data[: 1 << 20])
