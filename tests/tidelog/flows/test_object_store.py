"""``object_store`` with files, S3, Google Cloud Storage, and Azure: each object once, formats, rejects, outages."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import zstandard

from tests.tidelog.flows.netkit import feed, running, seen
from tests.tidelog.flows.objectkit import SECRET, S3Peer, StorePeer, azure_peer, gcs_peer, s3_peer
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError, op
from tidelog.flows.api.connector import Sink
from tidelog.flows.connectors.objects import stores
from tidelog.flows.connectors.objects.options import ObjectStoreOptions
from tidelog.flows.connectors.objects.positions import ObjectPositions
from tidelog.flows.connectors.objects.reading import ObjectQueue
from tidelog.flows.connectors.objects.stores import ListedObject, RemoteStore
from tidelog.flows.connectors.pathpatterns import fixed_directory, path_pattern, reaches
from tidelog.flows.declare import warnings
from tidelog.flows.files import read_text
from tidelog.flows.service.views import without_secrets

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "flows" / "objects.yaml"
SOON = {"reconnect": {"retry": {"first": "20ms", "most": "100ms"}}}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Peer]:
    with s3_peer() as peer:
        yield peer


class Place:
    """A directory of a store, which a test fills and reads."""

    def __init__(self, url: str, files: Any, options: dict[str, Any], position: Path) -> None:
        self.url = url
        self.options = {"storage_options": options} if options else {}
        self._files = files
        self._top = url.partition("://")[2]
        self.position = str(position)

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._top}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, data)

    def contents(self) -> dict[str, bytes]:
        found = self._files.find(self._top) if self._files.exists(self._top) else []
        return {each.removeprefix(f"{self._top}/"): self._files.cat_file(each) for each in found}


@pytest.fixture(scope="module")
def gs() -> Iterator[StorePeer]:
    with gcs_peer() as peer:
        yield peer


@pytest.fixture(scope="module")
def az() -> Iterator[StorePeer]:
    with azure_peer() as peer:
        yield peer


@pytest.fixture(params=["file", "s3", "gs", "az"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of("file", request, tmp_path)


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    position = tmp_path / "position"
    if kind == "file":
        import fsspec

        (tmp_path / "objects").mkdir()
        return Place(f"file://{tmp_path}/objects", fsspec.filesystem("file"), {}, position)
    peer: S3Peer | StorePeer = request.getfixturevalue(kind)
    return Place(f"{kind}://shop/{uuid4().hex}", peer.files(), peer.options, position)


def reading(place: Place, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("read")
    given = {"every": "20ms", "position": place.position, **place.options, **SOON, **options}
    flow.connector("in", "object_store", url=f"{place.url}/", **given)
    out = seen(flow)
    flow.connect("in -> seen")
    return flow, out


def writing(place: Place, name: str, *operators: Any, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("write")
    flow.connector("out", "object_store", url=f"{place.url}/{name}", **{**place.options, **SOON, **options})
    source = feed(flow)
    if operators:
        flow.pipeline("work", *operators)
        flow.connect("in -> work -> out")
    else:
        flow.connect("in -> out")
    return flow, source


def events(*values: Any) -> list[Event]:
    return [Event(value, {}, number) for number, value in enumerate(values)]


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in values)


def parquet(*rows: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), out)
    return out.getvalue()


def rows(data: bytes) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
    return found


@pytest.mark.parametrize(
    "options",
    [{"token": "a/b+s3cret=="}, {"connection_string": "AccountName=a;AccountKey=a/b+s3cret=="}, {"key": "a/b+s3cret=="},
     {"client_kwargs": {"password": "a/b+s3cret=="}}],
)  # fmt: skip
def test_no_error_contains_a_secret_of_the_options(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "a/b+s3cret=="

    class Files:
        def __init__(self, **_: Any) -> None:
            raise OSError(f"can't reach /tokeninfo?access_token={quote(secret, safe='')}; {quote(secret)}; {secret}")

    monkeypatch.setattr(stores, "file_system", lambda *_: Files)
    with pytest.raises(OSError, match="can't reach") as found:
        asyncio.run(RemoteStore("gs", options, 5.0).open())
    assert str(found.value) == "OSError: can't reach /tokeninfo?access_token=***; ***; ***"
    assert found.value.__suppress_context__


# -- source ----------------------------------------------------------------------------------------------------
@in_loop
async def test_each_object_is_read_once_also_after_a_restart(place: Place) -> None:
    put = lambda name, data: asyncio.to_thread(place.put, name, data)  # noqa: E731 - a short name
    await put("a.jsonl", lines(1, 2))
    await put("x/y/b.jsonl.gz", gzip.compress(lines(3)) + gzip.compress(lines(4)))
    await put("x/_SUCCESS", b"")
    flow, out = reading(place)
    async with running(flow) as made:
        await until(lambda: sorted(out.values) == [1, 2, 3, 4])
        await put("x/c.jsonl.zst", zstandard.compress(lines(5)))
        await put("0.csv", b"id,name\r\n6,\"a\nb\"\r\n7,c\r\n")
        await until(lambda: len(out.values) == 7)
        await until(lambda: not made.graph.sources["in"].unsettled)
    rest = [5, {"id": "6", "name": "a\nb"}, {"id": "7", "name": "c"}]
    assert sorted(out.values[4:], key=str) == sorted(rest, key=str)
    assert out.events[-1].meta["object"].startswith(place.url)
    assert out.events[-1].meta["number"] == (1 if out.events[-1].value == 5 else 2)
    await put("new.parquet", await asyncio.to_thread(parquet, {"n": 8, "at": None}))
    flow, out = reading(place)
    async with running(flow):
        await until(lambda: out.values == [{"n": 8, "at": None}])
        await put("a.jsonl", lines(9))  # it is replaced
        await until(lambda: out.values[1:] == [9])


@in_loop
async def test_events_that_are_not_settled_are_read_again(local: Place) -> None:
    local.put("a.jsonl", lines(*range(10)))
    local.put("b.jsonl", lines(*range(10, 20)))

    class Stuck(Sink):
        got: list[int] = []  # noqa: RUF012 - of the only object

        async def write(self, events: list[Event]) -> None:
            self.got += [each.value for each in events]
            if self.got[-1] >= 5:
                await asyncio.Event().wait()

    flow = Flow("read")
    flow.connector("in", "object_store", url=f"{local.url}/", every="20ms", position=local.position, max_unsettled=3)
    flow.connector("out", Stuck)
    flow.connect("in -> out")
    async with running(flow):
        await until(lambda: Stuck.got and Stuck.got[-1] >= 5)
    settled = len(Stuck.got) // 3 * 3 - 3  # complete writes
    flow, out = reading(local)
    async with running(flow):
        await until(lambda: out.values and out.values[-1] == 19)
    assert out.values == list(range(out.values[0], 20))
    assert 0 < out.values[0] <= max(settled, 5)


@in_loop
async def test_the_existing_objects_are_read_and_the_source_ends(local: Place) -> None:
    local.put("logs/2026/a.txt", b"one\ntwo\n")
    local.put("logs/b.txt", b"three")
    local.put("other/c.txt", b"four\n")
    flow, out = reading(local, every=None, position=None, match="logs/**/*.txt")
    async with running(flow) as made, asyncio.timeout(20):
        await made.finished()
    assert sorted(out.values) == ["one", "three", "two"]


@in_loop
async def test_objects_that_are_not_valid_do_not_stop_the_source(local: Place) -> None:
    local.put("a.jsonl", b'1\n{"a"\n2\n')
    local.put("b.jsonl.gz", gzip.compress(lines(*range(3, 200)), 0)[:-300])
    local.put("c.parquet", b"PAR1 no")
    local.put("d.jsonl", b"x" * 300_000 + b"\n")
    local.put("e.jsonl", lines(1000))
    flow = Flow("read")
    flow.connector("in", "object_store", url=f"{local.url}/", every=None, max_bytes="100KB")
    out, errors = seen(flow), seen(flow, "errors")
    flow.connect("in -> seen", "in.err -> errors")
    async with running(flow) as made, asyncio.timeout(20):
        await made.finished()
    assert out.values[0:2] == [1, 2]
    assert out.values[-1] == 1000
    assert len(errors.events) == 4
    names = [each.meta["object"].rpartition("/")[2] for each in errors.events]
    assert names == ["a.jsonl", "b.jsonl.gz", "c.parquet", "d.jsonl"]


def test_the_position_forgets_objects_that_no_longer_exist(tmp_path: Path) -> None:
    path = tmp_path / "position"
    one = ObjectPositions(path)
    with pytest.raises(OSError, match="another source uses it"):
        ObjectPositions(path)
    listed = [ListedObject(f"{n:03}", "v1", 1.0, 10) for n in range(100)]
    assert one.merge("d/", listed) == 100
    taken = [one.take() for _ in range(100)]
    assert [each.name for each in taken if each] == [each.name for each in listed]
    assert one.take() is None
    one.settle([each for each in taken[:99] if each], taken[99], 7)
    one.close()
    one = ObjectPositions(path)
    left = one.take()
    assert left is not None
    assert (left.name, left.settled) == ("099", 7)
    assert one.merge("d/", listed[98:]) == 0
    assert one.merge("d/", listed) == 98  # they had been removed
    one.retain({"e/"})
    assert one.merge("d/", listed) == 100
    one.close()
    path.write_bytes(b"no position at all" * 100)
    with pytest.raises(ValueError, match="is not a position of object_store"):
        ObjectPositions(path)


def test_the_position_is_used_by_several_threads(tmp_path: Path) -> None:
    positions = ObjectPositions(tmp_path / "position")

    def add(number: int) -> None:
        positions.merge(f"{number}/", [ListedObject(f"{n}", "v", 1.0, 1) for n in range(20)])

    def settle(_: int) -> int:
        taken = [one for _ in range(20) if (one := positions.take()) is not None]
        positions.settle(taken, None, 0)
        return len(taken)

    with ThreadPoolExecutor(8) as pool:
        added, settled = pool.map(add, range(50)), pool.map(settle, range(50))
        assert len(list(added)) == 50
        count = sum(settled)
    while one := positions.take():
        positions.settle([one], None, 0)
        count += 1
    positions.close()
    assert count == 1000
    with pytest.raises(OSError, match="position: Cannot operate on a closed database"):
        positions.take()


@in_loop
async def test_an_object_that_is_taken_while_the_source_closes_is_not_lost(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.put("a.jsonl", lines(1))
    options = ObjectStoreOptions(url=f"{local.url}/", position=local.position)
    store, queue = options.store(), ObjectQueue(options, lambda _: None)
    await queue.open()
    await queue.search(store)
    taking, closing = threading.Event(), threading.Event()
    take = ObjectPositions.take

    def slow(self: ObjectPositions) -> Any:
        taking.set()
        assert closing.wait(30)
        return take(self)

    monkeypatch.setattr(ObjectPositions, "take", slow)
    task = asyncio.ensure_future(queue.fill(store))
    await until(taking.is_set)
    task.cancel()
    closing.set()
    await asyncio.wait((task,))
    await queue.close()
    await queue.open()
    assert await queue.fill(store)
    assert [each.value for each in queue.found] == [1]
    await queue.close()


# -- sink ------------------------------------------------------------------------------------------------------
@in_loop
async def test_events_become_objects_of_the_names_in_the_template(place: Place) -> None:
    flow, source = writing(place, "{region|none}/{unique}.jsonl.gz", object_events=100, object_age="100ms")
    values = [{"n": number, "region": "../north" if number % 2 else "south"} for number in range(420)]
    async with running(flow):
        source.give(*events(*values, {"n": 420}, object()))
        await until(lambda: len(source.outcomes) == 422)
    found = await asyncio.to_thread(place.contents)
    assert source.outcomes[421][0] == "reject"
    assert {source.outcomes[each][0] for each in range(421)} == {"ok"}
    decoded = {name: [json.loads(line) for line in gzip.decompress(data).splitlines()] for name, data in found.items()}
    assert sorted(each["n"] for some in decoded.values() for each in some) == list(range(421))
    assert {name.partition("/")[0] for name in decoded} == {"..%2Fnorth", "south", "none"}
    assert sum(len(each) == 100 for each in decoded.values()) == 4
    for name, some in decoded.items():
        assert {each.get("region", "none").replace("/", "%2F") for each in some} == {name.partition("/")[0]}


@in_loop
async def test_values_that_do_not_fit_a_column_are_rejected(place: Place) -> None:
    given = {"format": "parquet", "columns": {"id": "int64", "at": "timestamp", "tags": "string"}}
    flow, source = writing(place, "{unique}", object_age="50ms", **given)
    async with running(flow):
        source.give(*events({"id": 1, "at": "2026-01-01T00:00:00Z"}, {"id": "x"}, {"id": "3"}, {"other": 1}, [1], {}))
        await until(lambda: len(source.outcomes) == 6)
    assert [source.outcomes[each][0] for each in range(6)] == ["ok", "reject", "ok", "reject", "reject", "reject"]
    assert "column id: 'x' can't be stored as int64" in source.outcomes[1][1]
    ((_, data),) = (await asyncio.to_thread(place.contents)).items()
    assert [(each["id"], str(each["at"])) for each in rows(data)] == [(1, "2026-01-01 00:00:00+00:00"), (3, "None")]


@in_loop
async def test_columns_without_types_have_those_of_the_events(local: Place) -> None:
    good: list[Any] = [
        {"n": 1, "tags": ["a"]}, {"n": 2.5, "more": {"a": 1}}, {"n": None, "more": {"b": "x"}}, {"n": 3},
    ]  # fmt: skip
    flow, source = writing(local, "{unique}.parquet", object_age="50ms")
    async with running(flow):
        source.give(*events(*good, {"n": "text"}, {"n": 1 << 70}, {"n": 4, "empty": {}}))
        await until(lambda: len(source.outcomes) == 7)
    assert [source.outcomes[each][0] for each in range(7)] == ["ok"] * 4 + ["reject"] * 3
    assert "column n: 'text' can't be stored as double" in source.outcomes[4][1]
    ((_, data),) = local.contents().items()
    assert [each["n"] for each in rows(data)] == [1, 2.5, None, 3]
    assert rows(data)[1]["more"] == {"a": 1, "b": None}


@in_loop
async def test_a_batch_of_the_operator_is_an_object(local: Place) -> None:
    flow, source = writing(local, "{meta.shop}/{unique}.csv", op("batch", count=3), object_events=1)
    async with running(flow):
        given = events({"n": 1, "a": "x"}, {"n": 2, "a": "y,z"}, {"n": 3, "b": 1})
        for each in given:
            each.meta["shop"] = "rome"
        source.give(*given)
        await until(lambda: len(source.outcomes) == 3)
    assert [source.outcomes[each][0] for each in range(3)] == ["ok", "ok", "reject"]
    ((name, data),) = local.contents().items()
    assert name.startswith("rome/")
    assert list(csv.DictReader(io.StringIO(data.decode()))) == [{"n": "1", "a": "x"}, {"n": "2", "a": "y,z"}]


@in_loop
async def test_a_drain_writes_the_collected_events(local: Place) -> None:
    flow, source = writing(local, "{day}/{unique}.jsonl", object_age="1h")
    async with running(flow) as made:
        source.give(*events(*range(10)))
        source.end()
        await until(lambda: made.graph.sinks["out"].counts.get("in") == 10)
        await made.drain()
    assert len(source.outcomes) == 10
    assert list(local.contents().values()) == [lines(*range(10))]


@in_loop
async def test_a_file_that_can_not_be_written_is_written_later(local: Place) -> None:
    top = Path(local.url.removeprefix("file://"))
    (top / "a").write_text("not a directory")
    flow, source = writing(local, "a/{unique}.jsonl", object_age="10ms")
    async with running(flow) as made:
        source.give(*events(1))
        await until(lambda: made.graph.sinks["out"].connection.error)
        assert f"{top}/a" in made.graph.sinks["out"].connection.error
        await until(lambda: source.outcomes)
    assert source.outcomes[0][0] == "retry"
    assert list(local.contents()) == ["a"]


# -- S3 --------------------------------------------------------------------------------------------------------
def both(peer: S3Peer, name: str, tmp_path: Path, **options: Any) -> tuple[Flow, Any, Any]:
    """A flow that writes objects, and reads them."""
    flow = Flow("both")
    quick = {"retry": {"first": "20ms", "most": "200ms"}}
    common = {"storage_options": peer.options, "request_timeout": "1s", "reconnect": quick, **options}
    flow.connector(
        "out", "object_store", url=f"s3://shop/{name}/{{unique}}.jsonl", object_age="20ms",
        **common,
    )  # fmt: skip
    position = str(tmp_path / name)
    flow.connector("in", "object_store", url=f"s3://shop/{name}/", every="50ms", position=position, **common)
    source, out = feed(flow, "feed", remembers=True), seen(flow)
    flow.connect("feed -> out", "in -> seen")
    return flow, source, out


@in_loop
async def test_a_server_that_is_stopped_loses_nothing(s3: S3Peer, tmp_path: Path) -> None:
    flow, source, out = both(s3, uuid4().hex, tmp_path)
    async with running(flow) as made:
        source.give(*events(*range(10)))
        await until(lambda: len(set(out.values)) == 10)
        with s3.server.stopped():
            source.give(*[Event(n, {}, n) for n in range(10, 20)])
            await until(lambda: made.graph.sinks["out"].connection.error)
            await until(lambda: made.graph.sources["in"].connection.error)
            assert "no answer within 1 s" in made.graph.sources["in"].connection.error
        await until(lambda: set(out.values) == set(range(20)))


@in_loop
async def test_wrong_credentials_are_an_outage(s3: S3Peer, tmp_path: Path) -> None:
    flow, source, out = both(s3, uuid4().hex, tmp_path)
    try:
        await asyncio.to_thread(s3.deny_after, 0)
        async with running(flow) as made:
            source.give(*events(1))
            await until(lambda: made.graph.sources["in"].connection.error)
            await until(lambda: made.graph.sinks["out"].connection.error)
            assert SECRET not in made.graph.sources["in"].connection.error
            assert not source.outcomes
            await asyncio.to_thread(s3.deny_after, 1_000_000)
            await until(lambda: out.values == [1])
    finally:
        await asyncio.to_thread(s3.deny_after, 1_000_000)


@in_loop
async def test_a_server_that_is_not_trusted_is_an_outage(s3: S3Peer, tmp_path: Path) -> None:
    untrusted = {**s3.options, "client_kwargs": {"region_name": "eu-west-1"}}
    flow, source, out = both(s3, uuid4().hex, tmp_path, storage_options=untrusted)
    async with running(flow) as made:
        source.give(*events(1))
        await until(lambda: "CERTIFICATE_VERIFY_FAILED" in made.graph.sources["in"].connection.error)
    assert out.values == []


# -- the example, killed ---------------------------------------------------------------------------------------
def start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tidelog.cli", "flow", "run", str(EXAMPLE), "--listen", "none"]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.Popen(command, env=given, stderr=subprocess.DEVNULL)


@in_loop
async def test_the_example_writes_each_order_when_its_process_is_killed(local: Place, tmp_path: Path) -> None:
    environment = {"UPLOADS": f"{local.url}/", "ARCHIVE": f"file://{tmp_path}/archive", "POSITION": local.position}

    def upload(first: int) -> None:
        made = "".join(f"{n},c{n},{n}.5,2026-01-0{n % 3 + 1}T10:00:00Z\n" for n in range(first, first + 1000))
        local.put(f"{first}.csv.gz", gzip.compress(f"id,customer,amount,created\n{made}".encode()))

    known: dict[Path, set[int]] = {}  # the orders in each object, which is read once, because this takes CPU time

    async def archived() -> set[int]:
        await asyncio.sleep(0.05)
        for path in await asyncio.to_thread(lambda: list((tmp_path / "archive").rglob("*.parquet"))):
            if path not in known:
                known[path] = {each["id"] for each in rows(path.read_bytes())}
        return set().union(*known.values())

    async def all_archived() -> bool:
        return len(await archived()) == 2000

    upload(0)
    process = start(environment)
    try:
        await until(archived)
        upload(1000)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = start(environment)
        await until(all_archived)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()
        process.wait()
    days = set(os.listdir(tmp_path / "archive" / "orders"))
    assert days == {"day=2026-01-01", "day=2026-01-02", "day=2026-01-03"}


# -- options ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (True, {"url": "ftp://a/b/"}, "must begin with s3://"),
        (True, {"url": "s3:///b"}, "with placeholders only in the name"),
        (True, {"url": "file://a/b"}, "must have the form file:///DIRECTORY/"),
        (True, {"url": "s3://a/b/"}, "position is missing"),
        (True, {"url": "s3://a/{day}/", "every": None}, "only a sink fills placeholders"),
        (True, {"url": "s3://a/b/", "match": "a**/b"}, r"\*\* must be a whole directory"),
        (False, {"url": "s3://{bucket}/{unique}.csv"}, "with placeholders only in the name"),
        (False, {"url": "s3://a/{day}.csv"}, "has no {unique}"),
        (False, {"url": "s3://a/{unique}.txtt"}, "the format is unknown"),
        (False, {"url": "s3://a/b/"}, "the name of objects is missing"),
        (False, {"url": "s3://a/{unique}.parquet", "columns": {"a": "inte"}}, "'inte' is not a type"),
    ],
)
def test_wrong_options_are_named(source: bool, options: dict[str, Any], text: str) -> None:
    given = {"type": "object_store", **options}
    connectors = {"x": given, "y": {"type": "null"}}
    text_of = json.dumps({"flows": {"a": {"connectors": connectors, "connect": ["x -> y" if source else "y -> x"]}}})
    with pytest.raises(FlowFileError, match=text):
        read_text(text_of, variables={})


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    flow = Flow("orders")
    flow.connector("in", "object_store", url="gs://a/b/", every=None)
    flow.connector("out", "null")
    flow.connect("in -> out")
    with pytest.raises(FlowFileError, match=r"gs:// needs the package 'gcsfs': pip install 'tidelog\[flows-objects\]'"):
        flow.spec()


def test_a_directory_that_is_missing_is_a_warning() -> None:
    flow = Flow("orders")
    flow.connector("in", "object_store", url="s3://a/b/", position="/nowhere/at/all")
    flow.connector("out", "null")
    flow.connect("in -> out")
    assert "there is no directory /nowhere/at" in warnings(flow.spec())[0]


def test_secrets_are_hidden() -> None:
    shown = without_secrets({"url": "s3://a/b", "storage_options": {"key": "k", "client_kwargs": {"verify": "v"}}})
    assert shown == {"url": "s3://a/b", "storage_options": {"key": "***", "client_kwargs": {"verify": "***"}}}


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("**/*.log", ["a.log", "x/a.log", "x/y/a.log"], ["a.txt", ".a.log", ".x/a.log", "x/.y/a.log"]),
        ("logs/*/a?.[jc]*", ["logs/x/ab.json", "logs/x/ac.csv"], ["logs/ab.json", "logs/x/y/ab.json", "logs/x/ab.txt"]),
        ("**/x/**/*", ["x/a", "a/x/b/c"], ["a/b", "x"]),
        ("a[!0-9]+", ["ab+"], ["a1+", "ab", "a/+"]),
    ],
)
def test_patterns(pattern: str, good: Sequence[str], bad: Sequence[str]) -> None:
    found = path_pattern(pattern)
    assert [each for each in good if not found.fullmatch(each)] == []
    assert [each for each in bad if found.fullmatch(each)] == []
    for each in good:
        assert reaches(pattern, each[: each.rfind("/") + 1])
    assert pattern.startswith(fixed_directory(pattern))


def test_directories_that_can_not_match_are_not_searched() -> None:
    assert not reaches("logs/*", "other/")
    assert not reaches("logs/*/a", "logs/x/y/")
    assert not reaches("**/*", ".git/")
