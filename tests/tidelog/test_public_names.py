"""Every name that users were told of stays, wherever its code lies."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tidelog
import tidelog.client
import tidelog.spark
import tidelog.testing

ROOT = Path(__file__).parents[2]

#: By module: what README.md, docs/ and docstrings name.
NAMES = {
    "tidelog": [
        "Access", "AsyncClient", "Batch", "Client", "ConflictError", "CrossGroupError", "Delayed", "DelayedPage",
        "Entry", "GroupInfo", "Info", "MISSING", "Missing", "NoGroupError", "NoStageError", "Pending", "PendingSummary",
        "Published", "Span", "StaleEpochError", "StreamId", "StreamPolicy", "__version__", "calls",
    ],
    "tidelog.client": [
        "Access", "Client", "ConflictError", "CrossGroupError", "DEFAULT_URL", "NoGroupError", "NoStageError", "PAGE",
        "StaleEpochError",
    ],
    "tidelog.spark": ["native", "register"],
    "tidelog.workers": [
        "App", "AppError", "CallNext", "DeadLetter", "EarlyReturnError", "Event", "Events", "Halt", "LogFields",
        "Middleware", "Park", "Pause", "Policy", "Retry", "Skip", "Stats", "Take", "Timing", "Worker", "deduplicate",
        "timing", "to_prometheus", "tracing",
    ],
}  # fmt: skip
TESTING = ["Server", "ServerError", "free_port", "running_server", "tidelog_process", "tidelog_server"]


@pytest.mark.parametrize("module", NAMES)
def test_names_of_a_module(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == NAMES[module]
    assert all(hasattr(loaded, name) for name in NAMES[module])


def test_names_that_two_modules_have_are_the_same() -> None:
    for name in set(NAMES["tidelog"]) & set(NAMES["tidelog.client"]):
        assert getattr(tidelog, name) is getattr(tidelog.client, name)


def test_the_test_kit() -> None:
    assert all(hasattr(tidelog.testing, name) for name in TESTING)


def test_calls_have_each_command_and_their_type() -> None:
    assert isinstance(tidelog.calls.tlen("k"), tidelog.calls.Call)
    methods = {name for name, method in inspect.getmembers(tidelog.Client, inspect.isfunction) if name[0] == "t"}
    assert methods - {"together", "to_arrow"} <= set(vars(tidelog.calls))


@pytest.mark.parametrize(
    "statement",
    [
        "from tidelog import Client, AsyncClient, calls",
        "from tidelog.client import Client, DEFAULT_URL, PAGE",
        "from tidelog.testing import Server, running_server",
        "from tidelog.spark import native, register",
        "import tidelog.cli.program as cli; [cli.main.get_command(None, name) for name in cli.main.modules]",
        "import tidelog.client.publish",
        "import tidelog.spark.options",
    ],
)
def test_a_first_import_without_the_extra_spark(statement: str) -> None:
    """Each in an interpreter of its own: whichever module comes first, there is no circle, and no Spark is needed."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['numpy', 'pandas', 'pyarrow', 'pyspark']))"
    subprocess.run([sys.executable, "-W", "error", "-c", f"{blocked}; {statement}"], cwd=ROOT, check=True)


def test_programs() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"tidelog", "tidelog-server"}
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    for module in ("tidelog.cli", "_tidelog_server"):
        command = [sys.executable, "-m", module, "--version"]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert tidelog.__version__ in shown


def test_the_name_that_spark_finds() -> None:
    pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")
    source = importlib.import_module("pyspark_tidelog").DefaultSource
    assert source.name() == "tidelog"
