"""Options: durations, sizes, structures; all problems at once, each with its path."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tidelog.options.structs import Problems, Struct, nearest, read
from tidelog.options.units import Duration, Size


class Inner(Struct):
    wait: Duration = Duration(1.0)


class Outer(Struct):
    name: str
    wait: Duration | None = None
    most: Size = Size(1)
    inner: Inner | None = None
    several: list[Inner] = []  # noqa: RUF012 - a structure of msgspec copies it
    plain: list[int] = []  # noqa: RUF012 - the same
    map: dict[str, Size] = {}  # noqa: RUF012 - the same
    answers: dict[str, Literal["ok", "reject"]] = {}  # noqa: RUF012 - the same

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("name is 'bad': take another")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("200ms", 0.2), ("5s", 5), ("1m30s", 90), ("1.5h", 5400), ("2d", 172_800), ("10us", 1e-5), ("7ns", 7e-9),
        (3, 3), (0.5, 0.5), (0, 0), ("1 m 30 s", 90), ("0s", 0),
    ],
)  # fmt: skip
def test_durations(given: object, seconds: float) -> None:
    assert Duration.read(given) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "given", ["5", "s", "", "5x", "5s!", "-5s", "5s6", -1, True, None, float("inf"), float("nan"), [1]]
)
def test_no_durations(given: object) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 200ms, 5s or 1m30s"):
        Duration.read(given)


@pytest.mark.parametrize(
    ("given", "size"), [("64KB", 65536), ("1mb", 1 << 20), ("2 GB", 2 << 30), ("7", 7), (9, 9), ("3b", 3)]
)
def test_sizes(given: object, size: int) -> None:
    assert Size.read(given) == size


@pytest.mark.parametrize("given", ["KB", "", "1.5MB", "-1", -1, True, None, 2.5, "1TB"])
def test_no_sizes(given: object) -> None:
    with pytest.raises(ValueError, match="is not a size such as 64KB or 1MB"):
        Size.read(given)


def wrong(given: dict[str, Any]) -> list[tuple[str, str]]:
    problems = Problems()
    assert read(Outer, given, "f.c", problems) is None
    assert problems
    return problems.found


def test_a_structure_is_read_whole() -> None:
    problems = Problems()
    several = [{}, {"wait": "3s"}]
    given = {"name": "x", "wait": "5s", "most": "1KB", "inner": {"wait": 2}, "several": several, "map": {"a": "1KB"}}
    made = read(Outer, given, "f.c", problems)
    assert made == Outer(
        name="x", wait=Duration(5), most=Size(1024), inner=Inner(wait=Duration(2)),
        several=[Inner(), Inner(wait=Duration(3))], map={"a": Size(1024)},
    )  # fmt: skip
    assert not problems
    first, second = read(Outer, {"name": "x"}, "", problems), read(Outer, {"name": "x"}, "", problems)
    assert first is not None
    assert second is not None
    first.plain.append(1)
    assert second.plain == []


def test_all_problems_are_found_with_their_paths() -> None:
    several: list[Any] = [{}, {"wait": []}]
    given = {"wait": "5", "inner": {"wiat": 1}, "several": several, "plain": [1, "x"], "colour": 1, "most": "1TB"}
    assert wrong(given) == [
        ("f.c.wait", "'5' is not a duration such as 200ms, 5s or 1m30s"),
        ("f.c.inner.wiat", "unknown option 'wiat'; did you mean 'wait'?"),
        ("f.c.several[1].wait", "[] is not a duration such as 200ms, 5s or 1m30s"),
        ("f.c.plain[1]", "Expected `int`, got `str`"),
        ("f.c.colour", "unknown option 'colour'; known are answers, inner, map, most, name, plain, several, wait"),
        ("f.c.most", "'1TB' is not a size such as 64KB or 1MB"),
        ("f.c", "the option 'name' is missing"),
    ]


def test_a_wrong_value_of_a_mapping_is_named() -> None:
    given = {"name": "x", "map": {"a": "1KB", "b": "1TB"}, "answers": {"out": "perhaps", "in": "ok"}}
    assert wrong(given) == [
        ("f.c.map.b", "'1TB' is not a size such as 64KB or 1MB"),
        ("f.c.answers.out", "Invalid enum value 'perhaps'; known are ok, reject"),
    ]


def test_what_does_not_fit_together_is_said_by_the_structure() -> None:
    assert wrong({"name": "bad"}) == [("f.c", "name is 'bad': take another")]


def test_names_that_are_no_strings_are_unknown_options() -> None:
    assert wrong({"name": "x", True: 1})[0][1].startswith("unknown option True")  # type: ignore[dict-item]


def test_the_nearest_name() -> None:
    assert nearest("cuont", ["count", "timeout"]) == "did you mean 'count'?"
    assert nearest("x", ["count", "bytes"]) == "known are bytes, count"
    assert nearest("x", []) == "there are none"
