"""Kubernetes quantities: 500m, 2, 1.5Gi, 1e3. Exact arithmetic, and only what the API server accepts.

Used by `k8s/jobfile/spec.py` and `k8s/plan/make.py`; to see one:

    python -c "from k8s.base.quantity import parse; print(parse('1.5Gi'))"
"""

import re
from decimal import Decimal

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)
_LARGEST = 2**63 - 1

# Suffixes that users write by mistake, with the correct ones.
_MEANT = {"B": "no letter", "b": "no letter", "g": "G or Gi", "ki": "Ki", "mi": "Mi", "gi": "Gi"}
_MEANT |= dict.fromkeys(("K", "KB", "Kb"), "k or Ki")
_MEANT |= {letter + byte: f"{letter} or {letter}i" for letter in "MGT" for byte in "Bb"}
_MEANT |= {letter + "iB": f"{letter}i" for letter in "KMGT"}


def parse(text: str) -> Decimal:
    """Return the exact value of a quantity. Raises ValueError, whose text says what would work."""
    found = _FORM.fullmatch(text)
    if not found:
        letters = re.sub(r"^[+-]?[0-9.]+", "", text)
        hint = f"for {letters} write {_MEANT[letters]}, " if letters in _MEANT else ""
        raise ValueError(f"not a quantity; {hint}e.g. 500m, 2, 1.5Gi")
    number, suffix = Decimal(found["number"]), found["suffix"] or ""
    if suffix in _BINARY:
        value = number * _BINARY[suffix]
    else:
        value = number.scaleb(int(found["exponent"] or _DECIMAL[suffix]))
    if abs(value) > _LARGEST:
        raise ValueError("more than Kubernetes can hold (2^63 - 1)")
    return value


def cores(text: str) -> Decimal:
    """Return a number of CPUs. Raises ValueError if it is less than a thousandth."""
    value = parse(text)
    if value < Decimal("0.001"):
        raise ValueError("must be at least 1m, a thousandth of a core")
    return value


def size(text: str) -> int:
    """Return a number of bytes. Raises ValueError if it is not a positive whole number."""
    value = parse(text)
    if value != value.to_integral_value():
        amount = text.removesuffix("m")
        hint = (
            f"m is a thousandth, for mebibytes write {amount}Mi" if amount != text else "e.g. 2Gi"
        )
        raise ValueError(f"must be a whole number of bytes; {hint}")
    if value <= 0:
        raise ValueError("must be more than 0, e.g. 2Gi")
    return int(value)


def binary(count: int) -> str:
    """Write a number of bytes with the largest binary suffix that keeps it exact."""
    for suffix, factor in reversed(_BINARY.items()):
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)
