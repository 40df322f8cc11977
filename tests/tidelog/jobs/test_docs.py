"""docs/jobs.md: its program is what it says, its commands and tests run, its tables name every option there is."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[jobs]')")

from tests.tidelog import doctables
from tests.tidelog.jobs.enginekit import ROOT
from tests.tidelog.spark.conftest import spark
from tests.tidelog.spark.sparkkit import require_spark
from tests.waiting import eventually
from tidelog.cli.engine import engine
from tidelog.cli.jobs import jobs_commands
from tidelog.jobs import Halt, Job, JobError, MicroBatch, State, errors, job
from tidelog.jobs.snapshots.objects import DRIVERS
from tidelog.jobs.testing import JobTest
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

TEXT = (ROOT / "docs" / "jobs.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"# shows (.*)$")
CONF = "--conf 'spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' --conf spark.driver.memory=700m"


def rows(title: str) -> dict[str, str]:
    return doctables.rows(TEXT, title)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[types.ModuleType]:
    """What the Python blocks make, one after another, as a module that engines can import."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text("\n".join(code for language, code in BLOCKS if language == "python"))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("shop")
    sys.path.remove(str(folder))
    del sys.modules["shop"]


# -- the program ---------------------------------------------------------------------------------------------------
def test_what_it_declares(shop: types.ModuleType) -> None:
    jobs = {name: found for name, found in vars(shop).items() if isinstance(found, Job)}
    assert list(jobs) == ["tally", "charge", "tick", "user_days", "strict"]
    assert [each.kind for each in jobs.values()].count("frame") == 1
    assert jobs["tally"].snapshot_every == 60


def test_its_tests_pass(shop: types.ModuleType) -> None:
    shop.test_tally()
    shop.test_strict()


def test_charge_knows_the_price_of_its_time(shop: types.ModuleType) -> None:
    test = JobTest(shop.charge)
    for cents in (3, 4):
        test.feed({shop.prices: [shop.Price("/tea", cents)]})
        out = test.feed({shop.clicks: [shop.Click("ann", "/tea")]})
        assert out[shop.bills].to_pylist() == [{"user": "ann", "cents": cents}]


def test_a_source(shop: types.ModuleType) -> None:
    test = JobTest(shop.tick)
    assert [test.feed()[shop.ticks].to_pylist() for _ in range(2)] == [[{"number": 1}], [{"number": 2}]]


@pytest.mark.slow
@pytest.mark.timeout(300)  # JVMs that begin cold
def test_its_test_of_an_engine_passes(shop: types.ModuleType) -> None:
    require_spark()
    shop.test_killed()


@contextmanager
def in_background(line: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """An engine whose Spark is ready, until the end of its block, where it must still run.

    Commands that only ask whether it has begun would take the processor from it.
    """
    log = folder / "engine.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(["sh", "-c", f"exec {line} {CONF}"], cwd=folder, env=environment, stderr=out) as process,
    ):
        try:
            eventually(lambda: " is ready" in log.read_text() or process.poll() is not None, seconds=240)
            yield
            assert process.poll() is None
        finally:
            process.terminate()
            print(log.read_text())
        assert process.wait(90) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)  # a JVM that begins cold
def test_its_commands_show_what_it_says(shop: types.ModuleType, tidelog_server: Server, tmp_path: Path) -> None:
    """And its frame job begins: its frames fit the topics."""
    require_spark()
    assert shop.__file__ is not None
    (tmp_path / "shop.py").write_text(Path(shop.__file__).read_text())
    program = tmp_path / "tidelog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelog.cli "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TIDELOG_URL": tidelog_server.url,
    }  # fmt: skip

    def said(line: str) -> str:
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (block,) = [code for language, code in BLOCKS if language == "sh"]
    lines = block.splitlines()
    (background,) = [line for line in lines if line.endswith(" &")]
    assert said("tidelog jobs add shop:user_days").startswith("user_days: added")
    with in_background(background.removesuffix(" &"), tmp_path, environment):
        for line in lines:
            if line == background:
                continue
            if shown := SHOWN.search(line):
                eventually(partial(shows, said, line, shown[1]), seconds=90)
            else:
                said(line)
        eventually(partial(shows, said, "tidelog jobs status user_days", "status        running"), seconds=90)
        assert "last error" not in said("tidelog jobs status user_days")


def shows(said: Callable[[str], str], line: str, text: str) -> bool:
    return text in said(line)


@pytest.mark.slow
def test_its_frame_job(shop: types.ModuleType, spark: SparkSession) -> None:
    noon = datetime(2026, 5, 1, 12)  # noqa: DTZ001 - Spark takes it in the zone of its session
    seen = [(user, "/", noon + timedelta(hours=at)) for at, user in enumerate(["ann", "bob", "ann"] * 6)]
    found = shop.user_days(spark.createDataFrame(seen, "user string, page string, _ts timestamp")).collect()
    clicks = {(row["user"], f"{row['day']:%d}"): row["clicks"] for row in found}
    assert clicks == {("ann", "01"): 8, ("bob", "01"): 4, ("ann", "02"): 4, ("bob", "02"): 2}


# -- the tables ----------------------------------------------------------------------------------------------------
def test_every_option_is_there_with_its_default() -> None:
    documented = rows("| option of `@job` |")
    parameters = inspect.signature(job).parameters
    assert documented.keys() == parameters.keys()
    for name, text in documented.items():
        default = parameters[name].default
        value = int(re.sub(r"\D", "", text) or 0)
        if name == "max_bytes":
            assert (text, value << 20) == ("64 MiB", default)
        elif isinstance(default, int | float):
            assert value == default
        elif isinstance(default, str):
            assert text == f'`"{default}"`'
        elif name == "on_error":
            assert (text, list(default)) == ("`[Halt()]`", [Halt()])
        else:
            assert (text, default) in (("none", None), ("none", ()), ("the function's", None))


def test_every_option_of_an_engine_is_there_with_its_default() -> None:
    documented = rows("| option of an engine |")
    options = {each.opts[0]: each for each in engine.params}
    assert documented.keys() == options.keys()
    for name in ("--lease", "--grace", "--replicas"):
        assert float(re.sub(r"\D", "", documented[name])) == options[name].default
    assert documented["--master"] == f"`{options['--master'].default}`"
    assert [name for name, each in options.items() if each.required] == ["--state-dir"]


def test_every_command_is_there() -> None:
    documented = rows("| command |")
    assert {name.removeprefix("tidelog jobs ") for name in documented} == set(jobs_commands.commands)


def test_every_member_of_batches_and_states_is_there() -> None:
    public = {each.name for each in fields(MicroBatch)} | {name for name in vars(MicroBatch) if name[0] != "_"}
    assert rows("| attribute |").keys() == public
    documented = rows("| method |").keys() - {"ttl"}
    assert {name.partition("(")[0] for name in documented} == {name for name in vars(State) if name[0] != "_"}
    for call in documented:
        name, _, given = call.removesuffix(")").partition("(")
        parameters = inspect.signature(getattr(State, name)).parameters
        assert [each.partition("=")[0] for each in given.split(", ")] == list(parameters)[1:]


def test_every_error_that_stops_a_job_is_there() -> None:
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, JobError)}
    assert rows("| error |").keys() == kinds


def test_the_drivers_of_object_stores() -> None:
    for scheme, driver in re.findall(r"^\| `(\w+)://[^`]*` \| `pip install (\w+)`", TEXT, re.MULTILINE):
        assert DRIVERS[scheme] == driver


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = ROOT / "docs" / path if path else ROOT / "docs" / "jobs.md"
        assert file.exists(), target
        titles = re.findall(r"^##+ (.*)$", file.read_text(), re.MULTILINE)
        headings = {re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not anchor or anchor in headings, target
