"""subprocess with real programs: restarts, kills of both sides, acknowledgements, limits, ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.byteskit import Reader, running, write
from tests.tidelog.flows.test_stream_kill import wait
from tests.waiting import until
from tidelog.flows import Flow, FlowFileError
from tidelog.flows.connectors.processes import child
from tidelog.flows.connectors.processes.subprocess import FOUND, SubprocessConnector, SubprocessOptions
from tidelog.flows.files import read_files
from tidelog.flows.files.restrictions import connector as refused
from tidelog.flows.service.views import without_secrets
from tidelog.flows.testing import FlowTest

SOON = {"retry": {"first": "10ms", "most": "50ms"}}
EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "commands.yaml"


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-uc", code, *args]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ProcessLookupError):
        return False


def pid_of(one: Any, name: str = "in") -> int:
    return int(one.graph.connectors[name].context.described["pid"])


# -- source ------------------------------------------------------------------------------------------------------
def test_lines_come_in_and_the_program_is_restarted() -> None:
    async def main() -> None:
        reader = Reader("subprocess", args=["printf", '{"a": 1}\nx\n2'], reconnect=SOON)
        async with running(reader.flow):
            await until(lambda: len(reader.values) >= 6)
            assert reader.values[:4] == [{"a": 1}, 2, {"a": 1}, 2]
            assert [each.value for each in reader.bad[:2]] == [b"x", b"x"]

    asyncio.run(main())


def test_exit_status_0_can_end_the_source(tmp_path: Path) -> None:
    """The first run fails, within a message."""
    code = (
        "import os, sys; new = not os.path.exists(sys.argv[1]); open(sys.argv[1], 'w')\n"
        "print(1); print(end='2')\nsys.exit(new)"
    )

    async def main() -> None:
        reader = Reader("subprocess", args=python(code, str(tmp_path / "run")), restart="on_failure", reconnect=SOON)
        async with running(reader.flow) as one, asyncio.timeout(20):
            await one.finished()
            assert reader.values == [1, 1, 2]
            (bad,) = reader.bad
            assert bad.value in (2, b"2")
            assert bad.meta["error"] == "the program exited with status 1 within this message"

    asyncio.run(main())


def test_events_are_retried_by_the_runtime() -> None:
    async def main() -> None:
        reader = Reader("subprocess", args=["printf", "1\n2\n"], restart="on_failure")
        reader.fail = {"1": 3}
        async with running(reader.flow) as one, asyncio.timeout(20):
            await one.finished()
            assert sorted(reader.values) == [1, 2]

    asyncio.run(main())


def test_a_program_that_is_killed_is_restarted(tmp_path: Path) -> None:
    code = "import sys, time\nprint(1)\nprint(end='2', flush=True)\ntime.sleep(60)"

    async def main() -> None:
        reader = Reader("subprocess", args=python(code), reconnect=SOON)
        async with running(reader.flow) as one:
            await until(lambda: reader.values == [1])
            first = pid_of(one)
            os.kill(first, signal.SIGKILL)
            await until(lambda: reader.values == [1, 1])
            assert "was ended by SIGKILL" in one.graph.connections["in"].error
            assert [each.meta["error"] for each in reader.bad] in (
                [], ["the program was ended by SIGKILL within this message"],
            )  # fmt: skip
            second = pid_of(one)
            assert second != first
        assert not alive(second)

    asyncio.run(main())


def test_a_program_that_is_missing_is_reported() -> None:
    async def main() -> None:
        reader = Reader("subprocess", args=["no-such-program", "x"])
        async with running(reader.flow, started=False) as one:
            await until(lambda: one.graph.connections["in"].error)
            assert "there is no program 'no-such-program', or it is not executable" in one.graph.connections["in"].error

    asyncio.run(main())
    options = SubprocessOptions(args=["no-such-program"])
    assert "there is no program" in SubprocessConnector.option_warnings(options, source=True)[0]
    assert SubprocessConnector.option_warnings(SubprocessOptions(args=["cat"]), source=True) == []


def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    async def main() -> None:
        args = ["printf", "%s\n", "$HOME; touch x", "`id`", "*"]
        reader = Reader("subprocess", args=args, codec="string", restart="on_failure", directory=str(tmp_path))
        async with running(reader.flow) as one, asyncio.timeout(20):
            await one.finished()
            assert reader.values == args[2:]

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_environment_and_directory(tmp_path: Path) -> None:
    async def main() -> None:
        code = "import os; print(os.environ['GREETING'], os.getcwd(), 'PATH' in os.environ)"
        options: dict[str, Any] = {"environment": {"GREETING": "hello"}, "directory": str(tmp_path), "codec": "string"}
        reader = Reader("subprocess", args=python(code), restart="on_failure", **options)
        async with running(reader.flow) as one, asyncio.timeout(20):
            await one.finished()
            assert reader.values == [f"hello {tmp_path} True"]

    asyncio.run(main())


def test_a_program_that_writes_without_end_waits_for_the_flow() -> None:
    async def main() -> None:
        reader = Reader("subprocess", args=["yes", "1"], max_unsettled=5)
        reader.fail = {"1": 10**9}
        async with running(reader.flow) as one:
            connector: Any = one.graph.connectors["in"]
            await until(lambda: connector.backlog >= FOUND)
            size = connector._read_bytes
            await asyncio.sleep(0.1)
            assert connector._read_bytes == size <= 2 * child.CHUNK
            pid = pid_of(one)
        assert not alive(pid)

    asyncio.run(main())


def test_a_line_that_is_too_long_does_not_fill_the_memory() -> None:
    async def main() -> None:
        script = "yes | tr -d '\\n' | head -c 3000000; echo; echo 1"
        reader = Reader("subprocess", args=["sh", "-c", script], max_bytes=1000)
        async with running(reader.flow):
            await until(lambda: 1 in reader.values)
            assert len(reader.bad[0].value) <= 1000

    asyncio.run(main())


def test_children_of_a_program_that_has_ended_cannot_keep_its_output(tmp_path: Path) -> None:
    async def main() -> None:
        script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo 1"
        reader = Reader("subprocess", args=["sh", "-c", script], restart="on_failure")
        async with running(reader.flow) as one, asyncio.timeout(20):
            await one.finished()
            assert reader.values == [1]
            await until(lambda: not alive(int((tmp_path / "pid").read_text())))

    asyncio.run(main())


def test_standard_error_is_logged_with_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tidelog.flows")

    async def main() -> None:
        code = (
            "import sys\n"
            "for n in range(100): print('trouble', n, '\\x1b[1m', 'https://u:pw@h/' * (n == 0), file=sys.stderr)\n"
            "print(1)"
        )
        reader = Reader("subprocess", args=python(code), restart="on_failure")
        async with running(reader.flow) as one, asyncio.timeout(20):
            await one.finished()
            await until(lambda: "further lines" in caplog.text)

    asyncio.run(main())
    said = [each.getMessage() for each in caplog.records if "trouble" in each.getMessage()]
    assert len(said) == child.LINES
    assert "reader: in: trouble 0 ?[1m https://***@h/" in said
    assert "90 further lines of standard error" in caplog.text


# -- sink --------------------------------------------------------------------------------------------------------
def test_lines_go_out_and_the_program_can_finish(tmp_path: Path) -> None:
    """The program gets the end of its input, and processes everything before it is ended."""
    code = "import sys, time\nfor line in sys.stdin: time.sleep(.002); open(sys.argv[1], 'a').write(line)"
    file = tmp_path / "out"
    asyncio.run(write(list(range(100)), "subprocess", args=python(code, str(file))))
    assert file.read_text().split() == [str(number) for number in range(100)]


def test_a_program_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\nfor line in sys.stdin: pass\ntime.sleep(60)"
    )
    file = tmp_path / "pid"

    async def main() -> None:
        flow = Flow("f")
        flow.connector("in", "null")
        flow.connector("out", "subprocess", args=python(code, str(file)), stop_timeout="100ms")
        flow.connect("in -> out")
        async with running(flow, started=False):
            await until(lambda: file.exists() and file.read_text())
        assert not alive(int(file.read_text()))

    asyncio.run(main())


def test_acknowledged_events_reach_the_program_whatever_is_killed(tmp_path: Path) -> None:
    """It dies after each third message; what it has not acknowledged is sent again."""
    code = (
        "import os, sys\n"
        "for number, line in enumerate(sys.stdin):\n"
        "    if number == 3: os.kill(os.getpid(), 9)\n"
        "    open(sys.argv[1], 'a').write(line)\n"
        "    print('ok', flush=True)"
    )
    file = tmp_path / "out"
    options: dict[str, Any] = {"args": python(code, str(file)), "acknowledge": True, "reconnect": SOON, "codec": "json"}

    async def main() -> None:
        await write(list(range(9)), "subprocess", **options)

    asyncio.run(main())
    assert sorted(set(map(int, file.read_text().split()))) == list(range(9))


def test_a_program_as_a_filter() -> None:
    """Answers are events of the same connector. A drain waits for those that are expected."""

    async def main() -> None:
        code = "import sys, time\nfor line in sys.stdin: time.sleep(.01); print(int(line) * 2, flush=True)"
        seen: list[Any] = []

        async def source() -> Any:
            for number in range(20):
                yield number

        async def keep(value: Any) -> None:
            seen.append(value)

        flow = Flow("filter")
        flow.connector("in", source)
        flow.connector("double", "subprocess", args=python(code), acknowledge=True)
        flow.connector("out", keep)
        flow.connect("in -> double", "double -> out")
        async with running(flow, started=False) as one:
            await until(lambda: seen)
            await one.drain(15)
            assert seen == [number * 2 for number in range(20)]

    asyncio.run(main())


# -- kill of this process, access, options -------------------------------------------------------------------------
FLOW = """
flows:
  main:
    connectors:
      in: {type: subprocess, args: [sh, -c, "echo $$ > pid; exec sleep 1000"]}
      out: {type: "null"}
    connect: [in -> out]
"""


@pytest.mark.skipif(child._tied() == [], reason="subprocess: setpriv of util-linux is not installed")
def test_the_program_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    command = [sys.executable, "-m", "tidelog.cli", "flow", "run", "flow.yaml", "--listen", "none"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as started:
        try:
            wait(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
            pid = int((tmp_path / "pid").read_text())
            assert alive(pid)
            started.kill()
            wait(lambda: not alive(pid))
        finally:
            started.kill()
            with contextlib.suppress(OSError):
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_flows_from_http_cannot_run_programs_and_values_of_the_environment_are_hidden() -> None:
    ((_, said),) = refused("subprocess", {"args": ["id"]})
    assert said.startswith("connectors of type subprocess run programs: not permitted in flows from HTTP")
    shown = without_secrets({"args": ["a"], "environment": {"X": "y"}})
    assert shown == {"args": ["a"], "environment": {"X": "***"}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"args": []}, "args is empty: name a program"), ({"args": "ls -l"}, "Expected `array`"),
        ({"args": ["a\0"]}, "null characters"), ({"args": ["a"], "environment": {"a=": "b"}}, "contains ="),
        ({"args": ["a"], "acknowledge": True, "preprocessors": []}, "acknowledge requires a preprocessor that splits"),
        ({"args": ["a"], "restart": "never"}, "restart"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    flow = Flow("f")
    with pytest.raises(FlowFileError) as raised:  # noqa: PT012 - either of them
        flow.connector("in", "subprocess", **options)
        flow.connector("out", "null")
        flow.connect("in -> out")
        flow.spec()
    assert said in str(raised.value)


def test_the_example() -> None:
    spec = read_files([EXAMPLE], server="redis://localhost:6379").flows["commands"]
    with FlowTest(spec) as test:
        test.feed({"host": "example.org"}, source="in")
        assert test.outputs("upper") == [{"host": "example.org"}]
    args: Any = spec.connectors["upper"].options

    async def main() -> None:
        seen: list[Any] = []

        async def keep(value: Any) -> None:
            seen.append(value)

        async def source() -> Any:
            yield {"host": "example.org"}

        flow = Flow("f")
        flow.connector("in", source)
        flow.connector("upper", "subprocess", args=args.args, acknowledge=args.acknowledge)
        flow.connector("out", keep)
        flow.connect("in -> upper", "upper -> out")
        async with running(flow, started=False):
            await until(lambda: seen == [{"HOST": "EXAMPLE.ORG"}])

    asyncio.run(main())
