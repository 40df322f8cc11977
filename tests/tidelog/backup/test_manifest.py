"""A manifest is believed whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.backup.manifest import BackupManifest, backups, find, load
from tidelog.backup.targets import BackupError, LocalTarget

NAME = "20261121T080000.123Z-4711"
MADE = BackupManifest(
    name=NAME, began="2026-11-21T08:00:00.123Z", ended="2026-11-21T08:00:01.000Z", tool="0.1.0",
    server="localhost:6379", version="0.1.0", role="leader", replid="a" * 40, store_offset=4000, log_offset=4711,
    store_entries=3, keys=2, entries=100, store=(("0" * 64, 10), ("1" * 64, 20)), log=(("2" * 64, 5),),
)  # fmt: skip


def test_there_and_back() -> None:
    raw = MADE.dumped()
    assert BackupManifest.loaded(raw, "f") == MADE
    assert (MADE.size, len(MADE.chunks)) == (35, 3)
    assert json.loads(raw)["store"] == [["0" * 64, 10], ["1" * 64, 20]]


def test_every_truncation_is_noticed() -> None:
    raw = MADE.dumped().rstrip()
    for size in range(len(raw)):
        with pytest.raises(BackupError, match="f is damaged"):
            BackupManifest.loaded(raw[:size], "f")


def test_every_change_of_meaning_is_noticed() -> None:
    raw = MADE.dumped()
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        try:
            same = json.loads(changed) == json.loads(raw)  # a blank
        except ValueError:
            same = False
        if not same:
            with pytest.raises(BackupError, match=r"f is damaged|does not know"):
                BackupManifest.loaded(changed, "f")


def test_a_newer_format() -> None:
    raw = MADE.dumped().replace(b"format 1", b"format 2")
    with pytest.raises(BackupError, match="'tidelog backup, format 2', which this tidelog does not know"):
        BackupManifest.loaded(raw, "f")


@pytest.mark.parametrize("store", [(("../" + "0" * 61, 1),), (("0" * 64,),), ((1, 1),), 5])
def test_chunks_that_are_none(store: Any) -> None:
    with pytest.raises(BackupError, match="f is damaged: it has other fields"):
        BackupManifest.loaded(replace(MADE, store=store).dumped(), "f")


@pytest.mark.parametrize(
    "odd",
    [
        {"keys": -1}, {"entries": 1.5}, {"entries": True}, {"log_offset": 1 << 63}, {"log_offset": 3999},
        {"store_entries": "3"}, {"store_entries": None}, {"store_offset": 10**400}, {"keys": float("nan")},
        {"keys": "\ud800"},
        {"store": (("0" * 64, -1),)}, {"store": (("0" * 64, 1.0),)}, {"store": (("0" * 64, 1 << 62),) * 2},
        {"store": (("0" * 64, "9"),)}, {"log": None}, {"log": {"0" * 64: 1}},
        {"server": "\x1b]0;title\x07"}, {"server": 5}, {"role": "\x9b2J"}, {"version": "x" * 2000},
        {"replid": "../x"}, {"name": "../../etc/x"}, {"began": "yesterday"}, {"began": None},
    ],
    ids=str,
)  # fmt: skip
def test_values_of_another_form(odd: dict[str, Any]) -> None:
    """Its checksum is right: whoever can write files at the target can make one."""
    with pytest.raises(BackupError, match=r"f is damaged"):
        BackupManifest.loaded(replace(MADE, **odd).dumped(), "f")


def test_a_manifest_nested_without_an_end() -> None:
    with pytest.raises(BackupError, match="f is damaged"):
        BackupManifest.loaded(b"[" * 1_000_000, "f")


def test_a_manifest_that_was_renamed(tmp_path: Path) -> None:
    place = LocalTarget(tmp_path)
    other = "20261122T080000.000Z-5000"
    place.write(f"{other}.json", MADE.dumped())
    with pytest.raises(BackupError, match=f"is the manifest of {NAME}: it was renamed"):
        load(place, other)


def test_what_a_user_may_call_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = LocalTarget(tmp_path / "t")
    newer = replace(MADE, name="20261122T080000.000Z-5000")
    for made in (newer, MADE):
        place.write(f"{made.name}.json", made.dumped())
    place.write("notes.json", b"{}")
    place.write(f"chunks/{NAME}.json", b"{}")
    assert backups(place) == [NAME, newer.name]
    assert load(place, NAME) == MADE
    top = f"{tmp_path}/t"
    assert [find(one)[1] for one in (top, f"{top}/", f"file://{top}")] == [newer] * 3
    assert [find(one)[1] for one in (f"{top}/{NAME}", f"{top}/{NAME}.json", f"file://{top}/{NAME}")] == [MADE] * 3
    monkeypatch.chdir(tmp_path / "t")
    assert [find(one)[1] for one in (".", NAME, f"./{NAME}.json")] == [newer, MADE, MADE]
    with pytest.raises(BackupError, match="there is no backup at"):
        find(f"{tmp_path}/u")
    with pytest.raises(BackupError, match="it is not there"):
        find(f"{top}/20261122T080000.000Z-1")
