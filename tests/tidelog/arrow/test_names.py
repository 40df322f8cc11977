"""Invariant: every name of a field comes back as it was, and no two become the same text."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelog.arrow.names import as_bytes, as_text, texts

pytestmark = pytest.mark.quick

PIECES = [b"\\", b"x", b"\\x", b"\\x5c", b"\\xff", b"ff", b"\xff", b"\x80", "ä".encode(), b"\xed\xa0\x80", b"5c", b"a"]
NAMES = st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=8).map(b"".join)


@settings(deadline=None)
@given(NAMES)
@example(b"\\\xff")
@example(b"\\x\xffff")
def test_a_name_comes_back(name: bytes) -> None:
    text = as_text(name)
    assert as_bytes(text) == name
    text.encode()


@settings(deadline=None)
@given(st.lists(NAMES))
def test_columns_of_names(names: list[bytes]) -> None:
    assert texts(pa.array(names, pa.binary())).to_pylist() == [as_text(name) for name in names]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"raw\xff", r"raw\xff"), (rb"a\b", r"a\b"), (rb"\xff", r"\x5cxff"), (rb"\xFF", r"\xFF"),
        ("ä".encode(), "ä"), (b"\xc3", r"\xc3"),
    ],
)  # fmt: skip
def test_examples(name: bytes, text: str) -> None:
    assert as_text(name) == text
    assert as_bytes(text) == name
