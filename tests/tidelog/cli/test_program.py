"""The tidelog program against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tidelog.cli.program import main
from tidelog.testing import Server, free_port

Run = Callable[..., Result]
#: python -m tidelog.cli, for a Ctrl-C even where the tests run in the background, which has SIGINT ignored.
MAIN = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("tidelog.cli", run_name="__main__")
"""
CSV = "n,colour\n" + "".join(f"{n},c{n % 3}\n" for n in range(1200))


@pytest.fixture
def run(tidelog_server: Server) -> Run:
    def run(*args: object, ok: bool = True) -> Result:
        result = CliRunner().invoke(main, [str(arg) for arg in args], env={"TIDELOG_URL": tidelog_server.url})
        assert (result.exit_code == 0) is ok, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


def process(server: Server, *args: str) -> subprocess.Popen[bytes]:
    """The program as a process of its own, for signals and pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *args, "--url", server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class TestLoad:
    def test_csv(self, run: Run, tidelog_server: Server, tmp_path: Path) -> None:
        file = tmp_path / "a.csv"
        file.write_text(CSV)
        output = run("load", "k", file).output
        with tidelog_server.client() as client:
            entries = client.trange("k")
        assert [entry.text() for entry in entries] == [{"n": str(n), "colour": f"c{n % 3}"} for n in range(1200)]
        assert output.startswith("1,200 rows in ")
        assert f"IDs {entries[0].id} to {entries[-1].id}" in output

    def test_json_lines_with_changing_fields_keep_their_order(
        self, run: Run, tidelog_server: Server, tmp_path: Path
    ) -> None:
        file = tmp_path / "a.jsonl"
        rows = [{"a": str(n)} if n % 2 else {"a": str(n), "b": "x"} for n in range(9)]
        file.write_text("\n".join(map(json.dumps, rows)))
        run("load", "k", file, "--batch", 4)
        with tidelog_server.client() as client:
            assert [entry.text() for entry in client.trange("k")] == rows

    def test_standard_input(self, tidelog_server: Server) -> None:
        with process(tidelog_server, "load", "k", "-") as loading:
            output, _ = loading.communicate(b'{"a": 1}\n{"a": 2}\n')
        assert loading.returncode == 0
        assert output.startswith(b"2 rows in")
        with tidelog_server.client() as client:
            assert client.tlen("k") == 2

    def test_a_bad_row_stops_the_load_and_the_line_to_continue_at_is_printed(
        self, run: Run, tidelog_server: Server, tmp_path: Path
    ) -> None:
        file = tmp_path / "a.csv"
        file.write_text("n\n1\n2\n3,x\n4\n")
        result = run("load", "k", file, ok=False)
        assert "line 4: 2 values for 1 column" in result.output
        assert "2 rows appended. To continue: --from-line 4" in result.output
        file.write_text(file.read_text().replace("3,x", "3"))
        run("load", "k", file, "--from-line", 4)
        with tidelog_server.client() as client:
            assert [entry["n"] for entry in client.trange("k")] == [b"1", b"2", b"3", b"4"]

    def test_bad_rows_are_skipped_and_named(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "a.csv"
        file.write_text("n\n1\n2,x\n3\n4,y\n")
        result = run("load", "k", file, "--on-error", "skip")
        assert "line 3: " in result.stderr
        assert "line 5: " in result.stderr
        assert "2 rows in" in result.stdout
        assert "2 bad rows skipped" in result.stdout

    def test_a_server_that_goes_away(self, tidelog_server: Server) -> None:
        with process(tidelog_server, "load", "k", "-", "--batch", "2") as loading, tidelog_server.client() as client:
            assert loading.stdin is not None
            assert loading.stderr is not None
            loading.stdin.write(b'{"n": 1}\n{"n": 2}\n')
            loading.stdin.flush()
            assert len(client.tread("k", "0", block=20_000)) == 2
            client.redis.ping()  # in a later tick, so the loader has its reply
            tidelog_server.kill()
            loading.stdin.write(b'{"n": 3}\n{"n": 4}\n')
            loading.stdin.close()
            message = loading.stderr.read().decode()
        assert loading.returncode == 1
        assert "2 rows appended. To continue: --from-line 3" in message
        assert "The batch of lines 3 to 4 got no reply" in message

    def test_an_empty_file_and_a_header_alone(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "a.csv"
        file.write_text("")
        assert "must name the columns" in run("load", "k", file, ok=False).output
        file.write_text("n\n")
        assert run("load", "k", file).output.startswith("0 rows")

    def test_a_key_that_is_no_stream(self, run: Run, tidelog_server: Server, tmp_path: Path) -> None:
        with tidelog_server.client() as client:
            client.redis.set("k", "text")
        file = tmp_path / "a.csv"
        file.write_text("n\n1\n")
        output = run("load", "k", file, ok=False).output
        assert "WRONGTYPE" in output
        assert "0 rows appended. To continue: --from-line 1" in output


class TestDump:
    def test_what_is_dumped_can_be_loaded(self, run: Run, tidelog_server: Server, tmp_path: Path) -> None:
        with tidelog_server.client() as client:
            client.tappend("k", [("tag", "a"), ("tag", "b")])
            client.tappend("k", {"raw": b"\xff\x00", b"\xfe": "é\n"})
            client.tmappend("k", ["n"], [(n,) for n in range(2500)])
            file = tmp_path / "dump"
            file.write_text(run("dump", "k").output)
            run("load", "copy", file, "--format", "dump")
            assert [e.pairs for e in client.trange("copy")] == [e.pairs for e in client.trange("k")]

    def test_ranges(self, run: Run, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            ids = [client.tappend("k", {"n": n}) for n in range(5)]

        def dumped(*args: object) -> list[str]:
            return [json.loads(line)["fields"]["n"] for line in run("dump", "k", *args).output.splitlines()]

        assert dumped() == ["0", "1", "2", "3", "4"]
        assert dumped("--start", ids[1], "--end", ids[2]) == ["1", "2"]
        assert dumped("--start", f"({ids[1]}", "--limit", 2) == ["2", "3"]
        assert dumped("--limit", 0) == []
        assert dumped("--start", ids[0].time.isoformat()) == ["0", "1", "2", "3", "4"]
        assert dumped("--start", "2999-01-01T00:00Z") == []
        assert "sensor" not in run("dump", "missing").output
        assert "needs its zone" in run("dump", "k", "--start", "2999-01-01", ok=False).output

    def test_a_pipe_that_is_closed_early(self, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            client.tmappend("k", ["n"], [("x" * 100,)] * 5000)
        with process(tidelog_server, "dump", "k", "--text") as dumping:
            assert dumping.stdout is not None
            assert dumping.stdout.readline().endswith(b"n=" + b"x" * 100 + b"\n")
            dumping.stdout.close()
            assert dumping.stderr is not None
            assert dumping.stderr.read() == b""


class TestTail:
    def test_the_newest_entries_then_new_ones(self, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            for n in range(5):
                client.tappend("k", {"n": n})
            with process(tidelog_server, "tail", "k", "-n", "2", "--limit", "4") as tail:
                assert tail.stdout is not None
                assert tail.stdout.readline().endswith(b" n=3\n")
                assert tail.stdout.readline().endswith(b" n=4\n")
                client.tappend("k", {"n": 5})
                client.tappend("k", {"n": 6})
                rest = tail.stdout.read().splitlines()
            assert [line.split()[-1] for line in rest] == [b"n=5", b"n=6"]
            assert tail.returncode == 0

    def test_from_an_id_as_json(self, run: Run, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            ids = [client.tappend("k", {"n": n}) for n in range(3)]
        output = run("tail", "k", "--from", ids[0], "--json", "--limit", 2).output
        assert [json.loads(line)["id"] for line in output.splitlines()] == [str(ids[1]), str(ids[2])]

    def test_evicted_entries_are_mentioned(self, run: Run, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            ids = [client.tappend("k", {"n": n}) for n in range(3)]
            client.ttrim("k", count=1)
        result = run("tail", "k", "--from", ids[0], "--limit", 1)
        assert "evicted" in result.stderr
        assert result.stdout.endswith(" n=2\n")

    def test_group_with_retry_acknowledges(self, run: Run, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            for n in range(4):
                client.tappend("k", {"n": n})
            run("tail", "k", "--group", "g", "--from", 0, "--retry", 60_000, "--limit", 2)
            assert client.tpending("k", "g").count == 0
            run("tail", "k", "--group", "g", "--retry", 60_000, "--no-ack", "--limit", 2)
            assert client.tpending("k", "g").count == 2

    def test_ctrl_c_ends_it_and_a_restart_does_not(self, tidelog_server: Server) -> None:
        with tidelog_server.client() as client, process(tidelog_server, "tail", "k", "--from", "0") as tail:
            assert tail.stdout is not None
            client.tappend("k", {"n": 0})
            assert tail.stdout.readline().endswith(b" n=0\n")
            tidelog_server.kill()
            tidelog_server.start()
            client.tappend("k", {"n": 1})
            assert tail.stdout.readline().endswith(b" n=1\n")
            tail.send_signal(signal.SIGINT)
            assert tail.wait(10) == 0
            assert tail.stderr is not None
            assert b"retrying" in tail.stderr.read()

    @pytest.mark.parametrize("args", [["--retry", "5"], ["--ttl", "5"], ["--group", "g", "--expire", "5"]])
    def test_options_that_need_others(self, args: list[str]) -> None:
        result = CliRunner().invoke(main, ["tail", "k", *args])
        assert result.exit_code == 2
        assert "need" in result.output


class TestInfo:
    def test_of_a_stream(self, run: Run, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            ids = [client.tappend("k", {"n": n}) for n in range(3)]
            client.tread("k", "0", 1, group="workers", retry=1000)
        output = run("info", "k").output
        assert f"last        {ids[2]}" in output
        (row,) = [line.split() for line in output.splitlines() if line.startswith("workers")]
        assert row[1:4] == [str(ids[0]), "2", "1"]
        assert "no such key" in run("info", "missing", ok=False).output

    def test_of_the_server(self, run: Run, tidelog_server: Server) -> None:
        with tidelog_server.client() as client:
            client.tappend("weather", {"n": 1})
            client.redis.set("not-a-stream", "x")
        output = run("info").output
        assert f"process {tidelog_server.pid}" in output
        assert "\nreplication  leader of 0 replicas\n" in output
        assert "weather" in output
        assert "not-a-stream" not in output


def test_a_server_that_is_not_there() -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    result = CliRunner().invoke(main, ["info", "--url", url])
    assert result.exit_code == 1
    assert result.output.startswith("Error: no answer from redis://127.0.0.1:")
    assert "secret" not in result.output


def test_a_command_imports_no_other_command() -> None:
    code = (
        "import sys; from tidelog.cli.program import main; main(['info', '--help'], standalone_mode=False);"
        "print(*[name for name in sys.modules if name.startswith('tidelog.')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = shown.splitlines()[-1].split()
    assert "tidelog.cli.report" in modules
    assert not [name for name in modules if name.startswith(("tidelog.workers", "tidelog.backup", "tidelog.moving"))]


def test_help_shows_every_command() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    names = main.list_commands(click.Context(main))
    assert {*main.commands, *main.modules} == {*names}
    for name in names:
        assert f"tidelog {name} " in text
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("given", [",", " ", ""])
def test_processors_without_a_name(given: str) -> None:
    result = CliRunner().invoke(main, ["worker", "shop:app", "--processors", given])
    assert result.exit_code == 2
    assert f"{given!r} names no processor; without this option, all processors run" in result.output
