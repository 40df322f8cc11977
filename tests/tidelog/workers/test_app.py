"""What a program declares: the users' API as it is shown, and everything that makes no sense, refused at once."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest

from tests.tidelog.workers.feedkit import Order, made
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.workers import (
    App,
    AppError,
    DeadLetter,
    Event,
    Events,
    Halt,
    Park,
    Pause,
    Policy,
    Retry,
    Skip,
    Take,
)

if TYPE_CHECKING:
    from decimal import Decimal


class Paid(msgspec.Struct):
    id: int


class Row(TypedDict):
    id: int


@dataclasses.dataclass
class Base:
    id: int


@dataclasses.dataclass
class Derived(Base):
    more: str


async def handle(order: Order) -> None: ...


async def handle_event(event: Event[Order]) -> None: ...


async def handle_events(events: Events[Order]) -> None: ...


async def handle_batch(batch: list[Order]) -> None: ...


def test_the_api_as_it_is_shown() -> None:
    app = App("shop", url="redis://localhost:6379")
    orders = app.topic("orders", Order, partition_by="id", partitions=16, partition_size=50_000)

    @app.each(
        orders, ordering="key", concurrency=100, on_error=[Retry(3, first=1.0, most=60.0), DeadLetter()], timeout=30
    )
    async def bill(order: Order) -> None: ...

    @app.batch(orders, take=Take(100, within=0.5))
    async def index(batch: list[Order]) -> None: ...

    @app.processor(orders)
    async def printer(events: Events[Order]) -> None:
        async for _ in events.records():
            pass

    assert asyncio.iscoroutinefunction(bill)  # still the function that it was
    assert list(app.processors) == ["bill", "index", "printer"]
    one, many, form = app.processors.values()
    assert (one.group, one.kind, one.wants) == ("shop.bill", "each", "record")
    assert (one.ordering, one.concurrency) == ("key", 100)
    assert (one.timeout, one.policy) == (30.0, Policy(Retry(3, 1.0, 60.0), DeadLetter()))
    assert (many.kind, many.wants, many.take, many.ordering, many.concurrency) == (
        "batch", "record", Take(100, 0.5), "partition", 1,
    )  # fmt: skip
    assert (form.kind, form.wants) == ("events", "event")
    assert app.topics == {"orders": orders}
    assert app.access == Access(("redis://localhost:6379",))
    assert orders.url == "redis://localhost:6379"


def test_defaults() -> None:
    app, orders = made()
    app.each(orders)(handle)
    declared = app.processors["handle"]
    assert (declared.ordering, declared.concurrency, declared.ack, declared.take) == ("partition", 1, "after", None)
    assert (declared.timeout, declared.middleware, declared.transactional) == (None, (), False)
    assert (declared.prefetch, declared.start) == (1000, "earliest")
    assert declared.policy == Policy(Retry(3, first=1.0, most=60.0), DeadLetter())
    assert (app.lease, app.grace, app.middleware) == (10.0, 30.0, ())
    app.each(orders, name="work", ordering="none")(handle)
    assert app.processors["work"].concurrency == 100
    app.batch(orders, name="large", take=Take(5000))(handle_batch)
    assert app.processors["large"].prefetch == 5000


def test_the_app_gives_policy_and_middleware() -> None:
    async def outer(events: Any, call_next: Any) -> None: ...

    async def inner(events: Any, call_next: Any) -> None: ...

    app, orders = made(on_error=[Skip()], middleware=[outer])
    app.each(orders, name="a")(handle)
    app.each(orders, name="b", on_error=[Halt()], middleware=[inner])(handle)
    assert (app.processors["a"].policy, app.processors["a"].middleware) == (Policy(None, Skip()), (outer,))
    assert (app.processors["b"].policy, app.processors["b"].middleware) == (Policy(None, Halt()), (outer, inner))


def test_the_key_of_a_record() -> None:
    app, orders = made()
    app.each(orders, name="a", ordering="key")(handle)
    app.each(orders, name="b", ordering="key", key=lambda order: order.item)(handle)
    app.each(orders, name="c", ordering="key", key=lambda order: 1.5)(handle)  # type: ignore[arg-type, return-value]
    assert app.processors["a"].key_of(Order(7, "tea")) == b"7"
    assert app.processors["b"].key_of(Order(7, "tea")) == b"tea"
    with pytest.raises(TypeError, match=r"processor 'c': key: a partition key is str, int, bytes or UUID"):
        app.processors["c"].key_of(Order(7, "tea"))


def test_select() -> None:
    app, orders = made()
    app.each(orders)(handle)
    app.each(orders, name="other")(handle)
    assert [one.name for one in app.select()] == ["handle", "other"]
    assert [one.name for one in app.select(["other"])] == ["other"]
    with pytest.raises(AppError, match="has no processor 'bil': it has handle, other"):
        app.select(["bil"])


# -- signatures ----------------------------------------------------------------------------------------------
async def bare(order): ...  # type: ignore[no-untyped-def]


async def with_default(order: Order, rate: float = 1.0) -> None: ...


async def hidden(price: Decimal) -> None: ...


async def star(*orders: Order) -> None: ...


class Handler:
    async def __call__(self, order: Order) -> None: ...

    async def method(self, event: Event[Order]) -> None: ...


@pytest.mark.parametrize(
    ("function", "wants"),
    [
        (handle, "record"), (handle_event, "event"), (bare, "record"), (with_default, "record"), (hidden, "record"),
        (star, "record"), (Handler(), "record"), (Handler().method, "event"),
        (functools.partial(with_default, rate=2.0), "record"),
    ],
)  # fmt: skip
def test_what_a_function_wants(function: Any, wants: str) -> None:
    app, orders = made()
    app.each(orders, name="it")(function)
    assert app.processors["it"].wants == wants


def test_annotations_that_only_a_type_checker_can_look_up() -> None:
    async def one(event: Event[Decimal]) -> None: ...

    async def many(batch: list[Event[Decimal]]) -> None: ...

    async def plain(batch: list[Decimal]) -> None: ...

    app, orders = made()
    app.each(orders)(one)
    app.batch(orders, take=Take(2))(many)
    app.batch(orders, take=Take(2))(plain)
    assert [declared.wants for declared in app.processors.values()] == ["event", "event", "record"]


def test_what_a_batch_wants() -> None:
    async def events(batch: list[Event[Order]]) -> None: ...

    async def sequence(batch: Sequence[Order]) -> None: ...

    async def untyped(batch): ...  # type: ignore[no-untyped-def]

    app, orders = made()
    for function in (events, sequence, untyped, handle_batch):
        app.batch(orders, take=Take(2))(function)
    assert [declared.wants for declared in app.processors.values()] == ["event", "record", "record", "record"]


def test_records_of_other_kinds() -> None:
    app = App("shop")

    async def row(row: Row) -> None: ...

    async def plain(row: dict[str, str]) -> None: ...

    async def base(one: Base) -> None: ...

    async def union(one: Base | None) -> None: ...

    app.each(app.topic("rows", Row))(row)
    app.each(app.topic("dicts"))(plain)
    derived = app.topic("derived", Derived)
    app.each(derived)(base)
    app.each(derived)(union)
    assert {declared.wants for declared in app.processors.values()} == {"record"}


def generator_of(order: Order) -> Any:
    async def generator(order: Order) -> AsyncIterator[None]:
        yield None

    return generator


def no_coroutine(order: Order) -> None: ...


async def takes_nothing() -> None: ...


async def takes_two(order: Order, rate: float) -> None: ...


async def keyword_only(*, order: Order) -> None: ...


async def takes_paid(paid: Paid) -> None: ...


async def takes_paid_event(event: Event[Paid]) -> None: ...


async def takes_paid_events(events: Events[Paid]) -> None: ...


@pytest.mark.parametrize(
    ("kind", "function", "message"),
    [
        ("each", no_coroutine, r"processor 'it' is not async: async def no_coroutine\(record: Order\) -> None"),
        ("each", 5, "processor 'it' is not a function, but 5"),
        ("each", generator_of(Order(1, "")), "contains a yield, so it is a generator"),
        ("each", takes_nothing, "processor 'it' needs nothing, but is called with one argument"),
        ("each", takes_two, "processor 'it' needs order, rate, but is called with one argument"),
        ("each", keyword_only, "processor 'it' needs order, but is called with one argument"),
        ("each", takes_paid, r"processor 'it' takes Paid, but the topic has Order: async def takes_paid\(record: "),
        ("each", takes_paid_event, r"takes Paid, but the topic has Order"),
        ("each", handle_batch, r"takes list\[.*Order\], but app.each passes another type"),
        ("each", handle_events, r"takes .*Events\[.*Order\], but app.each passes another type"),
        ("batch", handle, r"takes Order, but app.batch passes a list: async def handle\(batch: list\[Order\]\)"),
        ("processor", handle, r"takes Order, but app.processor passes Events: async def handle\(events: Events"),
        ("processor", handle_event, "but app.processor passes Events"),
        ("processor", takes_paid_events, "takes Paid, but the topic has Order"),
    ],
)
def test_functions_that_do_not_fit(kind: str, function: Any, message: str) -> None:
    app, orders = made()
    more: dict[str, Any] = {"take": Take(2)} if kind == "batch" else {}
    with pytest.raises(AppError, match=message):
        getattr(app, kind)(orders, name="it", **more)(function)
    assert app.processors == {}


# -- options -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurency": 5}, "app.each has no option 'concurency': did you mean 'concurrency'?"),
        ({"xyzzy": 5}, "app.each has no option 'xyzzy': known are ack, "),
        ({"take": Take(5)}, "app.each has no option 'take'"),
        ({"name": "a b"}, "a processor can't have the name 'a b'"),
        ({"name": "a.b"}, "a processor can't have the name 'a.b'"),
        ({"ordering": "keys"}, "processor 'it': ordering must be 'partition' or 'key' or 'none': 'keys'"),
        ({"concurrency": 5}, "with ordering='partition' each partition has one call at a time"),
        ({"ordering": "key", "concurrency": 0}, "concurrency must be a whole number from 1: 0"),
        ({"ordering": "key", "concurrency": True}, "concurrency must be a whole number from 1: True"),
        ({"ack": "never"}, "ack must be 'after' or 'before' or 'manual': 'never'"),
        ({"ack": "manual"}, "its function must take an Event"),
        ({"timeout": 0}, "timeout must be a positive number of seconds: 0"),
        ({"timeout": "30"}, "timeout must be a positive number of seconds: '30'"),
        ({"prefetch": 0}, "prefetch must be a whole number from 1: 0"),
        ({"start": "newest"}, "start must be earliest, latest, an ID such as .*: 'newest'"),
        ({"transactional": 1}, "transactional must be True or False: 1"),
        ({"transactional": True}, "its function must take an Event"),
        ({"transactional": True, "ordering": "none"}, "transactional requires an owner of the partition"),
        ({"transactional": True, "ack": "before"}, "remove ack='before'"),
        ({"key": len}, "key requires ordering='key', but ordering is 'partition'"),
        ({"ordering": "key", "key": "id"}, "key is not a function, but 'id'"),
        ({"ordering": "key", "key": lambda: 1}, "key does not accept one argument"),
        ({"on_error": Skip()}, r"on_error must be a list such as \[Retry\(3\), DeadLetter\(\)\]"),
        ({"on_error": [Park()]}, r"Park\(\) retains a key, so it requires ordering='key'"),
        ({"on_error": [Pause()], "ordering": "none"}, r"Pause\(\) requires an owner of the partition"),
        ({"on_error": [Park()], "ordering": "key", "ack": "before"}, "because ack='before' has acknowledged"),
        ({"on_error": [DeadLetter("orders")]}, r"DeadLetter\('orders'\) is the topic itself"),
        ({"middleware": print}, "processor 'it': middleware must be a list, outermost first"),
        ({"middleware": [print]}, "middleware print is not async"),
        ({"middleware": [Handler]}, r"middleware Handler is a class: write Handler\(...\)"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    app, orders = made()
    with pytest.raises(AppError, match=message):
        app.each(orders, **{"name": "it", **options})(handle)
    assert app.processors == {}


def test_options_of_batches_and_processors() -> None:
    app, orders = made()
    with pytest.raises(AppError, match=r"'b': app.batch needs take=Take\(count, within=seconds\): 100"):
        app.batch(orders, name="b", take=100)(handle_batch)  # type: ignore[arg-type]
    with pytest.raises(AppError, match=r"app\.batch does not support ordering='key', only 'partition' or 'none'"):
        app.batch(orders, name="b", take=Take(2), ordering="key")(handle_batch)
    with pytest.raises(AppError, match=r"app\.processor does not support ordering='none', only 'partition'"):
        app.processor(orders, name="p", ordering="none")(handle_events)
    with pytest.raises(AppError, match=r"app\.processor has no option 'concurrency'"):
        app.processor(orders, name="p", concurrency=2)(handle_events)  # type: ignore[call-arg]
    with pytest.raises(AppError, match="prefetch=50 is less than the 100 events of a batch"):
        app.batch(orders, name="b", take=Take(100), prefetch=50)(handle_batch)
    app.processor(orders, name="p", ack="manual", transactional=False)(handle_events)
    app.batch(orders, name="b", take=Take(100), ordering="none", concurrency=4)(handle_batch)
    assert (app.processors["b"].concurrency, app.processors["p"].ack) == (4, "manual")


def test_a_key_needs_something_to_come_from() -> None:
    app = App("shop")
    rows = app.topic("rows", Row)
    with pytest.raises(AppError, match=r"ordering='key' needs a key, and topic 'rows' has no partition_by"):
        app.each(rows, name="it", ordering="key")(bare)


def test_names_are_used_once() -> None:
    app, orders = made()
    app.each(orders)(handle)
    with pytest.raises(AppError, match=r"app 'shop' has a processor 'handle' already: specify another name='...'"):
        app.batch(orders, name="handle", take=Take(2))(handle_batch)
    with pytest.raises(AppError, match="has a topic 'orders' already"):
        app.topic("orders", Order)
    with pytest.raises(AppError, match="has a topic 'orders' already"):
        app.each(Topic("orders", Order))(handle_event)
    with pytest.raises(AppError, match=r"can't have the name '': .* Specify name='...'"):
        app.each(orders)(functools.partial(with_default, rate=2.0))


def test_dead_letters_are_kept_apart_from_records() -> None:
    app, orders = made()
    app.topic("paid", Paid)
    app.topic("failures", dict[str, bytes])
    with pytest.raises(AppError, match="its dead letters would go to topic 'paid', which contains Paid"):
        app.each(orders, name="it", on_error=[DeadLetter("paid")])(handle)
    app.each(orders, name="it", on_error=[DeadLetter("failures")])(handle)


def test_topics_are_on_the_server_of_the_app() -> None:
    app = App("shop", url="redis://me:secret@a")
    with pytest.raises(AppError, match=r"topic 'rows' is on b, but app 'shop' on a: .* Leave url") as raised:
        app.each(Topic("rows", Row, url="redis://me:secret@b"))(bare)
    assert "secret" not in str(raised.value)
    app.each(Topic("rows", Row, url="redis://me:secret@a"))(bare)
    app.each(Topic("others", Row), name="other")(bare)


def test_a_topic_comes_first() -> None:
    app, _ = made()
    with pytest.raises(AppError, match=r"a processor needs a topic from app.topic\(...\), not <function handle"):
        app.each(handle)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 0}, "topic 'other': partitions must be a whole number from 1 to 100,000: 0"),
        ({"partition_by": "nr"}, "topic 'other'.*'nr'"),
        ({"partition_by": 5}, "topic 'other'.*5"),
        ({"partition_by": lambda: 1}, "topic 'other': partition_by does not accept one argument"),
        ({"partitionby": "id"}, "topic 'other': got an unexpected keyword argument 'partitionby'"),
        ({"codec": "xml"}, "topic 'other': unknown codec 'xml'"),
        ({"overflow": "drop"}, "overflow='drop' needs partition_size or max_age"),
    ],
)
def test_topics_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    app, _ = made()
    with pytest.raises(AppError, match=message):
        app.topic("other", Order, **options)
    assert list(app.topics) == ["orders"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "my shop"}, "an app can't have the name 'my shop': 1 to 100 letters"),
        ({"name": "shop.eu"}, "an app can't have the name 'shop.eu'"),
        ({"url": "localhost"}, "app 'shop': urls must be redis://"),
        ({"url": "redis://a", "access": Access()}, "url and access both specify the server"),
        ({"lease": 0}, "lease must be a number of seconds, at least 0.2: 0"),
        ({"lease": "10"}, "lease must be a number of seconds"),
        ({"grace": float("inf")}, "grace must be a number of seconds"),
        ({"lease": 60}, r"lease \(60 s\) is longer than grace \(30.0 s\)"),
        ({"on_error": [Retry(3)]}, "on_error needs exactly one final action"),
        ({"middleware": 5}, "app 'shop': middleware must be a list"),
    ],
)
def test_apps_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AppError, match=message):
        App(**{"name": "shop", **options})


def test_an_app_with_several_servers() -> None:
    access = Access(("redis://a", "redis://b"), password="secret")
    app = App("shop", access=access)
    assert app.access is access
    assert app.topic("orders", Order).url is None  # the worker gives it a client of the leader
