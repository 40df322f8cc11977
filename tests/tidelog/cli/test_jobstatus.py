"""What ``tidelog jobs status`` prints of a job's last error."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")

from tidelog.cli.jobstatus import print_jobs
from tidelog.jobs.registry.overview import JobOverview, JobsOverview
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.registry.status import SnapshotSummary, Status

FAILED = """job 'count', partition 0, epoch 1: the function failed with 520 entries of topic 'clicks', 1795372466699.0
  read: clicks:0 after 0.0
Traceback (most recent call last):
  File "shop.py", line 34, in count
ValueError: poison in the well"""


@pytest.mark.parametrize(
    ("error", "shown"),
    [(FAILED, "ValueError: poison in the well"), ("job 'count': no topic\nmore", "job 'count': no topic")],
)
def test_the_line_that_says_most(error: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = Status("count", "e1", 1, state="failed", error=error)
    print_jobs(
        JobsOverview(0, (JobOverview(JobSpec("count", "shop:count"), "e1", said, (), SnapshotSummary()),), ("e1",))
    )
    assert capsys.readouterr().out.splitlines()[-1].endswith(shown)
