"""Log lines: they look like those of redis-server, an event is one line, and logging never fails."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from respserver.observe.logs import LEVELS, Logger, take_over_logging

SHAPE = re.compile(
    r"\d+:M \d\d (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} \d\d:\d\d:\d\d\.\d{3} ([.\-*#]) (.*)\n"
)


@pytest.fixture
def logger(tmp_path: Path) -> Logger:
    return Logger(str(tmp_path / "log"), "debug")


def read(logger: Logger) -> list[tuple[str, str]]:
    """Level signs and texts of all lines; asserts that every line looks like one of redis-server."""
    matches = [SHAPE.fullmatch(line) for line in Path(logger.path).read_text().splitlines(keepends=True)]
    assert all(matches)
    return [(m[2], m[3]) for m in matches if m]


def test_format_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        line = Logger().line(LEVELS["notice"], "Ready to accept connections", 1795252440.1239)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert line == f"{os.getpid()}:M 21 Nov 2026 09:14:00.123 * Ready to accept connections\n"


@pytest.mark.parametrize("level", list(LEVELS))
def test_levels(logger: Logger, level: str) -> None:
    Path(logger.path).touch()
    logger.set_level(level)
    logger.debug("a")
    logger.verbose("b")
    logger.notice("c")
    logger.warning("d")
    assert read(logger) == [(".", "a"), ("-", "b"), ("*", "c"), ("#", "d")][LEVELS[level] :]


def test_a_client_cannot_forge_a_line(logger: Logger) -> None:
    logger.notice("name is x\n1:M 01 Jan 2026 00:00:00.000 * forged \r\n\x1b[31m\udcff")
    (line,) = read(logger)
    assert line[1] == "name is x\\n1:M 01 Jan 2026 00:00:00.000 * forged \\r\\n\\x1b[31m\\udcff"


def test_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    Logger().notice("hello é")
    out = capfd.readouterr().out
    match = SHAPE.fullmatch(out)
    assert match
    assert match[3] == "hello é"


def test_a_renamed_file_is_created_again(logger: Logger) -> None:
    logger.notice("one")
    os.rename(logger.path, logger.path + ".1")
    logger.notice("two")
    assert read(logger) == [("*", "two")]


def test_logging_never_fails(tmp_path: Path) -> None:
    logger = Logger(str(tmp_path / "no" / "log"))
    logger.warning("lost")
    with pytest.raises(FileNotFoundError):
        logger.check()
    if os.path.exists("/dev/full"):
        Logger("/dev/full").warning("lost too")


def test_trace(logger: Logger) -> None:
    try:
        raise ValueError("what\nnow")
    except ValueError as exc:
        logger.trace("a bug", exc)
    lines = read(logger)
    assert lines[0] == ("#", "a bug")
    assert any("test_logs.py" in text for _, text in lines)
    assert [text for _, text in lines[-2:]] == ["ValueError: what", "now"]


@pytest.fixture
def root_handlers() -> Iterator[None]:
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before


@pytest.mark.usefixtures("root_handlers")
def test_records_of_pythons_logging_module(logger: Logger) -> None:
    take_over_logging(logger)
    logging.getLogger("asyncio").warning("%s was slow", "x")
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("asyncio").exception("oops")
    lines = read(logger)
    assert lines[0] == ("#", "asyncio: x was slow")
    assert lines[1] == ("#", "asyncio: oops")
    assert lines[-1] == ("#", "KeyError: 'k'")
