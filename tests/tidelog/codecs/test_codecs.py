"""Records to entries and back, in each form, for each kind of record type."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID

import hiredis
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog import Entry, StreamId
from tidelog.codecs import Codec, CodecError, UndecodableError, codec_for
from tidelog.codecs.codec import NAMES

KEY = b"orders:3"
ID = StreamId(5, 1)


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Order(msgspec.Struct):
    id: int
    item: str
    price: float | None = None
    gift: bool = False


@dataclass
class Line:
    id: int
    item: str
    price: float | None = None
    gift: bool = False


class Row(TypedDict):
    id: int
    item: str
    price: NotRequired[float | None]
    gift: bool


class Model(pydantic.BaseModel):
    id: int
    item: str
    price: float | None = None
    gift: bool = False


class Everything(msgspec.Struct):
    text: str
    number: int
    real: float
    yes: bool
    raw: bytes
    moment: datetime
    day: date
    span: timedelta
    name: UUID
    money: Decimal
    size: Size
    colour: Literal["red", "green"]
    left_out: int | None


class Nested(msgspec.Struct):
    id: int
    lines: list[Order]


def entry(codec: Codec[Any], record: Any) -> Entry:
    """The entry that a server returns for a record: all values as bytes."""
    names, values = codec.encode(record)
    reader = hiredis.Reader()
    words: Any = tuple(word for pair in zip(names, values, strict=True) for word in pair)
    reader.feed(hiredis.pack_command(words))
    flat: Any = reader.gets()
    return Entry(ID, flat)


MADE: list[tuple[Any, Any]] = [
    (Order, Order(7, "tea", 2.5, True)),
    (Order, Order(-1, "", None, False)),
    (Line, Line(7, "tea", 2.5, True)),
    (Line, Line(7, "tea")),
    (Row, {"id": 7, "item": "tea", "price": 2.5, "gift": True}),
    (Row, {"id": 7, "item": "tea", "gift": False}),
    (Model, Model(id=7, item="tea", price=2.5, gift=True)),
    (Model, Model(id=7, item="tea")),
    (dict, {"a": "1", "b": "text"}),
    (dict[str, bytes], {"a": b"\xff", "b": b""}),
    (dict[str, int], {"a": 1, "b": -2}),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("record_type", "record"), MADE)
def test_there_and_back(name: str, record_type: Any, record: Any) -> None:
    codec = codec_for(record_type, name)
    assert codec.name == name
    assert codec.decode(entry(codec, record), KEY) == record


def test_plain_is_text_that_others_can_read() -> None:
    record = Everything(
        "Müller", 7, 2.5, True, b"\xff\x00", datetime(2026, 11, 22, 6, tzinfo=UTC), date(2026, 11, 22),
        timedelta(seconds=5), UUID(int=1), Decimal("1.10"), Size.LARGE, "red", None,
    )  # fmt: skip
    codec = codec_for(Everything)
    assert codec.name == "plain"
    made = entry(codec, record)
    assert made.fields == {
        b"text": "Müller".encode(), b"number": b"7", b"real": b"2.5", b"yes": b"true", b"raw": b"\xff\x00",
        b"moment": b"2026-11-22T06:00:00Z", b"day": b"2026-11-22", b"span": b"PT5S",
        b"name": b"00000000-0000-0000-0000-000000000001", b"money": b"1.10", b"size": b"l", b"colour": b"red",
    }  # fmt: skip
    assert codec.decode(made, KEY) == record


@given(
    st.builds(
        Order, id=st.integers(-(2**63), 2**63 - 1), item=st.text(st.characters(exclude_categories=["Cs"])),
        price=st.none() | st.floats(allow_nan=False), gift=st.booleans(),
    ),
    st.sampled_from(NAMES),
)  # fmt: skip
def test_any_record_comes_back_as_it_was(record: Order, name: str) -> None:
    if name != "plain" and record.price is not None and abs(record.price) == float("inf"):
        return  # JSON has no infinity
    codec = codec_for(Order, name)
    assert codec.decode(entry(codec, record), KEY) == record


def alike(codec: Codec[Any], records: list[Any]) -> list[tuple[Any, Any]] | None:
    """What ``encode_alike`` makes, as ``encode`` would return it for each record."""
    made = codec.encode_alike(records)
    return made and [(made[0], values) for values in made[1]]


@given(
    st.sampled_from([Order, Line, Model, dict]), st.sampled_from(NAMES),
    st.lists(
        st.fixed_dictionaries(
            {"id": st.integers(-(2**63), 2**63 - 1), "item": st.text(st.characters(exclude_categories=["Cs"]))},
            optional={"price": st.none() | st.floats(-1e300, 1e300) | st.integers(-9, 9), "gift": st.booleans()},
        )
    ),
)  # fmt: skip
def test_many_are_written_as_each_is(record_type: Any, name: str, rows: list[dict[str, Any]]) -> None:
    if record_type is dict:
        rows = [{field: str(value) for field, value in row.items()} for row in rows]
    records = [record_type(**row) for row in rows]
    codec = codec_for(record_type, name)
    made = alike(codec, records)
    if made is None:
        kinds = {tuple((field, type(value)) for field, value in row.items()) for row in rows}
        assert len(kinds) != 1  # they differ in their names or types, or there is none
    else:
        assert repr(made) == repr([codec.encode(record) for record in records])  # by repr, as nan is not nan


@pytest.mark.parametrize(("record_type", "record"), MADE)
def test_many_that_are_alike_are_written_together(record_type: Any, record: Any) -> None:
    for name in NAMES:
        codec = codec_for(record_type, name)
        assert alike(codec, [record] * 3) == [codec.encode(record)] * 3


def test_a_number_that_msgpack_cannot_hold() -> None:
    codec = codec_for(Order, "msgpack")
    for write in (codec.encode, lambda record: codec.encode_alike([record])):
        with pytest.raises(CodecError, match="Order: a record can't be written as msgpack: can't serialize ints"):
            write(Order(2**70, "tea"))


def test_many_of_which_one_is_wrong() -> None:
    codec = codec_for(Order)
    assert codec.encode_alike([Order(1, "tea"), Line(2, "tea")]) is None
    assert codec.encode_alike([Order(1, "tea"), Order("2", "tea")]) is None  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="the field 'id' is int, not str '2'"):
        codec.encode_alike([Order("2", "tea")])  # type: ignore[arg-type]


def test_the_form_follows_the_type() -> None:
    assert codec_for(Order).name == "plain"
    assert codec_for(Nested).name == "json"
    assert codec_for(dict).name == "plain"
    assert codec_for(dict[str, list[int]]).name == "json"


def test_nested_records_are_packed() -> None:
    record = Nested(1, [Order(7, "tea"), Order(8, "milk", 1.0)])
    for name in NAMES[1:]:
        codec = codec_for(Nested, name)
        assert codec.decode(entry(codec, record), KEY) == record
        assert entry(codec, record).flat[0] == b"data"


def test_fields_of_newer_and_older_programs() -> None:
    codec = codec_for(Order)
    assert codec.decode(Entry(ID, [b"id", b"7", b"item", b"tea", b"new", b"\xff"]), KEY) == Order(7, "tea")
    with pytest.raises(UndecodableError, match="missing required field `item`"):
        codec.decode(Entry(ID, [b"id", b"7"]), KEY)


@dataclass
class DefaultedNull:
    id: int
    price: float | None = 5.0


@dataclass
class AllOptional:
    a: int | None = None
    b: list[int] = field(default_factory=list)


class Tagged(msgspec.Struct, tag=True):
    id: int


class Empty(msgspec.Struct):
    pass


@pytest.mark.parametrize(
    ("record_type", "name", "message"),
    [
        (int, None, "int is not a record type: use a msgspec.Struct"),
        (list[Order], None, "is not a record type"),
        (dict[int, str], None, "the keys of a dict are names"),
        (Order, "xml", "unknown codec 'xml': one of plain, json"),
        (Nested, "plain", "Nested has no plain form: its field 'lines' is not one scalar. codec='json'"),
        (DefaultedNull, "plain", "'price' may be None and has another default"),
        (Tagged, "plain", "it is tagged"),
        (Empty, None, "Empty has no fields"),
    ],
)
def test_types_that_cannot_be_used_say_why(record_type: Any, name: str | None, message: str) -> None:
    with pytest.raises(CodecError, match=message.replace("(", r"\(").replace("[", r"\[")):
        codec_for(record_type, name)


@pytest.mark.parametrize(
    ("record_type", "record", "message"),
    [
        (Order, {"id": 7, "item": "tea"}, "a record must be a Order, not dict"),
        (Order, Order("7", "tea"), "the field 'id' is int, not str '7'"),  # type: ignore[arg-type]
        (Order, Order(True, "tea"), "the field 'id' is int, not bool True"),
        (Order, Order(7, None), "the field 'item' is str, not NoneType None"),  # type: ignore[arg-type]
        (Row, {"id": 7, "item": "tea"}, "Row: no field 'gift'"),
        (Row, {"id": 7, "item": "tea", "gift": True, "x": 1}, "Row has no field 'x'"),
        (dict, {"a": [1]}, "the field 'a' is str, not list"),
        (dict, {1: "a"}, "a name must be str, not int 1"),
        (dict, {}, "a record without a value"),
        (dict, "text", "a record must be a dict"),
    ],
)
def test_records_of_another_type_are_refused_before_they_are_sent(record_type: Any, record: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec_for(record_type).encode(record)


@pytest.mark.parametrize(
    ("name", "flat", "message"),
    [
        ("plain", [b"id", b"seven", b"item", b"tea"], "not a Order: Expected `int`, got `str`"),
        ("plain", [b"id", b"7", b"item", b"\xff"], "is not UTF-8"),
        ("json", [b"id", b"7"], "no field 'data', so it was not written with the codec json"),
        ("json", [b"data", b"{"], "not a Order in json: Input data was truncated"),
        ("msgpack", [b"data", b"\xc1"], "not a Order in msgpack"),
        ("json+zstd", [b"data", b"{}"], "not compressed with zstd"),
        # a frame that says 2^40 bytes
        ("json+zstd", [b"data", bytes.fromhex("28b52ffdc0000000000000010000010000")], "not compressed with zstd"),
    ],
)
def test_entries_that_are_no_records_name_key_id_and_reason(name: str, flat: list[bytes], message: str) -> None:
    with pytest.raises(UndecodableError, match=message) as caught:
        codec_for(Order, name).decode(Entry(ID, flat), KEY)
    assert str(caught.value).startswith("entry 5.1 of orders:3: ")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.key, again.entry, str(again)) == (KEY, Entry(ID, flat), str(caught.value))


def test_plans_are_bounded_and_types_are_checked_for_each_combination() -> None:
    codec: Any = codec_for(dict)
    for number in range(2500):
        codec.encode({f"field{number}": "x"})
    assert len(codec.plans) <= 1000
    with pytest.raises(CodecError):
        codec.encode({"field2499": 1})
