"""The ``tidelog-server`` program: output, start, end, and the one line that says why it can't start."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resp.errors import CommandError
from respserver import __version__, program
from respserver.config.config import Config
from respserver.config.directives import DIRECTIVES
from respserver.observe.logs import Logger
from storage.nodes import coder

ROOT = Path(__file__).resolve().parents[2]


def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a program that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "_tidelog_server", *args],
        cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


class Running:
    """A server process; ``lines`` is its output so far."""

    def __init__(self, directory: Path, *args: str, conf: Path | None = None, stdin: str = "") -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "_tidelog_server", *([str(conf)] if conf else [])]
        command += ["--port", str(self.port), "--dir", str(directory), *args]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(stdin)
        self.process.stdin.close()
        self.lines: list[str] = []

    def wait_for(self, text: str) -> str:
        """Read until a line contains ``text``. Fails if the output ends before that."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r} in:\n{''.join(self.lines)}")

    def ready(self) -> Running:
        self.wait_for("Ready to accept connections")
        return self

    def ask(self, *words: str) -> bytes:
        """The first piece of the reply to one command."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sock:
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            sock.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            return sock.recv(65536)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end of a server that is stopping. A second signal would kill it in its last milliseconds."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(60)

    def output(self) -> str:
        return "".join(self.lines)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers as ``Running`` does. Those still alive are killed at the end of the test."""
    servers: list[Running] = []

    def launch(directory: Path, *args: str, conf: Path | None = None, stdin: str = "") -> Running:
        servers.append(Running(directory, *args, conf=conf, stdin=stdin))
        return servers[-1]

    yield launch
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()


# -- without a server ----------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_project() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_version(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert program.main([flag]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"tidelog-server v={__version__} bits=64 ")
    assert out.endswith((" coded_nodes=0\n", " coded_nodes=1\n"))
    assert " resp_parser=compiled " in out or " resp_parser=hiredis " in out


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_has_usage_and_examples(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert program.main([flag]) == 0
    out = capsys.readouterr().out
    assert "Usage: tidelog-server [conf-file] [--name value ...] [-]" in out
    assert max(map(len, out.splitlines())) <= 120


def test_the_examples_in_the_help_text_are_valid() -> None:
    import shlex

    examples = re.findall(r"^  (?:echo '(.*)' \| )?tidelog-server(.*?)(?:   .*)?$", program.HELP, re.MULTILINE)
    examples = [(text, rest) for text, rest in examples if "--help" not in rest]
    assert len(examples) == 8
    stdin = [text for text, _ in examples if text]
    assert stdin == ["maxmemory 512mb"]
    for _, rest in examples:
        args = [word for word in shlex.split(rest) if word != "/etc/tidelog.conf"]
        assert Config.load(args, lambda: stdin[0]).warnings == []


@pytest.mark.parametrize("name", list(DIRECTIVES))
def test_help_for_each_directive(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert program.main(["--help", f"--{name}"]) == 0
    assert capsys.readouterr().out.startswith(f"{name}\n  {DIRECTIVES[name].doc}\n")


def test_help_for_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help", "rdbcompression"]) == 0
    assert "has no effect in tidelog" in capsys.readouterr().out
    assert program.main(["--help", "apendfsync"]) == 1
    assert capsys.readouterr().err == "tidelog-server: unknown directive 'apendfsync'; did you mean 'appendfsync'?\n"


def test_configuration_errors_look_like_those_of_redis_server(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("port 1\nprot 6379\n")
    code, out, err = run(str(path))
    assert (code, out) == (1, "")
    assert err == (
        f"\n*** FATAL CONFIG FILE ERROR (tidelog {__version__}) ***\n"
        f"Reading the configuration file, at line 2 of file {path}\n"
        ">>> 'prot 6379'\n"
        "Bad directive or wrong number of arguments: unknown word 'prot'; did you mean 'port'?\n"
    )


def test_test_config(tmp_path: Path) -> None:
    code, out, _ = run("--port", "7001", "--dir", str(tmp_path), "--test-config", "-", stdin="rdbcompression no\n")
    assert code == 0
    assert out.startswith("warning: Ignored: rdbcompression (")
    assert out.endswith(f"Configuration OK: port 7001, data in {tmp_path}\n")
    code, out, err = run("--tls-port", "7002", "--test-config")
    assert (code, out) == (1, "")
    assert "tls-cert-file: TLS needs the server's certificate" in err
    (tmp_path / "users.acl").write_text("user al +nosuch\n")
    code, out, err = run("--aclfile", str(tmp_path / "users.acl"), "--test-config")
    assert (code, out) == (1, "")
    assert "users.acl:1: +nosuch: Unknown command or category name in ACL" in err
    (tmp_path / "users.acl").write_text("user al +@all -function\n")
    code, out, _ = run("--aclfile", str(tmp_path / "users.acl"), "--test-config")
    assert code == 0
    assert "warning: User 'al': these rules have no effect, since tidelog has no such commands: -function\n" in out


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--port", "0"), "Configured to not listen anywhere, exiting"),
        (("--bind",), "Configured to not listen anywhere, exiting"),
        (("--logfile", "/no/such/log"), "logfile: can't open /no/such/log: No such file or directory"),
        (("--dir", "/dev/null/x"), "dir: can't use the data directory /dev/null/x: Not a directory"),
    ],
)
def test_one_line_says_why_the_server_cannot_start(args: tuple[str, ...], text: str) -> None:
    code, out, err = run(*args)
    assert (code, err) == (1, "")
    assert f" # {text}" in out.splitlines()[-1]


def test_with_a_log_file_the_reason_is_printed_on_the_terminal_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code, out, err = run("--port", "0", "--logfile", str(log))
    assert (code, out) == (1, "")
    assert err.startswith("tidelog-server: Configured to not listen anywhere")
    assert "# Configured to not listen anywhere" in log.read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_an_unreadable_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        code, out, _ = run("--dir", str(tmp_path))
    finally:
        tmp_path.chmod(0o700)
    assert code == 1
    assert out.endswith(f"# dir: can't use the data directory {tmp_path}: Permission denied\n")


def test_maxclients_fits_the_systems_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import resource

    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    logger = Logger(str(tmp_path / "log"))
    config = Config()
    config.maxclients = 500
    program.fit_maxclients(config, logger)
    assert (config.maxclients, asked) == (500, [])
    config.maxclients = 1500
    program.fit_maxclients(config, logger)
    assert (config.maxclients, asked) == (1500, [(1500 + program.SPARE_FILES, 2048)])
    config.maxclients = 10000
    program.fit_maxclients(config, logger)
    assert config.maxclients == 2048 - program.SPARE_FILES
    assert "maxclients has been reduced to 1984" in Path(logger.path).read_text()


def test_config_set_of_loglevel_and_maxclients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: None)
    logger = Logger(str(tmp_path / "log"))
    config = Config()
    config.maxclients = 100
    program.watch_config(config, logger)
    config.set([(b"loglevel", b"warning"), (b"maxclients", b"200")])
    assert (logger.level, config.maxclients) == (3, 200)
    with pytest.raises(CommandError) as caught:
        config.set([(b"loglevel", b"debug"), (b"maxclients", b"2000")])
    assert caught.value.text == (
        "ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to "
        "handle the specified number of clients, try with 960"
    )
    assert (logger.level, config.maxclients) == (3, 200)


@pytest.mark.parametrize("codes", [False, True])
def test_without_a_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: bool) -> None:
    monkeypatch.setattr(coder, "CODES", codes)
    logger = Logger(str(tmp_path / "log"))
    program.warn_if_uncompiled(logger)
    said = Path(logger.path).read_text() if Path(logger.path).exists() else ""
    assert said.count("installed without a C compiler") == (not codes)


def test_without_uvloop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # importing it fails
    logger = Logger(str(tmp_path / "log"))
    program.new_loop(logger).close()
    assert "# uvloop is not installed" in Path(logger.path).read_text()


def test_the_start_imports_no_module_that_it_does_not_need() -> None:
    code = (
        "import sys, respserver.program as p; c = p.Config.load(['--port', '1']); "
        "bad = {'click', 'json', 'redis', 'ssl', 'asyncio', 'logging', 'argparse', 'email', 'difflib', 'inspect', "
        "'importlib.metadata', 'subprocess', 'dataclasses'} & set(sys.modules); print(sorted(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- with a server -------------------------------------------------------------------------------------------


def test_start_and_stop(tmp_path: Path, start: Start) -> None:
    pidfile = tmp_path / "server.pid"
    server = start(tmp_path / "data", "--pidfile", str(pidfile))
    server.ready()
    pid = server.process.pid
    text = server.output()
    first = text.index(f" PID: {pid}\n")
    assert first < text.index("Server initialized") < text.index("Ready to accept connections")
    assert pidfile.read_text() == f"{pid}\n"
    assert server.ask("PING") == b"+PONG\r\n"
    assert server.stop() == 0
    assert "Received SIGTERM scheduling shutdown..." in server.output()
    assert "ready to exit" in server.lines[-1]
    assert not pidfile.exists()


def test_written_data_is_there_after_each_kind_of_end(tmp_path: Path, start: Start) -> None:
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, None):
        server = start(tmp_path, "--shutdown-on-sigint", "nosave").ready()
        if ending is signal.SIGTERM:
            assert server.ask("SET", "k", "v") == b"+OK\r\n"
        assert server.ask("GET", "k") == b"$1\r\nv\r\n"
        code = server.stop(ending or signal.SIGTERM)
        assert code == (-signal.SIGKILL if ending is signal.SIGKILL else 0), server.output()


def test_a_terminal_that_is_closed_does_not_end_the_server(tmp_path: Path, start: Start) -> None:
    server = start(tmp_path).ready()
    for _ in range(3):
        server.process.send_signal(signal.SIGHUP)
        assert server.ask("PING") == b"+PONG\r\n"
    assert server.stop() == 0


def test_loopback_and_protected_mode_by_default(tmp_path: Path, start: Start) -> None:
    server = start(tmp_path).ready()
    assert server.ask("CONFIG", "GET", "protected-mode") == b"*2\r\n$14\r\nprotected-mode\r\n$3\r\nyes\r\n"
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", server.port), timeout=5):
        pass


def test_warnings_are_logged(tmp_path: Path, start: Start) -> None:
    server = start(tmp_path, "--appendonly", "no", "-", stdin="rdbcompression yes\n").ready()
    assert " # appendonly no: every write is on disk anyway; it remains yes\n" in server.output()
    assert " # Ignored: rdbcompression (" in server.output()


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = str(sock.getsockname()[1])
        code, out, _ = run("--port", port, "--dir", str(tmp_path / "d"))
    assert code == 1
    last = out.splitlines()[-1]
    assert port in last
    assert "address already in use" in last.lower()
    assert last.endswith("is another server running there?")


def test_directory_in_use(tmp_path: Path, start: Start) -> None:
    pidfile = tmp_path / "pid"
    data = tmp_path / "data"
    server = start(data, "--pidfile", str(pidfile)).ready()
    code, out, _ = run("--port", str(free_port()), "--dir", str(data), "--pidfile", str(pidfile))
    assert code == 1
    assert str(data) in out.splitlines()[-1]
    assert pidfile.read_text() == f"{server.process.pid}\n"  # of the first server


def test_a_foreign_directory(tmp_path: Path) -> None:
    """A directory with other files is refused in one line."""
    for name in ("tail", "journal", "store"):
        (tmp_path / name).write_text("not tidelog's")
    code, out, _ = run("--port", str(free_port()), "--dir", str(tmp_path))
    assert code == 1
    assert " # " in out.splitlines()[-1]
    assert "this is a bug" not in out


def test_unusable_tls_files(tmp_path: Path) -> None:
    code, out, _ = run("--port", "0", "--tls-port", str(free_port()), "--dir", str(tmp_path), "--tls-cert-file", "/no")
    assert code == 1
    assert "tls-" in out.splitlines()[-1]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd receives notifications."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        yield sock


@pytest.mark.parametrize("how", ["SIGTERM", "SHUTDOWN"])
def test_systemd_is_notified(tmp_path: Path, start: Start, systemd: socket.socket, how: str) -> None:
    server = start(tmp_path / "data", "--supervised", "systemd")
    message = systemd.recv(4096).decode()
    assert message.startswith(f"READY=1\nMAINPID={server.process.pid}\n")
    server.ready()
    if how == "SIGTERM":
        server.process.terminate()
    else:
        server.ask("SHUTDOWN")
    assert systemd.recv(4096) == b"STOPPING=1\n"
    assert server.ended() == 0


def test_the_watchdog_is_notified_while_the_server_runs(
    tmp_path: Path, start: Start, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    server = start(tmp_path / "data", "--supervised", "auto")
    assert systemd.recv(4096).startswith(b"READY=1\n")
    for _ in range(3):
        assert systemd.recv(4096) == b"WATCHDOG=1\n"
    server.process.send_signal(signal.SIGSTOP)
    sent = 0
    while select.select([systemd], [], [], 0.5)[0]:  # those that were sent before the signal
        systemd.recv(4096)
        sent += 1
        assert sent < 50
    server.process.send_signal(signal.SIGCONT)
    assert systemd.recv(4096) == b"WATCHDOG=1\n"


def test_the_watchdog_of_another_process(
    tmp_path: Path, start: Start, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    server = start(tmp_path / "data", "--supervised", "systemd").ready()
    assert systemd.recv(4096).startswith(b"READY=1\n")
    assert server.ask("PING") == b"+PONG\r\n"
    server.process.terminate()
    assert systemd.recv(4096) == b"STOPPING=1\n"


def test_a_file_and_its_rewrite(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "a.conf"
    path.write_text("# mine\ntimeout 5\n")
    server = start(tmp_path / "data", conf=path).ready()
    assert server.ask("CONFIG", "SET", "timeout", "7", "hz", "20") == b"+OK\r\n"
    assert server.ask("CONFIG", "REWRITE") == b"+OK\r\n"
    assert path.read_text().startswith("# mine\ntimeout 7\n")
    assert server.stop() == 0
    again = Config.load([str(path)])
    assert (again.timeout, again.hz, again.dir) == (7, 20, str(tmp_path / "data"))
