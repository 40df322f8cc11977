"""tour.redis through redis-cli: the same text on the terminal as from redis-server, and the same JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.foreign.servers import Target, until

TOUR = Path(__file__).with_name("tour.redis")
NEWER = {
    "inactive", "idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added", "iids-duplicates",
    "nacked-count",
}  # fmt: skip
MASKED = {"idle", "radix-tree-keys", "radix-tree-nodes"}

pytestmark = pytest.mark.skipif(
    shutil.which("redis-cli") is None, reason="no redis-cli here (Debian: apt-get install redis-tools)"
)


def commands() -> list[str]:
    return [line for line in TOUR.read_text().splitlines() if line and not line.startswith("#")]


def cli(target: Target, *options: str, lines: list[str]) -> list[str]:
    """What redis-cli prints for each command: an empty line ends each but for errors, so a marker is echoed between."""
    script = "".join(f"{line}\nECHO --------\n" for line in lines)
    command = ["redis-cli", "-p", str(target.port), *options]
    ran = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=True)
    return re.split(r'"--------"\n*', ran.stdout)[:-1]


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "?" if key in MASKED else shown(item) for key, item in value.items() if key not in NEWER}
    return [shown(item) for item in value] if isinstance(value, list) else value


def test_on_a_terminal(both: tuple[Target, Target]) -> None:
    lines = [line for line in commands() if not line.startswith(("XINFO STREAM", "XINFO CONSUMERS"))]
    theirs, mine = (cli(target, "--no-raw", lines=lines) for target in both)
    assert len(theirs) == len(lines)
    for line, expected, got in zip(lines, theirs, mine, strict=True):
        if line.startswith("XPENDING") and " - + " in line:
            expected, got = (re.sub(r"3\) \(integer\) \d+", "3) idle", text) for text in (expected, got))
        assert got == expected, line


def test_as_json(both: tuple[Target, Target]) -> None:
    """Over RESP3, where XINFO and XREAD answer maps."""
    lines = commands()
    theirs, mine = (cli(target, "--json", lines=lines) for target in both)
    assert len(theirs) == len(lines)
    for line, expected, got in zip(lines, theirs, mine, strict=True):
        if line.startswith("XPENDING") and " - + " in line:
            expected, got = (re.sub(r"(\",)\d+(,\d+\])", r"\1?\2", text) for text in (expected, got))
            assert got == expected, line
        else:
            assert shown(_parsed(got)) == shown(_parsed(expected)), line


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(
    "words",
    [
        ["XREAD", "BLOCK", "0", "STREAMS", "ferry:north", "ferry:south", "$", "$"],
        ["XREADGROUP", "GROUP", "pilots", "Nora", "BLOCK", "0", "COUNT", "5", "STREAMS", "ferry:south", ">"],
    ],
    ids=lambda words: words[0],
)
def test_waiting(target: Target, words: list[str]) -> None:
    with redis.Redis(port=target.port) as client:
        client.xgroup_create("ferry:south", "pilots", mkstream=True)
        command = ["redis-cli", "--no-raw", "-p", str(target.port), *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
            until(lambda: client.info("clients")["blocked_clients"] == 1)
            client.xadd("ferry:south", {"ship": "Ida"}, id="7-7")
            printed, _ = waiting.communicate(timeout=30)
    assert printed.splitlines()[:4] == [
        '1) 1) "ferry:south"',
        '   2) 1) 1) "7-7"',
        '         2) 1) "ship"',
        '            2) "Ida"',
    ]
