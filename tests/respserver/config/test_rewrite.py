"""CONFIG REWRITE: the file says what the server does, and keeps the lines that need no change."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp.errors import CommandError
from respserver.config import conffile
from respserver.config.config import Config
from respserver.config.directives import DIRECTIVES, Directive
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


# -- any bytes -------------------------------------------------------------------------------------------------------
def values_of(config: Config) -> dict[str, object]:
    return {d.name: getattr(config, d.attr) for d in DIRECTIVES.values()} | {"ignored": config.ignored}


# mostly what has a meaning in a file
TEXT = st.lists(
    st.sampled_from([b"a", b" ", b"\n", b"\r", b'"', b"'", b"\\", b"#", b"\0", b"\xff", b"\xc2\xa0", b"\x85", b"--"])
    | st.binary(max_size=2),
    max_size=6,
).map(lambda parts: b"".join(parts).decode("utf-8", "surrogateescape"))  # fmt: skip
FREE = [d for d in DIRECTIVES.values() if d.kind in ("string", "host", "hosts", "words", "leader") and not d.fixed]


def any_value(directive: Directive) -> st.SearchStrategy[object]:
    """Values that no check has seen: a command may set them without one."""
    if directive.name == "dir":
        return TEXT.filter(lambda text: "\0" not in text).map(lambda text: os.path.abspath("x" + text))
    if directive.kind in ("string", "host"):
        return TEXT
    if directive.choices:
        return st.lists(st.sampled_from(directive.choices), min_size=1, max_size=3)
    return st.lists(TEXT, min_size=2, max_size=2) if directive.kind == "leader" else st.lists(TEXT, max_size=3)


@pytest.mark.parametrize("directive", FREE, ids=lambda d: d.name)
@given(st.data())
def test_lines_of_any_value_are_lines_of_that_directive_alone(directive: Directive, data: st.DataObject) -> None:
    value = data.draw(any_value(directive))
    lines = list(conffile.read_text("\n".join(directive.lines(value)), "test"))  # type: ignore[arg-type]
    assert [line.words[0] for line in lines] == [directive.name]
    try:
        parsed = directive.parse(lines[0].words[1:], [])
    except ValueError:  # what is no host is refused, not taken for something else
        assert directive.kind in ("host", "hosts", "leader")
    else:
        assert parsed == value or (directive.kind == "leader" and value[1] != parsed[1])  # type: ignore[index]


CHANGES = {
    "masterauth": TEXT, "masteruser": TEXT, "requirepass": TEXT, "tls-key-file-pass": TEXT, "dbfilename": TEXT,
    "replica-announce-ip": st.sampled_from(["", "h.example", "::1", "b\xfccher.example"]),
    "shutdown-on-sigterm": st.sampled_from(["now", "nosave now"]), "search-timeout": TEXT,
}  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=CHANGES), min_size=1, max_size=3), TEXT)
def test_what_config_set_takes_is_read_back_and_nothing_else_changes(
    rounds: list[dict[str, str]], password: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.conf")
        text = f"# mine\nrequirepass {conffile.quote(password)}\ndbfilename x.rdb\n# the end\n"
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        config = Config.load([str(path)])
        for changes in rounds:
            config.set([(n.encode(), v.encode("utf-8", "surrogateescape")) for n, v in changes.items()])
            config.rewrite()
            assert values_of(Config.load([str(path)])) == values_of(config)
        lines = path.read_bytes().split(b"\n")
        assert [line for line in lines if line.startswith(b"# ")][:2] == [b"# mine", b"# the end"]
        assert len(lines) <= len(text.split("\n")) + 2 + len(CHANGES), "no directive has two lines"


def test_rewrite_of_ignored_directives(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("rdbcompression no\noom-score-adj-values 0 200 800\ndbfilename a\ndbfilename b\n")
    config = Config.load([str(path)])
    config.set([(b"dbfilename", b"c d"), (b"hash-max-listpack-entries", b"7")])
    config.rewrite()
    assert path.read_text() == (
        'rdbcompression no\noom-score-adj-values 0 200 800\ndbfilename "c d"\n'
        f"\n{REWRITE_MARK}\nhash-max-listpack-entries 7\n"
    )


def test_a_carriage_return_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_bytes(b"# mine\rtimeout 5\nport 7000\r\n")
    config = Config.load([str(path)])
    assert (config.timeout, config.port) == (0, 7000)
    config.rewrite()
    assert path.read_bytes() == b"# mine\rtimeout 5\nport 7000\r\n"


def test_rewrite_of_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("")
    config = Config.load([str(path)])
    path.unlink()
    with pytest.raises(CommandError) as caught:
        config.rewrite()
    assert caught.value.text == "ERR Rewriting config file: No such file or directory"
