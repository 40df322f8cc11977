"""The open data directory: closed, opened again, and closed where the opening failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from resp.errors import CorruptError
from respserver.config.config import Config
from respserver.observe.logs import Logger
from respserver.runtime.clock import Clock
from respserver.runtime.data import SOUND_MS, Data


@pytest.fixture
def data(tmp_path: Path) -> Data:
    config = Config.load(["--dir", str(tmp_path), "--wal-size", "1mb"])
    return Data(config, Clock(), Logger(level="nothing"))


def test_it_opens_again_with_its_role(data: Data) -> None:
    data.follow(True)
    data.close()
    data.use(*data.load())
    assert data.ks.follower
    assert data.log_stats() == data.disk.stats()
    data.close()


def test_it_closes_again_where_other_data_could_not_be_opened(data: Data, tmp_path: Path) -> None:
    """The server ends then. INFO showed the last stats of the log meanwhile."""
    before = data.disk.stats()
    data.close()
    (tmp_path / "tidelog.format").write_text("something else\n")
    with pytest.raises(CorruptError):
        data.load()
    assert data.log_stats() == before
    data.close()


class Hand(Clock):
    time = 1_000_000

    def mono(self) -> int:
        return self.time


def test_damage_counts_for_a_moment_longer(tmp_path: Path) -> None:
    """The nodes of a store are damaged, found, and repaired one after another: a member joins again after the last."""
    clock = Hand()
    data = Data(Config.load(["--dir", str(tmp_path), "--wal-size", "1mb"]), clock, Logger(level="nothing"))
    assert not data.damaged_lately()
    for _ in range(3):
        data.disk.scrub.note(1, 0, 0, "a test")
        clock.time += SOUND_MS - 1
        assert data.damaged_lately()
        data.disk.scrub.recheck()  # there is no such node
        clock.time += SOUND_MS - 1
        assert data.damaged_lately()
    clock.time += 1
    assert not data.damaged_lately()
    data.close()
