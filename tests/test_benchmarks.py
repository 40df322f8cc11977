"""The benchmarks run: every workload with tiny sizes against both servers. No figure is judged."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from benchmarks import facts, jetstream, measured, plot, targets
from benchmarks.__main__ import MODULES, Server
from benchmarks.cputime import Meter
from benchmarks.entries import KINDS, made_up
from benchmarks.publishing import AN_ID, under_way
from benchmarks.registry import WORKLOADS, Bench, counted, short
from benchmarks.report import load
from benchmarks.servers import environment, installations
from benchmarks.table import Table, line, ratio
from tests.browserkit import CHROMIUM
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent
TINY = ["--quick", "--requests", "200", "--size", "2000"]


def bench(
    *arguments: str | Path, code: int = 0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m benchmarks`` on the checkout, unless the environment says otherwise."""
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    env = os.environ | (environment or {"TIDELOG_BENCH_ROOT": str(ROOT)})
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done


STARTING = """
import sys
from pathlib import Path
from benchmarks.servers import OURS, Peer
peer = Peer("tidelog", OURS, Path(sys.argv[1]), "no", None)
peer.start()
print(peer.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv here (Debian: util-linux)")
def test_the_servers_of_a_benchmark_that_is_killed_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTING, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "TIDELOG_BENCH_ROOT": str(ROOT)}
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        socket.create_connection(("127.0.0.1", port), 60).close()
        process.kill()

    def ended() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) != 0

    eventually(ended)


@pytest.fixture
def tools() -> None:
    for program in ("redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here to compare with (Debian: apt-get install redis-server redis-tools)")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_workload(name: str, tmp_path: Path, tools: None) -> None:
    file = tmp_path / "found.json"
    out = bench(name, *TINY, "--json", file).stdout
    found = json.loads(file.read_text())
    assert found["names"] == ["tidelog", "redis"]
    assert found["rows"]
    for row in found["rows"]:
        assert f"| {row['workload']}" in out
        # What 2000 entries take of memory is lost among pages that were there before.
        exact = not re.search("memory|disk", row["workload"])
        for server in ["tidelog"] if re.search("TSEEK|a mark", row["workload"]) else found["names"]:
            assert len(row["figures"][server]) == 1, row
            assert row["figures"][server][0] > 0 or not exact, row
    assert found["machine"]["cores"] >= 1
    assert found["servers"]["tidelog"]["python_version"]
    assert found["servers"]["tidelog"]["from"] == f"the checkout {ROOT}"


@pytest.mark.slow
def test_beside_nats(tmp_path: Path, tools: None) -> None:
    if not jetstream.installed():
        pytest.skip("no nats-server here to compare with (Debian: apt-get install nats-server)")
    file = tmp_path / "found.json"
    out = bench("cpu", "--nats", "--quick", "--requests", "1000", "--only", "64 B|10 KB.* 16 ", "--json", file).stdout
    found = json.loads(file.read_text())
    assert found["names"] == ["tidelog", "redis", "nats"]
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert f"| {row['workload']}" in out
        assert all(len(row["figures"][name]) == 1 and row["figures"][name][0] > 0 for name in found["names"])
        assert set(row["ratios_nats"]) == {"tidelog"}


def test_without_nats_it_says_so(tmp_path: Path) -> None:
    programs = os.environ | {"TIDELOG_BENCH_ROOT": str(ROOT), "PATH": str(tmp_path)}
    if not jetstream.installed(programs["PATH"]):
        assert "NOTE: no nats-server here" in bench("cpu", "--nats", environment=programs).stderr
    assert "--nats is for the workload cpu alone" in bench("append", "--nats", code=2).stderr


def test_what_a_process_takes_of_a_core() -> None:
    meter = Meter(os.getpid())
    before = time.process_time()
    sum(range(300_000))
    took = time.process_time() - before
    spent = meter.settled()
    assert spent.user >= 0
    assert spent.system >= 0
    assert spent.whole >= took


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"$3\r\n1.0\r\n$3\r\n1-", b"1\r\n"], None),
        ([b"$3\r\n1.0\r\n-OOM no\r\n"], "answered"),
        ([b"+OK\r\n$3\r\n1.0\r\n"], "answered"),
    ],
)
def test_acknowledgements_are_looked_at(pieces: list[bytes], said: str | None) -> None:
    here, there = socket.socketpair()
    with here, there:
        for piece in pieces:
            there.sendall(piece)
        if said is None:
            assert under_way("it", [here], [[b"m"]], AN_ID, 2, 2) > 0
            assert there.recv(10) == b"mm"
        else:
            with pytest.raises(click.ClickException, match=said):
                under_way("it", [here], [[b"m"]], AN_ID, 2, 2)


def test_acknowledgements_of_jetstream() -> None:
    expected = jetstream.acknowledgement("s")
    assert expected.fullmatch(b'MSG _INBOX.load.7 1  26\r\n{"stream":"s", "seq":1234}\r\n')
    assert not expected.search(b'MSG _INBOX.load.7 1 25\r\n{"error":{"code":503}}\r\n')
    assert not expected.search(b'MSG _INBOX.load.7 1 25\r\n{"stream":"other", "seq":1}\r\n')
    assert jetstream.publish("s", b"data", 7) == b"PUB s _INBOX.load.7 4\r\ndata\r\n"


@pytest.mark.slow
def test_replication(tmp_path: Path, tools: None) -> None:
    file = tmp_path / "found.json"
    tiny = ("--runs", "1", "--rate", "200", "--seconds", "1", "--size", "2000", "--json", file)
    out = bench("replication", "lag", "copy", "rejoin", *tiny).stdout
    found = json.loads(file.read_text())
    assert found["servers"]["tidelog"]["from"] == f"the checkout {ROOT}"
    assert len(found["rows"]) == 11
    for row in found["rows"]:
        assert f"| {row['workload']}" in out
        assert list(row["figures"]) == ["tidelog", "redis"]


@pytest.mark.slow
def test_another_server_gets_a_column(tmp_path: Path, tools: None) -> None:
    file = tmp_path / "found.json"
    twin = f"twin=env PYTHONPATH={ROOT} {sys.executable} -m _tidelog_server"
    out = bench("append", *TINY, "--only", "everysec, 50 clients, P 16", "--also", twin, "--json", file).stdout
    assert "| workload | tidelog | twin | redis-server | tidelog/redis | twin/redis | floor / goal |" in out
    (row,) = json.loads(file.read_text())["rows"]
    assert set(row["figures"]) == {"tidelog", "twin", "redis"}
    assert set(row["ratios"]) == {"tidelog", "twin"}


@pytest.mark.slow
def test_each_peer_gets_a_column_and_a_ratio(tmp_path: Path, tools: None) -> None:
    file = tmp_path / "found.json"
    peers = ("--peer", "redis=redis-server", "--peer", "valkey9=redis-server --maxclients 100")
    out = bench("cpu", *TINY, "--only", "SET, random keys, P 16", *peers, "--json", file).stdout
    assert "| workload | tidelog | redis-server | valkey9 | tidelog/redis | tidelog/valkey9 | floor / goal |" in out
    (row,) = json.loads(file.read_text())["rows"]
    assert set(row["figures"]) == {"tidelog", "redis", "valkey9"}
    assert set(row["ratios"]) == set(row["ratios_valkey9"]) == {"tidelog"}
    assert load((file,))["names"] == ["tidelog", "redis", "valkey9"]


@pytest.mark.slow
def test_without_redis_there_is_no_ratio(tmp_path: Path) -> None:
    if shutil.which("redis-benchmark") is None:
        pytest.skip("no redis-benchmark here (Debian: apt-get install redis-tools)")
    out = bench("append", *TINY, "--no-peer", "--only", "^append, no, 50 clients, P 64").stdout
    assert "| workload | tidelog |\n" in out
    assert out.count("| append") == 1


def test_a_pattern_that_fits_no_row_names_the_rows() -> None:
    done = bench("append", "--only", "no such row", "--no-peer", code=1)
    assert "append, everysec, 50 clients, P 16\n" in done.stderr


def test_rows_with_targets_exist() -> None:
    assert MODULES
    nothing = Bench([], Table([]), only=re.compile("no row has this"))
    for workload in WORKLOADS.values():
        nothing.sizes = workload.sizes
        workload.run(nothing)
    nothing.nats = ["nats-server"]
    WORKLOADS["cpu"].run(nothing)
    assert set(targets.TARGETS) <= nothing.begun


@pytest.mark.parametrize("program", [["--help"], ["--list"], ["replication", "--help"]])
def test_help_says_what_there_is(program: list[str]) -> None:
    out = bench(*program).stdout
    assert "lag" in out if program[0] == "replication" else all(name in out for name in WORKLOADS)


def test_turns() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.turns", "--scale", "300"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=True, env=env).stdout
    rows = out.splitlines()[1:]
    assert [row for row in rows if row.startswith("TREAD of 600k new")]
    assert all(re.search(r" +\d+\.\d +\d+\.\d\d  \S", row) for row in rows)


@pytest.mark.slow
def test_delays() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.delays", "--entries", "300", "--seconds", "1", "--rate", "200"]
    command += ["--backlog", "300"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=True, env=env).stdout
    assert re.search(r"^  restart \d+\.\d\d s; resident after it -?\d+\.\d bytes each \(limit 64: ", out, re.MULTILINE)
    for order in ("arrival", "random"):
        assert f"200/s due, {order} order, 1 s: 200 of 200 delivered" in out
    assert out.count("(limit 2: ") == 2
    assert re.search(r"^300 of 300 entries of 1 KB due, random order, cache 1mb: ", out, re.MULTILINE)


@pytest.mark.slow
def test_stalls() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.stalls", "--seconds", "0.1", "--pause", "0.2", "--rate", "50"]
    command += ["--stored", "1000", "--no-peer"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=True, env=env).stdout
    for phase in ("idle", "load", "checkpoint", "backup", "replica"):
        assert re.search(rf"^\| tidelog, {phase} \| [\d,]+( \| \d+\.\d\d){{4}} \|$", out, re.MULTILINE)


@pytest.mark.slow
def test_sql() -> None:
    pytest.importorskip("duckdb", reason="no duckdb here (pip install 'tidelog[sql]')")
    command = [sys.executable, "-m", "benchmarks.sql", "--rows", "20000", "--rounds", "1"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=True, env=env).stdout
    for source in ("server", "direct"):
        assert re.search(rf"^tidelog sql --history {source}: \d+\.\d s, \d+\.\d\d times as fast", out, re.MULTILINE)


@pytest.mark.slow
def test_console() -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium here (Debian: apt-get install chromium)")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.console", "--streams", "20", "--groups", "3", "--partitions", "20"]
    command += ["--rounds", "1", "--seconds", "0"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=True, env=env).stdout
    rows = out.splitlines()[1:]
    assert [row for row in rows if row.startswith("its records, 20 partitions")]
    assert all(re.search(r" +\d+ +\d+\.\d$", row) for row in rows)


# -- figures ------------------------------------------------------------------------------------------------------
def test_ratio_above_one_is_better_whichever_way_figures_go() -> None:
    assert ratio([1, 20, 30], [10], less_is_better=False) == 2
    assert ratio([5], [10], less_is_better=True) == 2
    assert ratio([], [10], less_is_better=True) is None
    assert ratio([5], [0], less_is_better=False) is None


@pytest.mark.parametrize(
    ("figure", "said"), [(9.4, "0.95 / 1.1: missed"), (9.5, "0.95 / 1.1: floor"), (11, "0.95 / 1.1: goal")]
)
def test_verdicts(figure: float, said: str) -> None:
    table = Table(["tidelog", "redis"])
    title = "append, always, 50 clients, P 1"
    table.row(title, {"tidelog": [figure], "redis": [10]}, unit="entries/s")
    assert line(table.rows[0], table.names).endswith(f"| {said} |")
    assert targets.TARGETS[title][:2] == (table.rows[0]["floor"], table.rows[0]["goal"])


def test_a_row_with_parts() -> None:
    table = Table(["tidelog", "redis"])
    figures: dict[str, list[float]] = {"tidelog": [10, 12, 11], "redis": [8, 8, 8]}
    table.row("row", figures, less_is_better=True, form=".1f", unit="us", parts={"tidelog": (4, 7), "redis": (1, 7)})
    shown = "| row, us (less is better) | 11.0 (10.0-12.0): 4.0 + 7.0 | 8.0 (8.0-8.0): 1.0 + 7.0 | 0.73 |  |"
    assert line(table.rows[0], table.names) == shown
    assert line(json.loads(json.dumps(table.rows[0])), table.names) == shown


def test_messages_are_judged_beside_nats() -> None:
    table = Table(["tidelog", "redis", "nats"])
    assert "| tidelog | redis-server | nats-server | tidelog/redis | tidelog/nats | floor / goal |" in table.head()
    title = "cpu, publish JSON of 1 KB, 8 connections, 1 in flight"
    table.row(title, {"tidelog": [10], "redis": [20], "nats": [9]}, less_is_better=True, form=".1f")
    assert line(table.rows[0], table.names).endswith("| 10.0 | 20.0 | 9.0 | 2.00 | 0.90 | 0.9 / 1: floor |")
    table.row("other", {"tidelog": [10], "redis": [20]}, less_is_better=True, form=".1f")
    assert line(table.rows[1], table.names).endswith("| 10.0 | 20.0 | - | 2.00 | - |  |")


def test_report_merges_files(tmp_path: Path) -> None:
    for number, name in enumerate(("tidelog", "other")):
        table = Table([name, "redis"])
        table.row("same", {name: [number + 1], "redis": [1]})
        table.row(name, {name: [1]}, less_is_better=True, form=".1f")
        kept = {"machine": {}, "servers": {}, "names": table.names, "rows": table.rows}
        (tmp_path / f"{number}.json").write_text(json.dumps(kept))
    merged = load((tmp_path / "0.json", tmp_path / "1.json"))
    assert merged["names"] == ["tidelog", "other", "redis"]
    assert [line(row, merged["names"]) for row in merged["rows"]] == [
        "| same | - | 2 | 1 | - | 2.00 |  |",
        "| tidelog (less is better) | 1.0 | - | - | - | - |  |",
        "| other (less is better) | - | 1.0 | - | - | - |  |",
    ]


def test_report_refuses_other_files(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("[]")
    with pytest.raises(click.ClickException, match="is not what scripts/bench --json writes"):
        load((file,))


def test_plot(tmp_path: Path) -> None:
    table = Table(["tidelog", "redis"])
    table.row("append, always, 50 clients, P 1", {"tidelog": [1.0], "redis": [2.0]})
    file = tmp_path / "ratios.svg"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(click.ClickException, match=r"pip install 'tidelog\[demo\]'"):
            plot.draw(table.rows, table.names, file, "caption")
    else:
        plot.draw(table.rows, table.names, file, "caption")
        assert "<svg" in file.read_text()


# -- what is asked for ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "number"), [("1M", 1_000_000), ("200k", 200_000), ("1500", 1500), ("1_000", 1000)])
def test_counts(text: str, number: int) -> None:
    assert counted(text) == number
    assert counted(short(number)) == number


@pytest.mark.parametrize("text", ["", "0", "M", "1.5M", "-1", "1G"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        counted(text)


@pytest.mark.parametrize("text", ["tidelog-server", "=tidelog-server", "redis=x", "tidelog=x", "a/b=x", "name="])
def test_names_of_other_servers(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Server(theirs=False).convert(text, None, None)


@pytest.mark.parametrize("text", ["redis-server", "=redis-server", "nats=x", "other=x", "redis/8=x", "redis="])
def test_names_of_peers(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Server(theirs=True).convert(text, None, None)


def test_servers_that_exclude_each_other() -> None:
    assert "have the same name" in bench("append", "--peer", "redis=a", "--peer", "redis=b", code=2).stderr
    assert "--no-peer excludes" in bench("append", "--no-peer", "--peer", "redis=a", code=2).stderr


def test_other_installations_do_not_import_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    ours, other = installations(also=[("other", "/somewhere/bin/tidelog-server --loglevel warning")], peer=False)
    assert environment(ours.ours)["PYTHONPATH"] == measured.PYTHONPATH
    assert "PYTHONPATH" not in environment(other.ours)
    assert other.command == ("/somewhere/bin/tidelog-server", "--loglevel", "warning")


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_the_same_each_time(kind: str) -> None:
    assert list(made_up(kind, 50)) == list(made_up(kind, 50))
    assert len(set(made_up(kind, 1000))) > 100



# -- what is measured ------------------------------------------------------------------------------------------------
@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A folder like site-packages with tidelog in it, as a wheel lays it out."""
    parts = tmp_path / "site-packages" / "_tidelog_server"
    parts.mkdir(parents=True)
    for name in ("__init__.py", "__main__.py"):
        shutil.copy(ROOT / "_tidelog_server" / name, parts)
    for name in ("commands", "coordinator", "persistence", "replication", "resp", "respserver", "storage"):
        (parts / name).symlink_to(ROOT / name)
    (parts.parent / "tidelog").symlink_to(ROOT / "tidelog")
    return parts.parent


def test_an_installed_tidelog_is_measured(installation: Path, tmp_path: Path) -> None:
    assert measured.find(["", "/nowhere", str(installation)], {}) == installation
    assert measured.find([str(installation)], {"TIDELOG_BENCH_ROOT": str(tmp_path)}) == tmp_path


def test_an_editable_install_means_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "tidelog-0.1.0.dist-info").mkdir()
    (tmp_path / "__editable__.tidelog-0.1.0.pth").write_text("import __editable___tidelog_0_1_0_finder")
    assert measured.find([str(ROOT), "", str(tmp_path)], {}) == ROOT


def test_in_a_checkout_the_installed_modules_are_imported(installation: Path) -> None:
    """Although ``python -c`` puts the current directory, the checkout, first on the path."""
    code = (
        "import sys; from benchmarks import measured; measured.import_from(measured.ROOT);"
        "import tidelog; print(tidelog.__file__);"
        "measured.import_from(measured.PARTS); import storage; print(storage.__file__)"
    )
    environment = os.environ | {"PYTHONPATH": str(installation), "TIDELOG_BENCH_ROOT": ""}
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True).split()
    assert found == [f"{installation}/tidelog/__init__.py", f"{installation}/_tidelog_server/storage/__init__.py"]


def test_its_server_is_started_and_named(installation: Path, tmp_path: Path) -> None:
    if shutil.which("redis-benchmark") is None:
        pytest.skip("no redis-benchmark here (Debian: apt-get install redis-tools)")
    file = tmp_path / "found.json"
    only = ("--no-peer", "--only", "^append, no, 50 clients, P 64", "--json", file)
    path = {"PYTHONPATH": str(installation), "TIDELOG_BENCH_ROOT": ""}
    out = bench("append", *TINY, *only, environment=path).stdout
    says = rf"^tidelog: tidelog \S+, Python \S+, (interpreted|compiled), from {installation}, run by "
    assert re.search(says, out, re.MULTILINE)
    assert json.loads(file.read_text())["servers"]["tidelog"]["from"] == str(installation)


def test_a_caption_names_no_paths() -> None:
    machine: dict[str, object] = {"cpu": "a CPU", "cores": 2, "kernel": "6", "disk": "sda (ext4)"}
    says = {"tidelog_version": "1", "tidelog_compiled": "1", "python_version": "3.11", "executable": "/x", "from": "/y"}
    assert facts.summary(machine, {"tidelog": says}).endswith("tidelog 1, Python 3.11, compiled, from /y, run by /x")
    assert facts.summary(machine, {"tidelog": says}, places=False).endswith("tidelog 1, Python 3.11, compiled")


@pytest.mark.slow
def test_the_cost_of_cluster_mode() -> None:
    ran = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.clustermode", "--rounds", "1", "--seconds", "0.01",
            "--only", "XREAD of one",
        ],
        capture_output=True, text=True, cwd=ROOT, timeout=110, check=False,
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"XREAD of one, P {depth}, {what}" for what in ("all slots", "half of the slots") for depth in (1, 16)
    ], ran.stdout + ran.stderr
