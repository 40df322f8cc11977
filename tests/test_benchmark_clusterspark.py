"""``benchmarks.clusterspark``: CPU times of the right processes, and ratios."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark")

from benchmarks.clusterspark import Figures, report, spark_seconds

BURN = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\nsys.stdin.read()"


def test_spark_is_every_descendant_but_the_servers() -> None:
    before = spark_seconds(set())
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        with_it, without = spark_seconds(set()), spark_seconds({child.pid})
        child.stdin.close()
    assert with_it - before >= 0.4
    assert with_it - without >= 0.4


def test_the_busiest_server_gives_the_rate(capsys: Any) -> None:
    report([(Figures(1.0, 1.0, 8.0, 100.0, 0.1), Figures(0.5, 1.0, 8.0, 90.0, 0.2))])
    printed = capsys.readouterr().out
    assert "limit): 2.00 (2.00-2.00)" in printed
    assert "rows/s, measured: 100.000 with one group, 90.000 with two: 0.90" in printed
    assert "CPU of Spark relative to the server of one group: 8.00" in printed
