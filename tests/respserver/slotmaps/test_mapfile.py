"""The copy of the map in the data directory: what is torn, truncated, or no map at all is refused."""

from __future__ import annotations

import random
from pathlib import Path
from zlib import crc32

import pytest

from coordinator import slotmap
from coordinator.slotmap import MapGroup, MapMember, SlotMap, SlotRange
from resp.errors import CorruptError
from respserver.slotmaps import mapfile

DAMAGED = "map is damaged: delete it, and this member reads the map from the coordinator"


def _map(changes: int = 1) -> SlotMap:
    members = {f"{at}a": MapMember(f"{at}" * 40, "10.0.0.1", 7000 + at) for at in (1, 2)}
    group = [MapGroup(f"{at}" * 40, 1, f"{at}a", 0, {f"{at}a": members[f"{at}a"]}) for at in (1, 2)]
    found = slotmap.put_group(slotmap.create("c" * 40, "1", group[0], 1), "2", group[1], 1)
    for at in range(changes):
        found = slotmap.assign(found, [SlotRange(at, at)], "2", 1, "a test", "1", 1)
    return found


def _written(directory: Path, slots: SlotMap) -> bytes:
    mapfile.save(directory, slots)
    return (directory / mapfile.NAME).read_bytes()


def _check_refused(directory: Path, raw: bytes, message: str = DAMAGED) -> None:
    (directory / mapfile.NAME).write_bytes(raw)
    with pytest.raises(CorruptError, match=message):
        mapfile.load(directory)


def test_a_version_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert mapfile.load(tmp_path) is None
    for changes in (0, 1, 3):
        mapfile.save(tmp_path, _map(changes))
        assert mapfile.load(tmp_path) == _map(changes)
    assert [each.name for each in tmp_path.iterdir()] == [mapfile.NAME]


def test_truncated(tmp_path: Path) -> None:
    raw = _written(tmp_path, _map())
    for length in range(len(raw)):
        _check_refused(tmp_path, raw[:length])


def test_torn(tmp_path: Path) -> None:
    """Blocks of 512 bytes are those of one version or of another one, or zero."""
    chance = random.Random(1)
    old, new = _written(tmp_path, _map(3)), _written(tmp_path, _map(9))
    for _ in range(300):
        raw = bytearray(new)
        for at in range(0, len(new), 512):
            source = chance.choice((old, new, bytes(len(new))))
            raw[at : at + 512] = source[at : at + 512]
        if bytes(raw) not in (old, new):
            _check_refused(tmp_path, bytes(raw))


def test_flipped_bits(tmp_path: Path) -> None:
    chance, raw = random.Random(1), _written(tmp_path, _map())
    for _ in range(300):
        at = chance.randrange(len(raw))
        _check_refused(tmp_path, raw[:at] + bytes([raw[at] ^ 1 << chance.randrange(8)]) + raw[at + 1 :])


@pytest.mark.parametrize(
    "raw", [b"", b"\0" * 4096, b"\n", b"null\n", b"\xff\xfe\n", b"[" * 100_000, b"crc32 00000000\n"]
)
def test_garbage(raw: bytes, tmp_path: Path) -> None:
    _check_refused(tmp_path, raw)


def test_a_map_with_a_valid_checksum_that_is_none(tmp_path: Path) -> None:
    for document, message in (
        (b"{}", DAMAGED), (b"[" * 100_000, DAMAGED), (b'{"format": 2}', "only format 1: upgrade this member$")
    ):  # fmt: skip
        _check_refused(tmp_path, document + b"\ncrc32 %08x\n" % crc32(document), message)
