"""The examples of docs/queries.md run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="no duckdb here (pip install 'tidelog[sql]')")

from click.testing import CliRunner

from tidelog import Client
from tidelog.cli.program import main
from tidelog.testing import Server
from tidelog.topics import Topic

pytestmark = pytest.mark.quick
PAGE = (Path(__file__).parents[3] / "docs" / "queries.md").read_text()
COMMANDS = re.findall(r"^    (tidelog (?:sql|export) (?!.*s3:).*?)(?: \| .*)?$", PAGE, re.MULTILINE)


def test_the_commands(
    client: Client, tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client.tappend("weather", {"city": "Oslo", "celsius": "-3.5"})
    topic = Topic[dict[str, str]]("shop:orders", dict[str, str], url=tidelog_server.url)
    topic.sync.send({"item": "tea"})
    topic.sync.close()
    client.tappend("orders", {"item": "tea"})
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        done = CliRunner().invoke(main, [*shlex.split(command)[1:], "--url", tidelog_server.url])
        assert done.exit_code == 0, (command, done.output)
    assert (tmp_path / "weather.parquet").exists()
    assert list(tmp_path.glob("lake/orders/*/*.parquet"))


def test_the_programs(client: Client, tidelog_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    variables: dict[str, Any] = {}
    for program in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        ours = program.replace("Client()", f"Client({tidelog_server.url!r})")
        exec(ours.replace("redis://localhost:6379", tidelog_server.url), variables)
    assert capsys.readouterr().out.count("37.5") == 2
    assert client.tlen("rain") == 2
