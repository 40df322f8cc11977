"""CONFIG REWRITE: the file says what the server does, and keeps the lines that need no change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resp.errors import CommandError
from respserver.config.config import Config
from respserver.config.directives import DIRECTIVES
from respserver.config.rewrite import REWRITE_MARK


def test_rewrite_without_a_file() -> None:
    with pytest.raises(CommandError) as caught:
        Config().rewrite()
    assert caught.value.text == "ERR The server is running without a config file"


def test_rewrite_keeps_lines_that_still_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text(
        "# my server\nport 7000\n\n# sync\nappendfsync   ALWAYS\nmaxmemory 64mb\nsave 900 1\n# more\nsave 300 10\n"
        "timeout 5\nrdbcompression no\n"
    )
    path.chmod(0o640)
    config = Config.load([str(path), "--hz", "20"])
    config.set([(b"timeout", b"6"), (b"save", b"60 1"), (b"requirepass", b'a "b')])
    config.rewrite()
    assert path.read_text() == (
        "# my server\nport 7000\n\n# sync\nappendfsync   ALWAYS\nmaxmemory 64mb\nsave 60 1\n# more\n"
        f'timeout 6\nrdbcompression no\n\n{REWRITE_MARK}\nhz 20\nrequirepass "a \\"b"\n'
    )
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.conf"]
    text = path.read_text()
    config.rewrite()
    assert path.read_text() == text
    config.set([(b"loglevel", b"verbose")])
    config.rewrite()
    assert path.read_text() == text + "loglevel verbose\n"


def test_rewrite_overrides_included_files(tmp_path: Path) -> None:
    (tmp_path / "b.conf").write_text("timeout 5\nsave 900 1\nclient-output-buffer-limit normal 1 1 1\n")
    path = tmp_path / "a.conf"
    path.write_text(f"include {tmp_path}/b.conf\nsave 300 10\n")
    config = Config.load([str(path)])
    config.set([(b"timeout", b"0"), (b"save", b"60 1"), (b"client-output-buffer-limit", b"normal 0 0 0")])
    config.rewrite()
    again = Config.load([str(path)])
    assert again.get([b"*"]) == config.get([b"*"])
    assert (again.timeout, again.save_points) == (0, [(60, 1)])


def test_a_rewritten_file_loads_to_the_same_values(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("")
    config = Config.load([str(path), "--rename-command", "flushall", "", "--bind", "--tls-protocols", "TLSv1.3",
                          "--unixsocketperm", "770", "--dir", str(tmp_path), "--protected-mode", "no"])  # fmt: skip
    config.set([(b"save", b""), (b"requirepass", b"\xff\n"), (b"proto-max-bulk-len", b"1mb")])
    config.rewrite()
    again = Config.load([str(path)])
    assert {d.attr: getattr(again, d.attr) for d in DIRECTIVES.values()} == {
        d.attr: getattr(config, d.attr) for d in DIRECTIVES.values()
    }


def test_rewrite_of_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("")
    config = Config.load([str(path)])
    path.unlink()
    with pytest.raises(CommandError) as caught:
        config.rewrite()
    assert caught.value.text == "ERR Rewriting config file: No such file or directory"
