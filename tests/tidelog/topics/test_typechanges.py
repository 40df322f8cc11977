"""Types of fields that change: only so that what is stored can be read, and by a remedy that the error names."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner

from tidelog import Client, Entry, StreamId
from tidelog.cli.program import main
from tidelog.codecs import codec_for
from tidelog.codecs.codec import NAMES
from tidelog.codecs.recordtypes import KINDS
from tidelog.testing import Server
from tidelog.topics import Topic, TopicMismatchError
from tidelog.topics.typechanges import judged
from tidelog.transport.call import Value


class Size(Enum):
    SMALL = "s"


TYPES: dict[str, tuple[Any, list[Any]]] = {
    "str": (str, ["", "tea", "7"]), "int": (int, [0, -7, 2**53]), "float": (float, [0.1, -2.5, 1e300]),
    "bool": (bool, [True, False]), "bytes": (bytes, [b"", b"\xff"]),
    "datetime": (datetime, [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)]),  # noqa: DTZ001
    "date": (date, [date(2026, 1, 1)]), "time": (time, [time(1, 2, 3)]), "timedelta": (timedelta, [timedelta(1, 5)]),
    "uuid": (UUID, [UUID(int=7)]), "decimal": (Decimal, [Decimal("1.10"), Decimal("NaN")]),
    "enum": (Size, [Size.SMALL]), "literal": (Literal["a"], ["a"]),
}  # fmt: skip


def record(**fields: Any) -> Any:
    return msgspec.defstruct("Order", list(fields.items()))


def stored(values: tuple[Value, ...]) -> list[bytes]:
    return [bytes(each) if isinstance(each, bytes | bytearray) else str(each).encode() for each in values]


def test_the_types_are_all_there() -> None:
    assert tuple(TYPES) == KINDS


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("there", KINDS)
def test_what_may_change_can_be_read(codec: str, there: str) -> None:
    kind, values = TYPES[there]
    before = codec_for(record(id=int, value=kind), codec)
    union: dict[str, Any] = {}
    if codec != "plain" and there not in ("datetime", "date", "time", "timedelta", "uuid", "decimal", "bytes", "enum"):
        other = bool if there != "bool" else int
        union = {f"{there}|{'bool' if other is bool else 'int'}": kind | other if there != "literal" else None}
    for wanted in (*KINDS, *(name for name, made in union.items() if made is not None)):
        named, reason = judged(codec, there, wanted, is_key=False, removed=False)
        if reason:
            assert f"it is {there}: what is stored can't be read as {wanted} with the codec {codec}" in reason
            continue
        after = codec_for(record(id=int, value=union.get(wanted) or TYPES[wanted][0]), codec)
        assert after.shape.fields[1].kind == named
        for value in values:
            names, row = before.encode(before.shape.type(1, value))
            flat = [part for pair in zip(map(str.encode, names), stored(row), strict=True) for part in pair]
            read = after.decode(Entry(StreamId(1), flat), b"s").value
            if there in ("int", "float", "bool") and wanted != "str" and wanted != "bytes":
                assert float(read) == value


def test_what_may_change_and_what_may_not() -> None:
    def may(codec: str, there: str, wanted: str, **options: Any) -> bool:
        return not judged(codec, there, wanted, **({"is_key": False, "removed": False} | options))[1]

    for codec in NAMES:
        assert may(codec, "int", "float")
        assert not may(codec, "float", "int")
        assert not may(codec, "str", "int")
        assert may(codec, "str", "int", removed=True)
        assert not may(codec, "int", "float", is_key=True)
        assert not may(codec, "int", "float", is_key=True, removed=True)
    assert may("plain", "int", "str")
    assert may("plain", "int", "str", is_key=True)
    assert not may("json", "int", "str")
    assert may("json", "int", "int|str")
    assert may("json", "int", "str | float | null")
    assert not may("json", "int", "str|bool")
    assert not may("json", "int", "json")
    assert may("json", "int", "int|json")
    assert may("json", "json", "str", removed=True)
    assert not may("plain", "int", "int|str")
    assert not may("plain", "int", "int|str", removed=True)
    assert not may("json", "int", "number")
    assert not may("json", "int", "null")


# -- with a server ---------------------------------------------------------------------------------------------
def alter(server: Server, *words: str, ok: bool = True) -> str:
    found = CliRunner().invoke(main, ["topics", "alter", *words], env={"TIDELOG_URL": server.url})
    assert (found.exit_code == 0) is ok, found.output
    return found.output


def use(server: Server, record_type: Any, *records: Any, codec: str | None = None, partitions: int = 1) -> Topic[Any]:
    topic: Topic[Any] = Topic("o", record_type, partition_by="id", partitions=partitions, url=server.url, codec=codec)
    try:
        topic.sync.ready()
        for each in records:
            topic.sync.send(each)
    finally:
        topic.sync.close()
    return topic


@pytest.mark.parametrize("codec", NAMES)
def test_the_error_names_a_remedy_that_helps(tidelog_server: Server, client: Client, codec: str) -> None:
    before, after = record(id=int, price=int), record(id=int, price=float)
    use(tidelog_server, before, before(1, 2), codec=codec)
    with pytest.raises(TopicMismatchError) as refused:
        use(tidelog_server, after, after(1, 2.5), codec=codec)
    command = re.search(r"or: tidelog (topics alter .*)$", str(refused.value))
    assert command is not None
    words = shlex.split(command[1])
    assert words == ["topics", "alter", "o", "--field", "price=float"]
    assert "price float" in alter(tidelog_server, *words[2:])
    topic = use(tidelog_server, after, after(1, 2.5), codec=codec)
    assert [topic.decode(entry, 0) for entry in client.trange("o:0")] == [after(1, 2.0), after(1, 2.5)]
    with pytest.raises(TopicMismatchError, match=r"'float' on the server, 'int' here.* or: another name for the field"):
        use(tidelog_server, before, codec=codec)


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("kinds", [(int, str), (str, int), (bytes, float)])
def test_a_field_that_was_taken_out_may_become_anything(
    tidelog_server: Server, client: Client, codec: str, kinds: tuple[Any, Any]
) -> None:
    first, second = kinds
    a, b, c = record(id=int), record(id=int, ref=first), record(id=int, ref=second)
    value = {int: 5, str: "x", bytes: b"x", float: 2.5}
    use(tidelog_server, a, a(1), codec=codec, partitions=4)
    use(tidelog_server, b, b(2, value[first]), codec=codec, partitions=4)
    change = f"ref={second.__name__}"
    if kinds != (int, str) or codec != "plain":
        assert "what is stored can't be read" in alter(tidelog_server, "o", "--field", change, ok=False)
    use(tidelog_server, a, a(3), codec=codec, partitions=4)
    with pytest.raises(TopicMismatchError, match=f"tidelog topics alter o --field {change}"):
        use(tidelog_server, c, codec=codec, partitions=4)
    alter(tidelog_server, "o", "--field", change)
    use(tidelog_server, c, c(4, value[second]), codec=codec, partitions=4)


def test_a_union(tidelog_server: Server, client: Client) -> None:
    before, after = record(id=int, ref=int), record(id=int, ref=int | str)
    use(tidelog_server, before, before(1, 2), codec="json")
    with pytest.raises(TopicMismatchError, match=re.escape("topics alter o --field 'ref=int|...' with the union")):
        use(tidelog_server, after, codec="json")
    alter(tidelog_server, "o", "--field", "ref=int|str")
    topic = use(tidelog_server, after, after(1, "x"), codec="json")
    assert [topic.decode(entry, 0).ref for entry in client.trange("o:0")] == [2, "x"]


def test_what_is_refused_changes_nothing(tidelog_server: Server, client: Client) -> None:
    kind = record(id=int, price=int, item=str)
    use(tidelog_server, kind, kind(1, 2, "tea"))
    before = client.redis.get("topic:o")
    for changes, message in (
        (["id=float"], "it is the partition key"), (["item=int"], "it is str: what is stored can't be read as int"),
        (["price=float", "item=int"], "field 'item'"), (["none=int"], "has no field 'none'; known fields: id, price"),
        (["price=number"], "'number' is no type: one of str, int"), (["price"], "is not FIELD=TYPE"),
        (["price=int|str"], "the codec plain has no unions"),
    ):  # fmt: skip
        words = [word for change in changes for word in ("--field", change)]
        assert message in alter(tidelog_server, "o", *words, ok=False)
    assert client.redis.get("topic:o") == before
    alter(tidelog_server, "o", "--field", "price=float", "--partition-size", "5")
    facts = use(tidelog_server, record(id=int, price=float, item=str)).settings
    assert (facts.fields["price"], facts.retention.partition_size) == ("float", 5)


def test_an_empty_topic_and_one_whose_records_wait(tidelog_server: Server, client: Client) -> None:
    kind = record(id=int, price=str)
    topic: Topic[Any] = use(tidelog_server, kind)
    alter(tidelog_server, "o", "--field", "price=int")
    number = record(id=int, price=int)
    topic = use(tidelog_server, number)
    topic.sync.send(number(1, 5), delay=1000)
    topic.sync.close()
    assert "can't be read as bool" in alter(tidelog_server, "o", "--field", "price=bool", ok=False)
