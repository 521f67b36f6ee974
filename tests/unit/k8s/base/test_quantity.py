"""Quantities: exactly those that Kubernetes accepts, with exact values."""

from decimal import Decimal

import pytest

from k8s.base import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("2", "2"),
        ("+2", "2"),
        ("-2", "-2"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("500m", "0.5"),
        ("100u", "0.0001"),
        ("1n", "0.000000001"),
        ("1k", "1000"),
        ("1M", "1000000"),
        ("1G", "1000000000"),
        ("1E", "1000000000000000000"),
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("7Ei", "8070450532247928832"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1e-3", "0.001"),
        ("12.5e2", "1250"),
    ],
)
def test_value(text: str, value: str) -> None:
    assert quantity.parse(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 Gi",
        "Gi",
        "1Gb",
        "1GB",
        "1gi",
        "1K",
        "1ki",
        "1mi",
        "0x10",
        "1,5",
        "1..5",
        ".",
        "1e",
        "--1",
        "1Gi ",
        "1\n",
        "inf",
        "nan",
        "1_000",
        "٣",
        "8Ei",
        "1e30",
        "1e999",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity|more than Kubernetes can hold"):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("2GB", "write G or Gi"), ("1K", "write k or Ki"), ("1gi", "write Gi")]
)
def test_the_refusal_knows_what_was_meant(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        quantity.parse(text)


def test_memory_in_thousandths_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="write 512Mi"):
        quantity.size("512m")
    with pytest.raises(ValueError, match="more than 0"):
        quantity.size("0")


def test_less_than_a_thousandth_of_a_core_is_refused() -> None:
    assert quantity.cores("1m") == Decimal("0.001")
    for text in ("0", "-1", "999u"):
        with pytest.raises(ValueError, match="at least 1m"):
            quantity.cores(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(2**30, "1Gi"), (3 * 2**29, "1536Mi"), (1024, "1Ki"), (1000, "1000"), (2**45, "32Ti")],
)
def test_bytes_are_written_exactly(count: int, text: str) -> None:
    assert quantity.binary(count) == text
    assert quantity.size(text) == count
