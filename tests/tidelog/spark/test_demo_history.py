"""The query of scripts/demo --history in Spark."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("matplotlib", reason="no matplotlib here (pip install 'tidelog[demo]')")

from scripts.demo_history import with_spark
from scripts.demo_historyrows import Rows
from scripts.demo_historywatch import Watch
from tests.test_demo_history import made
from tests.tidelog.history.kit import copy_all, tiered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_totals_from_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = Rows(made(200), 1000)
    with tiered(tmp_path, tier_free="yes") as server, server.client() as client:
        for _, call in rows.calls():
            client.run(call)
        copy_all(server)
        with closing(Watch(server.pid, tmp_path)) as watch:
            watch.start()
            assert with_spark(server, watch, rows, lambda: nullcontext(spark)) == rows.totals()
        assert watch.phases[0].ended > watch.phases[0].began
        assert watch.samples
