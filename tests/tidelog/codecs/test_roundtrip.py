"""Every value is either refused when it is sent, or comes back as it was: each codec, each kind of value."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import hiredis
import msgspec
import pydantic
import pytest

from tidelog import Entry, StreamId
from tidelog.codecs import Codec, CodecError, codec_for
from tidelog.codecs.codec import NAMES
from tidelog.codecs.roundtrip import difference
from tidelog.topics.sending import Keyed, RecordWindow

ID = StreamId(5, 1)


class Size(Enum):
    SMALL = "s"
    LARGE = "1"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Colour(StrEnum):
    RED = "red"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True):
    my_id: int
    my_list: list[int] = []
    my_text: str = "x"


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int
    b: str | None = None


class NoEq(msgspec.Struct, eq=False):
    a: int
    b: float


class Growing(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        self.a += 1


class Sub(Closed):
    c: int = 5


@dataclasses.dataclass
class Derived:
    a: int
    b: int = dataclasses.field(init=False, default=3)
    c: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.c = self.a * 2


def derived(c: int) -> Derived:
    made = Derived(1)
    made.b, made.c = 9, c
    return made


class Row(TypedDict):
    a: int
    b: NotRequired[float | None]


class Plain(pydantic.BaseModel):
    a: int
    b: float | None = None


class Computed(pydantic.BaseModel, extra="forbid"):
    a: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.a


class NestedComputed(pydantic.BaseModel, extra="forbid"):
    one: Computed
    many: list[Computed] = []


class Secret(pydantic.BaseModel):
    a: int
    password: pydantic.SecretStr


class Shown(pydantic.BaseModel):
    a: int
    password: pydantic.SecretStr

    @pydantic.field_serializer("password")
    def show(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


class Aliased(pydantic.BaseModel):
    a: int = pydantic.Field(alias="A")
    b: int = pydantic.Field(default=1, validation_alias="bIn", serialization_alias="bOut")


class Excluded(pydantic.BaseModel):
    a: int
    cache: int = pydantic.Field(default=0, exclude=True)


class NeededExcluded(pydantic.BaseModel):
    a: int
    cache: int = pydantic.Field(exclude=True)


class Rounded(pydantic.BaseModel):
    a: float

    @pydantic.field_serializer("a")
    def short(self, value: float) -> float:
        return round(value, 1)


class Private(pydantic.BaseModel):
    a: int
    _made: object = pydantic.PrivateAttr(default_factory=object)


class Open(pydantic.BaseModel, extra="allow"):
    a: int


class Positive(pydantic.BaseModel):
    a: int = pydantic.Field(gt=0)


class Constants(pydantic.BaseModel, ser_json_inf_nan="constants"):
    a: float


def struct(kind: Any) -> Any:
    """A record type with a field of this kind."""
    return msgspec.defstruct("Made", [("id", int), ("value", kind)])


def typed(kind: Any, *values: Any) -> list[tuple[str, Any, Any]]:
    made = struct(kind)
    return [(f"{kind} {value!r:.40}", made, made(1, value)) for value in values]


AMSTERDAM = datetime(1850, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam"))  # 19 minutes and 32 seconds from UTC
BIG = (2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400)
FLOATS = (0.1, -0.0, 5e-324, 1.7e308, math.nan, math.inf, -math.inf, 3, 2**53 + 1, 10**400, True, "1.5", Decimal("1.5"))
TEXTS = ("", "null", "Müller", "\x00\r\n", "\ud800", "a\udfffb", 5, b"x", Colour.RED)
TIMES = (
    datetime(2026, 1, 1), datetime(2026, 1, 1, 1, 2, 3, 456789, UTC),  # noqa: DTZ001 - naive ones are values too
    datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Oslo")), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5))),
    AMSTERDAM, datetime.max, datetime.min, date(2026, 1, 1), "2026-01-01T00:00:00Z",  # noqa: DTZ901
)  # fmt: skip
DECIMALS = (*map(Decimal, ("1.10", "1E+5", "-0", "NaN", "sNaN", "Infinity")), 1.5, "1.5")
ANYTHING = (
    1, 1.5, "x", None, True, [1, [2]], {"a": {"b": 1}}, math.nan, [math.inf], {"a": math.nan}, 2**70, b"\xff", (1, 2),
    {1, 2}, {1: 2}, Decimal("1.5"), UUID(int=1), TIMES[0], TIMES[1], date(2026, 1, 1), timedelta(1), Size.SMALL,
    Colour.RED, Level.LOW, Cat("Tom"), Plain(a=1), Derived(1), "\ud800", object(), 1j,
)  # fmt: skip

CASES: list[tuple[str, Any, Any]] = [
    *typed(int, 0, -1, *BIG, True, 1.0, 1.5, "7", None),
    *typed(int | None, 7, None, "null"),
    *typed(Annotated[int, msgspec.Meta(ge=0)], 5, -5),
    *typed(float, *FLOATS),
    *typed(float | None, *FLOATS, None),
    *typed(list[float], [0.5, math.nan], [math.inf], [1]),
    *typed(str, *TEXTS, None),
    *typed(str | None, *TEXTS, None),
    *typed(Annotated[str, msgspec.Meta(max_length=2)], "ab", "abc"),
    *typed(Annotated[str, msgspec.Meta(pattern="^a$")], "a", "b"),
    *typed(bool, True, False, 1, "true"),
    *typed(bytes, b"", b"\xff\x00", bytearray(b"x"), memoryview(b"y"), "x"),
    *typed(datetime, *TIMES),
    *typed(Annotated[datetime, msgspec.Meta(tz=True)], TIMES[0], TIMES[1]),
    *typed(date, date(2026, 1, 1), date.min, TIMES[1]),
    *typed(time, time(1, 2, 3, 4), time(1, 2, tzinfo=UTC), time(1, tzinfo=timezone(timedelta(seconds=90)))),
    *typed(timedelta, timedelta(microseconds=-1), timedelta.max, timedelta.min, 5),
    *typed(UUID, UUID(int=5), str(UUID(int=5)), "x"),
    *typed(Decimal, *DECIMALS),
    *typed(Size, Size.SMALL, Size.LARGE, "s"),
    *typed(Level, Level.LOW, 1, 5),
    *typed(Colour, Colour.RED, "red"),
    *typed(Rights, Rights.READ, Rights.READ | Rights.WRITE, Rights(0)),
    *typed(Literal["a", "b"], "a", "c"),
    *typed(Literal[1, 2], 1, 3),
    *typed(Literal["a", None], "a", None, "b"),
    *typed(Cat | Dog, Cat("Tom"), Dog("Rex"), Closed(1)),
    *typed(Closed, Closed(1), Sub(1, "x", 6)),
    *typed(Renamed, Renamed(1), Renamed(2, [3], "y")),
    *typed(NoEq, NoEq(1, 2.0), NoEq(1, math.nan)),
    *typed(set[int], {1, 2}, [1]),
    *typed(frozenset[str], frozenset({"a"})),
    *typed(tuple[int, str], (1, "a"), [1, "a"], (1,)),
    *typed(dict[int, str], {1: "a"}, {"1": "a"}),
    *typed(dict[UUID, int], {UUID(int=1): 1}),
    *typed(dict[float, int], {1.5: 1}, {math.nan: 1}),
    *typed(dict[str, float], {"a": 1.5}, {"a": math.nan}),
    *typed(int | str, 1, "1", 2.5),
    *typed(float | str, 1.5, "1.5", math.nan),
    *typed(int | msgspec.UnsetType, 1, msgspec.UNSET),
    *typed(Any, *ANYTHING),
    *typed(object, *ANYTHING),
    *typed(dict, {"a": 1}, {"a": math.nan}, {1: 2}),
    *typed(list, [1], [(1,)], [math.nan]),
    ("renamed", Renamed, Renamed(1, [2], "z")),
    ("closed", Closed, Closed(1)),
    ("__post_init__", Growing, Growing(1)),
    ("no eq", NoEq, NoEq(1, 2.5)),
    ("no eq, NaN", NoEq, NoEq(1, math.nan)),
    ("tagged", Cat, Cat("Tom")),
    ("init=False", Derived, derived(2)),
    ("init=False, lost", Derived, derived(77)),
    ("TypedDict", Row, {"a": 1, "b": 2.5}),
    ("TypedDict, NaN", Row, {"a": 1, "b": math.nan}),
    ("TypedDict, null", Row, {"a": 1, "b": None}),
    ("TypedDict, more", Row, {"a": 1, "x": 2}),
    ("TypedDict, wrong", Row, {"a": "1"}),
    ("dict", dict, {"a": "1"}),
    ("dict, surrogate", dict, {"a": "\ud800"}),
    ("dict, surrogate as name", dict, {"\ud800": "a"}),
    ("dict of int", dict[str, int], {"a": 2**70}),
    ("dict of float", dict[str, float], {"a": math.nan, "b": math.inf, "c": 1}),
    ("dict of float or None", dict[str, float | None], {"a": math.nan}),
    ("model", Plain, Plain(a=1, b=2.5)),
    ("model, NaN", Plain, Plain(a=1, b=math.nan)),
    ("model, infinity", Plain, Plain(a=1, b=math.inf)),
    ("model, wrong", Plain, Plain.model_construct(a="x")),
    ("computed", Computed, Computed(a=1)),
    ("computed, nested", NestedComputed, NestedComputed(one=Computed(a=1), many=[Computed(a=2)])),
    ("secret", Secret, Secret(a=1, password="x")),  # type: ignore[arg-type]
    ("secret, shown", Shown, Shown(a=1, password="x")),  # type: ignore[arg-type]
    ("aliases", Aliased, Aliased.model_validate({"A": 1, "bIn": 5})),
    ("excluded", Excluded, Excluded(a=1)),
    ("excluded, set", Excluded, Excluded(a=1, cache=5)),
    ("excluded, needed", NeededExcluded, NeededExcluded(a=1, cache=5)),
    ("rounded", Rounded, Rounded(a=1.5)),
    ("rounded, lost", Rounded, Rounded(a=1.55)),
    ("private", Private, Private(a=1)),
    ("extra", Open, Open.model_validate({"a": 1, "b": "x"})),
    ("extra, a time", Open, Open.model_validate({"a": 1, "b": TIMES[1]})),
    ("constraint", Positive, Positive(a=1)),
    ("constraint, broken", Positive, Positive.model_construct(a=-1)),
    ("constants", Constants, Constants(a=math.nan)),
    *(
        (f"model with Any {value!r:.40}", Holder, Holder(value=value))
        for Holder in [pydantic.create_model("Holder", id=(int, 1), value=(Any, ...))]
        for value in ANYTHING
    ),
]

#: Cases that must come back, of these codecs: refusing everything would be no codec.
BACK = {
    "<class 'int'> 9223372036854775807": "all", "<class 'float'> nan": "plain msgpack",
    "<class 'float'> inf": "plain msgpack", "<class 'float'> 3": "all", "<class 'str'> 'null'": "all",
    "renamed": "json msgpack", "closed": "all", "no eq": "all", "no eq, NaN": "plain msgpack",
    "init=False": "all", "model": "all", "computed": "all",
    "computed, nested": "json msgpack", "secret, shown": "json msgpack", "aliases": "all", "excluded": "all",
    "private": "all", "extra": "json msgpack", "TypedDict, null": "json msgpack", "constants": "json msgpack",
    "typing.Any 'x'": "json msgpack", "<class 'decimal.Decimal'> Decimal('NaN')": "all", "tagged": "json msgpack",
    "<class 'datetime.datetime'> datetime.datetime(2026, 1, 1, 0, 0)": "all", "constraint": "all",
}  # fmt: skip
#: Cases that no codec may take, and those that no packed one may: the plain form knows no serializers.
REFUSED = {
    "<class 'float'> '1.5'", "<class 'int'> 1.5", "<class 'str'> '\\ud800'", "secret", "TypedDict, more",
    "TypedDict, wrong", "constraint, broken", "model, wrong", "__post_init__", "init=False, lost", "extra, a time",
}  # fmt: skip
REFUSED_PACKED = {"excluded, set", "rounded, lost", "excluded, needed"}


def read(codec: Codec[Any], names: Any, values: Any) -> Any:
    words: Any = tuple(word for pair in zip(names, values, strict=True) for word in pair)
    reader = hiredis.Reader()
    reader.feed(hiredis.pack_command(words))
    flat: Any = reader.gets()
    return codec.decode(Entry(ID, flat), b"s")


def packed_together(codec: Codec[Any], record: Any) -> None:
    """See that a record that is refused is refused among others too: by the codec, or when they are packed."""
    with pytest.raises(CodecError):
        RecordWindow(_Source(codec)).add([record, record])


class _Source:
    """What a RecordWindow needs of a topic."""

    def __init__(self, codec: Codec[Any]) -> None:
        self.codec = codec
        self.keyed = Keyed("topic", None, codec.shape.mapping)
        self.streams = ["s:0"]


def comes_back(codec: Codec[Any], record: Any) -> bool:
    """Whether it is taken; then it must be the same when it is read, alone and among others."""
    try:
        names, values = codec.encode(record)
    except CodecError:
        packed_together(codec, record)
        return False
    back = read(codec, names, values)
    if codec.name == "plain" and isinstance(record, dict):
        record = {field: value for field, value in record.items() if value is not None}  # None is left out
    assert difference(record, back) == ""
    many = codec.encode_alike([record, record])
    assert many is None or list(map(list, many[1])) == [list(values)] * 2 or codec.name.endswith("zstd")
    return True


@pytest.mark.parametrize("name", NAMES)
def test_values_come_back_or_are_refused(name: str) -> None:
    taken: set[str] = set()
    wrong: list[str] = []
    for case, record_type, record in CASES:
        try:
            codec = codec_for(record_type, name)
        except CodecError:  # when the topic is declared
            continue
        try:
            if comes_back(codec, record):
                taken.add(case)
        except Exception as error:  # noqa: BLE001 - all of them are told
            wrong.append(f"{case}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    form = name.partition("+")[0]
    assert {case for case, forms in BACK.items() if forms == "all" or form in forms} <= taken
    assert not taken & (REFUSED if name == "plain" else REFUSED | REFUSED_PACKED)
    assert {case for case, _, _ in CASES} >= BACK.keys() | REFUSED | REFUSED_PACKED


@pytest.mark.parametrize(
    ("record_type", "record", "message"),
    [
        (struct(float), (1, math.nan), r"could not be read again: .* \(JSON has no NaN and no infinity"),
        (struct(float | None), (1, math.nan), r"value: float nan comes back as NoneType None \(JSON has no NaN"),
        (struct(Any), (1, {"a": [(1, 2)]}), r"value\['a'\]\[0\]: tuple \(1, 2\) comes back as list \[1, 2\]"),
        (struct(Any), (1, b"x"), r"value: bytes b'x' comes back as str 'eA=='"),
        (struct(Any), (1, {1: 2}), r"value: the key int 1 does not come back as it is"),
        (struct(list[int]), (1, "x"), r"could not be read again: Expected `array`, got `str` - at `\$.value`"),
        (struct(Closed), (1, Sub(1)), r"value: Sub Sub\(a=1, b=None, c=5\) comes back|could not be read again: "),
    ],
)
def test_the_error_says_where_and_what(record_type: Any, record: tuple[Any, ...], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec_for(record_type, "json").encode(record_type(*record))


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(CodecError, match="password comes back as another value, which looks the same") as raised:
        codec_for(Secret, "json").encode(Secret(a=1, password="hush"))  # type: ignore[arg-type]
    assert "hush" not in str(raised.value)


class Odd(Enum):
    PAIR = (1, 2)


class OneOrOther(msgspec.Struct):
    value: Closed | NoEq


@pytest.mark.parametrize("record_type", [struct(Odd), struct(Closed | NoEq), OneOrOther])
@pytest.mark.parametrize("name", [None, *NAMES])
def test_types_that_cannot_be_read_are_refused_when_they_are_declared(record_type: Any, name: str | None) -> None:
    with pytest.raises(CodecError):
        codec_for(record_type, name)
