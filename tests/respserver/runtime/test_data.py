"""The open data directory: closed, opened again, and closed where the opening failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from resp.errors import CorruptError
from respserver.config.config import Config
from respserver.observe.logs import Logger
from respserver.runtime.clock import Clock
from respserver.runtime.data import Data


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
