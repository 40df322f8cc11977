"""An engine looks at its object store before it takes part: else each job would find out, at its first snapshot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("fsspec", reason="no fsspec here (pip install 'tidelog[jobs]')")

from tidelog.cli import engine as program


class BegunError(Exception):
    """It runs."""


def begun(store: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """What the program says before the engine runs."""

    def run(*_: object) -> None:
        raise BegunError

    monkeypatch.setenv("JAVA_HOME", "/java")
    monkeypatch.setattr(program, "_run", run)
    return CliRunner().invoke(program.engine, ["--state-dir", str(folder / "state"), "--store", store])


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("nosuch://x/y", "nosuch://x/y is not the URL of an object store"),
        ("file:///proc/nothing", "can't write"),
        ("gs://x/y", "pip install gcsfs"),
    ],
)  # fmt: skip
def test_one_that_can_not_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, said: str) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # not installed
    result = begun(store, tmp_path, monkeypatch)
    assert result.exit_code == 1
    assert f"--store: snapshots can't be stored at {store}" in result.output
    assert said in result.output
    assert "Check the URL" in result.output


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_one_that_can_be_used_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    assert isinstance(begun(f"{scheme}{tmp_path}/store", tmp_path, monkeypatch).exception, BegunError)
    assert os.listdir(tmp_path / "store") == []


def test_none_needs_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(begun("", tmp_path, monkeypatch).exception, BegunError)
