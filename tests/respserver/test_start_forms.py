"""The forms of a command line: the same words to tidelog-server and to redis-server give the same settings."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from tests.waiting import eventually
from tests.wire.rawclient import Raw

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "a.conf": "hz 30\n", "bare.conf": "save\n", "bare2.conf": "save 900 1\nsave\n",
    "empty.conf": 'save 900 1\nsave ""\n',
    "dashes.conf": "requirepass --foo\n", "unknown.conf": "hz 30\n\nnosuch 1\n",
    "quotes.conf": 'hz 30\nrequirepass "a\n', "none.conf": "hz 30\nhz\n",
}  # fmt: skip
NAMES = (
    b"maxmemory", b"hz", b"save", b"requirepass", b"masterauth", b"shutdown-on-sigint", b"client-output-buffer-limit",
)  # fmt: skip
STDIN = "hz 40\nmaxmemory 5mb\n"
# words, and the settings that differ from the defaults; None: an error
FORMS: list[tuple[list[str], dict[str, str] | None]] = [
    (["--maxmemory 700mb"], {"maxmemory": "734003200"}),
    (["--hz", "20", "--maxmemory 700mb", "--masterauth", "x"],
     {"hz": "20", "maxmemory": "734003200", "masterauth": "x"}),
    (["a.conf", "--maxmemory 700mb"], {"hz": "30", "maxmemory": "734003200"}),
    (["--maxmemory 700mb --hz 20"], None),
    (["--maxmemory", "700mb --hz 20"], None),
    (["--save 900 1"], {"save": "900 1"}),
    (["--save 900 1", "300", "2"], {"save": "900 1 300 2"}),
    (["--save", "900", "1", "300", "2"], {"save": "900 1 300 2"}),
    (["--save", "900 1", "300 2"], None),
    (["--save"], {"save": ""}),
    (["--save", ""], {"save": ""}),
    (["--save", "--hz", "20"], {"save": "", "hz": "20"}),
    (["bare.conf"], {"save": ""}),
    (["bare2.conf"], {"save": "900 1"}),
    (["bare2.conf", "--save"], {"save": ""}),
    (["empty.conf"], {"save": ""}),
    (["--requirepass", "--foo"], {"requirepass": "--foo"}),
    (["--requirepass", "--foo", "--hz", "20"], {"requirepass": "--foo", "hz": "20"}),
    (["--requirepass", "--"], {"requirepass": "--"}),
    (["--requirepass", "-foo"], {"requirepass": "-foo"}),
    (["--requirepass", "a b"], {"requirepass": "a b"}),
    (["--requirepass 'a b'"], {"requirepass": "a b"}),
    (["--requirepass", '"a b"'], {"requirepass": '"a b"'}),
    (["--requirepass", ""], {}),
    (["--requirepass", "--foo", "bar"], None),
    (["--requirepass=foo"], None),
    (["--requirepass 'a"], None),
    (["dashes.conf"], {"requirepass": "--foo"}),
    (["--masterauth", "", "--hz", "20"], {"hz": "20"}),
    (["--shutdown-on-sigint", "nosave now"], {"shutdown-on-sigint": "nosave now"}),
    (["--shutdown-on-sigint", "nosave", "now"], {"shutdown-on-sigint": "nosave now"}),
    (["--client-output-buffer-limit", "normal", "1", "2", "3"], {"client-output-buffer-limit": "normal 1 2 3"}),
    (["--client-output-buffer-limit normal 1 2 3"], {"client-output-buffer-limit": "normal 1 2 3"}),
    (["--HZ", "20"], {"hz": "20"}),
    (["--include", "a.conf"], {"hz": "30"}),
    (["--include", "nofile.conf"], None),
    (["--hz"], None),
    (["--hz", "--maxmemory", "5"], None),
    (["--hz", "1", "2"], None),
    (["--hz", "abc"], None),
    (["--nosuch", "1"], None),
    (["unknown.conf"], None), (["quotes.conf"], None), (["none.conf"], None), (["nofile.conf"], None),
    (["-"], {"hz": "40", "maxmemory": "5242880"}),
    (["a.conf", "-"], {"hz": "40", "maxmemory": "5242880"}),
    (["--hz", "20", "-"], {"hz": "20", "maxmemory": "5242880"}),
    (["-", "--hz", "20"], {"hz": "20", "maxmemory": "5242880"}),
]  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The settings that differ from the defaults, which are alike."""
    defaults = {"maxmemory": "0", "hz": "10", "save": "3600 1 300 100 60 10000", "shutdown-on-sigint": "default"}
    found = {name: value for name, value in pairs if value != defaults.get(name, "")}
    limits = found.pop("client-output-buffer-limit").partition(" slave")[0]
    return found if limits == "normal 0 0 0" else found | {"client-output-buffer-limit": limits}


@pytest.mark.parametrize(("words", "wanted"), FORMS, ids=lambda value: " ".join(value) if type(value) is list else "")
@pytest.mark.usefixtures("files")
def test_a_form(words: list[str], wanted: dict[str, str] | None) -> None:
    try:
        config = Config.load(words, lambda: STDIN)
    except ConfigError:
        assert wanted is None
    else:
        assert settings([(name.decode(), config.value(name.decode())) for name in NAMES]) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("words", "wanted"), FORMS, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_redis_server_takes_the_same(words: list[str], wanted: dict[str, str] | None, files: Path) -> None:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here to compare with (Debian: apt-get install redis-server)")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    # in front of the form, but after a file's name or "-"
    first = words[:1] if not words[0].startswith("--") else []
    command = [program, *first, "--port", str(port), *words[len(first) :]]
    process = subprocess.Popen(command, cwd=files, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it may have ended without reading that
            process.stdin.write(STDIN.encode())
        answer: list[dict[str, str]] = []
        eventually(lambda: process.poll() is not None or answered(port, wanted, answer))
        assert (answer[0] if answer else None) == wanted
    finally:
        process.kill()
        process.wait(10)


def answered(port: int, wanted: dict[str, str] | None, answer: list[dict[str, str]]) -> bool:
    try:
        with Raw(port) as raw:
            if wanted and "requirepass" in wanted:
                raw("AUTH", wanted["requirepass"])
            flat = [word.decode() for word in raw("CONFIG", "GET", *NAMES)]
    except (OSError, EOFError):
        return False
    answer.append(settings(list(zip(flat[::2], flat[1::2], strict=True))))
    return True


@pytest.mark.parametrize(
    ("words", "where", "shown", "why"),
    [
        (["unknown.conf"], "at line 3 of file unknown.conf", "nosuch 1", "Bad directive"),
        (["none.conf"], "at line 2 of file none.conf", "hz", "wrong number of arguments"),
        (["quotes.conf"], "at line 2 of file quotes.conf", 'requirepass "a', "Unbalanced quotes"),
        (["--hz", "abc"], "Reading the command line", "--hz abc", "argument couldn't be parsed into an integer"),
        (["--hz 1 2"], "Reading the command line", "--hz 1 2", "wrong number of arguments"),
    ],
)  # fmt: skip
def test_an_error_says_where(files: Path, words: list[str], where: str, shown: str, why: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "_tidelog_server", *words], cwd=files, capture_output=True, text=True, timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.strip().split("\n")
    assert lines[0].startswith("*** FATAL CONFIG FILE ERROR (tidelog ")
    assert lines[1].removeprefix("Reading the configuration file, ") == where
    assert lines[2] == f">>> '{shown}'"
    assert lines[3].startswith(why)
