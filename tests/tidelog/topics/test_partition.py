"""The hash that decides the partition of a key never changes: other programs and languages compute it, too."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.topics import partition, partition_of
from tidelog.topics.partition import Key, canonical

VECTORS: list[tuple[Key, int, int]] = [  # key, of 16, of 100
    ("", 0, 0), (b"", 0, 0), ("1", 7, 83), (1, 7, 83), (b"1", 7, 83), (-42, 6, 42), ("order-4711", 15, 23),
    ("Müller", 5, 29), (UUID("12345678-1234-5678-1234-567812345678"), 9, 13),
    ("12345678-1234-5678-1234-567812345678", 9, 13),
]  # fmt: skip


@pytest.mark.parametrize(("key", "of_16", "of_100"), VECTORS)
def test_vectors(key: Key, of_16: int, of_100: int) -> None:
    assert (partition_of(key, 16), partition_of(key, 100)) == (of_16, of_100)


def test_the_documented_table_is_this_one() -> None:
    for line in (partition.__doc__ or "").splitlines():
        if "0x" in line:
            *_, of_16, of_100 = line.split()
            assert (int(of_16), int(of_100)) in [vector[1:] for vector in VECTORS]


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.binary(), st.integers(1, 1000))
def test_growing_by_a_multiple_moves_a_key_to_a_partition_above_its_own(key: Key, partitions: int) -> None:
    old, new = partition_of(key, partitions), partition_of(key, partitions * 4)
    assert new % partitions == old


@pytest.mark.parametrize("key", [True, 1.0, None, ("a",), bytearray(b"a")])
def test_other_types_are_refused(key: object) -> None:
    with pytest.raises(TypeError, match="a partition key is str, int, bytes or UUID, not"):
        canonical(key)  # type: ignore[arg-type]
