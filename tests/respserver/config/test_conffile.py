"""The syntax of configuration files: words, quotes, units, includes, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from respserver.config import conffile
from respserver.config.conffile import ConfigError, parse_memory, quote, split_words

SPLITS = [
    ("port 6379", ["port", "6379"]),
    ("  a\t b \r", ["a", "b"]),
    ("", []),
    ('requirepass "a b"', ["requirepass", "a b"]),
    (r'x "\x41\n\r\t\b\a\"\\\q"', ["x", 'A\n\r\t\b\a"\\q']),
    (r'x "\xZZ\x4"', ["x", "xZZx4"]),
    (r"x 'it\'s \n'", ["x", "it's \\n"]),
    ('save ""', ["save", ""]),
    ("a '' b", ["a", "", "b"]),
    (r'x "\xc3\xa9"', ["x", "é"]),
    (r'x "\xff"', ["x", "\udcff"]),
    ('a"b c"', ["ab c"]),
    ("é ü", ["é", "ü"]),
]


@pytest.mark.parametrize(("text", "words"), SPLITS)
def test_split(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize("text", ['a "b', "a 'b", '"a"b', "'a'b", '"a\\"', "a '\\'"])
def test_unbalanced_quotes(text: str) -> None:
    with pytest.raises(ValueError, match="Unbalanced quotes in configuration line"):
        split_words(text)


@given(st.lists(st.binary(max_size=8).map(lambda b: b.decode("utf-8", "surrogateescape")), max_size=4))
def test_quoted_words_split_to_themselves(words: list[str]) -> None:
    line = "name " + " ".join(map(quote, words))
    assert "\n" not in line
    assert split_words(line) == ["name", *words]


@given(st.text(max_size=20))
def test_splitting_raises_nothing_but_valueerror(text: str) -> None:
    try:
        words = split_words(text)
    except ValueError:
        return
    assert len(words) <= len(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1024", 1024), ("10b", 10), ("1k", 1000), ("1kb", 1024), ("64MB", 64 << 20), ("1m", 10**6),
     ("1gb", 1 << 30), ("2G", 2 * 10**9), ("-1", -1)],
)  # fmt: skip
def test_memory_values(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "mb", "5xb", "1.5gb", "5 mb", "--5", "٣mb", "1kbb"])
def test_wrong_memory_values(text: str) -> None:
    with pytest.raises(ValueError, match="argument must be a memory value"):
        parse_memory(text)


def test_lines_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("# c\n\n  port 1 # no comment\r\n\t#x\nbind a b\n")
    lines = list(conffile.read_file(str(path)))
    assert [(line.number, line.words) for line in lines] == [
        (3, ["port", "1", "#", "no", "comment"]),
        (5, ["bind", "a", "b"]),
    ]
    assert lines[0].where() == f"Reading the configuration file, at line 3 of file {path}"


def test_included_lines_take_the_place_of_the_include(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/2.conf").write_text("c 2\n")
    (tmp_path / "d/1.conf").write_text("b 1\n")
    main = tmp_path / "main.conf"
    main.write_text(f'a 0\ninclude "{tmp_path}/d/*.conf"\ninclude {tmp_path}/none/*.conf\nd 3\n')
    assert [line.words[0] for line in conffile.read_file(str(main))] == ["a", "b", "c", "d"]


def test_include_of_a_missing_file_names_both_files(tmp_path: Path) -> None:
    main = tmp_path / "main.conf"
    main.write_text(f"\ninclude {tmp_path}/none.conf\n")
    with pytest.raises(ConfigError) as caught:
        list(conffile.read_file(str(main)))
    report = caught.value.report("9.9")
    assert f"can't open config file '{tmp_path}/none.conf': No such file or directory" in report
    assert f"at line 2 of file {main}" in report


def test_include_of_itself(tmp_path: Path) -> None:
    main = tmp_path / "main.conf"
    main.write_text(f"include {main}\n")
    with pytest.raises(ConfigError, match="does a file include itself"):
        list(conffile.read_file(str(main)))


def test_unbalanced_quotes_name_the_line() -> None:
    with pytest.raises(ConfigError) as caught:
        list(conffile.read_text('port 1\nlogfile "x\n', "-"))
    assert caught.value.report("1.2.3") == (
        "\n*** FATAL CONFIG FILE ERROR (tidelog 1.2.3) ***\n"
        "Reading the configuration file, at line 2 of standard input\n"
        ">>> 'logfile \"x'\n"
        "Unbalanced quotes in configuration line\n"
    )


def test_flags() -> None:
    lines = conffile.read_flags(["--port", "1", "--save", "900", "1", "--x", "a b", "-1", "--y"], lambda _: False)
    assert [line.words for line in lines] == [["port", "1"], ["save", "900", "1"], ["x", "a b", "-1"], ["y"]]
    assert [line.text for line in lines][2] == '--x "a b" -1'
    with pytest.raises(ConfigError, match="written --name value"):
        conffile.read_flags(["port", "1"], lambda _: False)


def test_nearest_known_word() -> None:
    assert conffile.nearest("APENDFSYNC", ["appendonly", "appendfsync"]) == "appendfsync"
    assert conffile.nearest("qqqq", ["appendonly", "appendfsync"]) is None
