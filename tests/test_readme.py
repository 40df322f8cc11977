"""Each command block of the README, of docs/tour.md, and of docs/redis-streams.md runs as a reader would run it, on a
started server, and prints what it says.

A comment in a block may say what is printed::

    # prints TEXT               this line; an ID stands for any ID where TEXT begins with "an ID such as"
    # then TEXT                 the line after it
    # shows TEXT                a line with TEXT in it, once what was started has come up

Any other comment is a remark: the command must only succeed. A block of YAML is a file, named in its first line, in the
folder where commands run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.replication.cluster import wait_until
from tests.replication.sentinels import sentinels
from tests.tidelog.spark.conftest import spark
from tests.tidelog.spark.sparkkit import require_spark
from tests.waiting import PATIENCE
from tidelog.testing import Server, free_port, running_server

__all__ = ["spark"]

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"# (?:prints|then) (.*)$", re.MULTILINE)
SHOWN = re.compile(r"# shows (.*)$", re.MULTILINE)
ANY_ID = "an ID such as "

# What sets up a machine, and what fixtures start in its place. tests/test_build.py tests what an installation does, and
# tests/test_first_minutes.py what a user does with a quickstart.
NOT_HERE = ("scripts/", "python3.11 -m venv ", "pip install ", "redis-sentinel ", "tidelog quickstart ")
GROUP = "--coordinator "  # servers with this option are started as written, but on other ports: 7001 to 7003


@dataclass
class Block:
    language: str
    text: str
    line: int
    page: str

    @property
    def name(self) -> str:
        return f"{Path(self.page).stem}-line-{self.line}"


def blocks(page: str = "README.md") -> list[Block]:
    text = (ROOT / page).read_text()
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1, page) for m in FENCE.finditer(text)]


BLOCKS = blocks() + blocks("docs/tour.md")
STREAMS = blocks("docs/redis-streams.md")
SPARK = [block for block in BLOCKS if "pyspark" in block.text]
ENGINES = [block for block in BLOCKS if "tidelog jobs engine" in block.text]
FILES = [block for block in BLOCKS if block.language == "yaml"]
OTHERS = [block for block in BLOCKS if block not in SPARK + ENGINES + FILES]
CONF = "--conf 'spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' --conf spark.driver.memory=700m"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def replica(server: Server) -> Iterator[Server]:
    """What the README starts on port 6380."""
    with running_server(replicaof=f"{server.host} {server.port}") as replica:
        yield replica


@pytest.fixture(scope="module")
def sentinel_port(server: Server, replica: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """What the README starts on port 26379."""
    with sentinels(tmp_path_factory.mktemp("sentinel"), server.port, 1) as watch:
        yield watch.ports[0]


@pytest.fixture(scope="module")
def environment(server: Server, replica: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The reader's programs, turned to these servers."""
    programs = tmp_path_factory.mktemp("programs")
    shims = {
        "tidelog": f'exec {sys.executable} -m tidelog.cli "$@"',
        "tidelog-server": f'exec {sys.executable} -m _tidelog_server "$@"',
    }
    if redis_cli := shutil.which("redis-cli"):
        shims["redis-cli"] = (
            f'if [ "$1 $2" = "-p 6380" ]; then shift 2; port={replica.port}; else port={server.port}; fi\n'
            f'exec {redis_cli} --no-raw -e -p "$port" "$@"'  # as on a terminal
        )
    for name, command in shims.items():
        shim = programs / name
        shim.write_text(f"#!/bin/sh\n{command}\n")
        shim.chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TIDELOG_URL": server.url,
        "TIDELOG_FLOWS": f"http://127.0.0.1:{free_port()}",
    }


@pytest.fixture
def in_background(environment: dict[str, str]) -> Iterator[Callable[[str, Path], None]]:
    """Runs a line that ends with an ampersand until the end of its block, where it must still run."""
    started: list[subprocess.Popen[bytes]] = []

    def start(line: str, cwd: Path) -> None:
        started.append(subprocess.Popen(["sh", "-c", f"exec {line}"], env=environment, cwd=cwd))

    yield start
    for process in started:
        assert process.poll() is None, f"ended with status {process.returncode}"
        process.terminate()
        assert process.wait(90) == 0


@pytest.mark.parametrize("block", OTHERS, ids=lambda block: block.name)
def test_block(
    block: Block, server: Server, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_block(block, server, environment, tmp_path, request, PATIENCE)


@pytest.mark.parametrize("block", STREAMS, ids=lambda block: block.name)
def test_block_of_the_page_on_redis_streams(
    block: Block, server: Server, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_block(block, server, environment, tmp_path, request, PATIENCE)


def run_block(
    block: Block, server: Server, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest,
    timeout: float,
) -> None:  # fmt: skip
    if block.language == "python":
        if "pyarrow" in block.text:
            pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
        code = block.text
        if "26379" in code:
            code = code.replace("26379", str(request.getfixturevalue("sentinel_port")))
        code = code.replace("6379", str(server.port))
        result = run([sys.executable, "-W", "error", "-c", code], environment, tmp_path)
        assert_printed(result.stdout, PRINTED.findall(code))
        return
    assert block.language == "sh"
    if "redis-cli" in block.text and not shutil.which("redis-cli"):
        pytest.skip("redis-cli is not installed (Debian: apt-get install redis-tools)")
    if "curl " in block.text and not shutil.which("curl"):
        pytest.skip("curl is not installed (Debian: apt-get install curl)")
    for file in FILES:
        (tmp_path / file.text.split()[1]).write_text(file.text.replace("6379", str(server.port)))
    listening = environment["TIDELOG_FLOWS"].removeprefix("http://")
    text = block.text.replace("localhost:9898", listening)
    for port in ("7001", "7002", "7003") if GROUP in text else ():
        text = text.replace(port, str(free_port()))
    for line in text.splitlines():
        if line.startswith(NOT_HERE):
            continue
        if line.startswith("tidelog-server ") and GROUP in line:
            request.getfixturevalue("in_background")(line.removesuffix(" &"), tmp_path)
            continue
        if line.startswith("tidelog-server "):  # fixtures start the servers; here its arguments are tested
            arguments = shlex.split(line.removesuffix(" &"))[1:]
            command = [sys.executable, "-m", "_tidelog_server", *arguments, "--test-config"]
            assert run(command, environment, tmp_path).stdout.startswith("Configuration OK")
            continue
        if line.startswith("tidelog worker "):
            request.getfixturevalue("in_background")(line.removesuffix(" &"), tmp_path)
            continue
        if line.startswith("tidelog flow run "):
            in_background = request.getfixturevalue("in_background")
            in_background(f"{line.removesuffix(' &')} --listen {listening}", tmp_path)
            continue
        if line.startswith("tidelog jobs engine "):
            request.getfixturevalue("in_background")(f"{line.removesuffix(' &')} --path {ROOT} {CONF}", tmp_path)
            continue
        shown = SHOWN.findall(line)
        for text in shown:
            again = partial(run, ["sh", "-c", line], environment, tmp_path, check=False)
            wait_until(partial(shows, text, again), f"{line} to show {text}", timeout)
        if not shown:
            assert_printed_if_stated(line, run(["sh", "-c", line], environment, tmp_path).stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)  # a JVM that begins cold
@pytest.mark.parametrize("block", ENGINES, ids=lambda block: block.name)
def test_block_with_an_engine(
    block: Block, server: Server, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require_spark()
    run_block(block, server, environment, tmp_path, request, 90)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_spark_block(server: Server, tmp_path: Path) -> None:
    """It runs in this process, whose session it gets: a JVM of its own would take long to start."""
    (block,) = SPARK
    code = block.text.replace("6379", str(server.port)).replace("./checkpoints", str(tmp_path))
    with server.client() as client:
        client.tappend("temps", {"sensor": "03", "celsius": 20.9})
        client.tappend("temps", {"sensor": "04", "celsius": 22.5})
        exec(compile(code, "README.md", "exec"), {})
        written = {entry.text()["sensor"] for entry in client.trange("warm") if entry}
    assert "04" in written
    assert "03" not in written


def run(
    command: list[str], environment: dict[str, str], cwd: Path, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0 or not check, f"{command[-1]}\n{result.stdout}\n{result.stderr}"
    return result


def shows(text: str, again: Callable[[], subprocess.CompletedProcess[str]]) -> bool:
    done = again()
    return text in done.stdout and done.returncode == 0


def assert_printed_if_stated(line: str, printed: str) -> None:
    if stated := PRINTED.findall(line):
        assert_printed(printed, stated)


def assert_printed(printed: str, expected: list[str]) -> None:
    lines = printed.splitlines()
    assert len(lines) == len(expected), lines
    for line, text in zip(lines, expected, strict=True):
        if text.startswith(ANY_ID):
            line, text = (re.sub(r"\d{13}[.-]\d+", "ID", each) for each in (line, text.removeprefix(ANY_ID)))
        assert line == text, f"printed {line!r}, the README says {text!r}"


def test_an_id_such_as_another_is_an_id() -> None:
    assert_printed('"1700000000000.0"\n', ['an ID such as "1486475519747.0"'])
    with pytest.raises(AssertionError, match="the README says"):
        assert_printed("(integer) 1\n", ['an ID such as "1486475519747.0"'])
    with pytest.raises(AssertionError, match="the README says"):
        assert_printed('"1700000000000.0"\n', ['"1486475519747.0"'])


def test_every_block_was_found_and_says_its_language() -> None:
    text = "".join((ROOT / page).read_text() for page in ("README.md", "docs/tour.md"))
    assert text.count("```") == 2 * len(BLOCKS)
    assert {block.language for block in BLOCKS} == {"sh", "python", "yaml"}
    assert all(block.text.startswith("# ") for block in FILES)


def test_the_scripts_it_names_are_there() -> None:
    named = {line.split()[0] for block in BLOCKS for line in block.text.splitlines() if line.startswith("scripts/")}
    assert {"scripts/demo", "scripts/test"} <= named
    assert all(os.access(ROOT / name, os.X_OK) for name in named)


def test_the_machine_that_builds_runs_its_test_command() -> None:
    assert "exec scripts/test\n" in (ROOT / ".ci/run").read_text()
