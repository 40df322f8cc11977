"""examples/jobs_clicks.py: as its docstring says, from the command line, and its functions alone."""

from __future__ import annotations

import time
from collections import Counter

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")

from examples import jobs_clicks
from tests.test_examples import EXAMPLES, run
from tests.tidelog.spark.sparkkit import require_spark
from tidelog import Client
from tidelog.jobs.testengine import running_engine
from tidelog.jobs.testing import JobTest
from tidelog.testing import running_server


def require_vega() -> None:
    pytest.importorskip("vega_datasets", reason="no vega_datasets here (pip install 'tidelog[demo]')")


def check_clicks(client: Client) -> None:
    """Each output has what plain Python finds, once; whatever the epochs were."""
    clicks = list(jobs_clicks.real_clicks())
    assert len(clicks) == 2 * (365 * 24 - 1)  # an hour is missing, where summer time begins

    def rows(name: str) -> list[dict[str, str]]:
        return [entry.text() for at in range(4) for entry in client.trange(f"{name}:{at}")]

    last: dict[tuple[str, str], int] = {}
    for row in rows("city-totals"):
        key, number = (row["user"], row["city"]), int(row["clicks"])
        assert number > last.get(key, 0)
        last[key] = number
    assert last == Counter((click.user, click.city) for click in clicks)

    by_day = Counter((click.user, f"{click.at:%Y-%m-%d}") for click in clicks)
    alarmed = [(row["user"], row["day"]) for row in rows("alarms")]
    assert sorted(alarmed) == sorted(key for key, number in by_day.items() if number > jobs_clicks.LIMIT) != []

    leaders = {row["city"]: row["user"] for row in rows("leaders")}
    most = {city: max(number for (_, at), number in last.items() if at == city) for city in leaders}
    assert {city: last[user, city] for city, user in leaders.items()} == most
    assert len(most) == 2


def check_days(client: Client) -> None:
    """Days that are over are there once, for each city."""
    temps: dict[tuple[str, str], list[float]] = {}
    for click in jobs_clicks.real_clicks():
        temps.setdefault((click.city, f"{click.at:%Y-%m-%d}"), []).append(click.temp)
    found = [entry.text() for at in range(4) for entry in client.trange(f"daily:{at}")]
    days = {(row["city"], row["day"]): row for row in found}
    assert len(days) == len(found) >= 2 * 360
    for key, row in days.items():
        assert int(row["clicks"]) == len(temps[key])
        assert float(row["temp"]) == pytest.approx(sum(temps[key]) / len(temps[key]), abs=0.006)


@pytest.mark.slow
@pytest.mark.timeout(400)  # a JVM that begins cold
def test_jobs_on_clicks() -> None:
    require_spark()
    require_vega()
    with running_server() as server, server.client() as client:
        run(server, str(EXAMPLES / "jobs_clicks.py"))
        run(server, "-m", "tidelog.cli", "jobs", "add", "--all", "examples.jobs_clicks")
        with running_engine(server) as engine:
            engine.idle(300)
            end = time.monotonic() + 60  # Spark writes windows a batch after the one that ends them
            while not sum(client.tlen(f"daily:{at}") for at in range(4)) and time.monotonic() < end:
                time.sleep(0.1)
        check_clicks(client)
        check_days(client)


def test_functions_on_clicks() -> None:
    require_vega()
    clicks = list(jobs_clicks.real_clicks())
    test = JobTest(jobs_clicks.count)
    for at in range(0, len(clicks), 5000):
        test.feed({jobs_clicks.clicks: clicks[at : at + 5000]})
    out = test.outputs
    by_day = Counter((click.user, f"{click.at:%Y-%m-%d}") for click in clicks)
    alarmed = [(row["user"], row["day"]) for row in out[jobs_clicks.alarms].to_pylist()]
    assert sorted(alarmed) == sorted(key for key, number in by_day.items() if number > jobs_clicks.LIMIT) != []
    counted = Counter(f"{click.user}/{click.city}" for click in clicks)
    assert {key.decode(): number for key, number in test.state.scan()} == counted
    chained = JobTest(jobs_clicks.lead)
    chained.feed({jobs_clicks.totals: out[jobs_clicks.totals]})
    leader = chained.state.get("Seattle")
    assert leader is not None
    assert leader.clicks == max(number for key, number in counted.items() if key.endswith("/Seattle"))
