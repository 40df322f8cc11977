"""Sinks whose names are templates: files, streams, Redis, Kafka."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from tests.tidelog.flows.byteskit import Reader
from tests.tidelog.flows.byteskit import running as reading_files
from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog import Client
from tidelog.client.steps import run
from tidelog.flows import Event, Flow
from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.files import appending
from tidelog.flows.connectors.files import writing as files
from tidelog.flows.connectors.files.appending import FileAppender
from tidelog.flows.connectors.files.file import FileConnector
from tidelog.flows.connectors.files.options import FileOptions
from tidelog.flows.files import read_files
from tidelog.testing import Server
from tidelog.topics import deadletters

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "templates.yaml"


def written(lost: list[BaseException], values: Sequence[Any], **options: Any) -> list[Outcome]:
    """Write values to files one batch after another: each value is a batch if it is a list, such as [{...}, {...}]."""

    class Context(ConnectorContext):
        def disconnected(self, error: BaseException) -> None:
            lost.append(error)

    async def scenario() -> list[Outcome]:
        sink = FileConnector(FileOptions(**options))
        sink.context = Context("out", FlowContext("f"))
        sink.context.sink = cast("Any", SimpleNamespace(count=lambda *_: None))
        await sink.connect()
        try:
            return [each for batch in values for each in await sink.write([Event(value) for value in batch])]
        finally:
            await sink.close()

    return asyncio.run(scenario())


# -- files -----------------------------------------------------------------------------------------------------
def test_each_event_is_written_to_its_file(tmp_path: Path) -> None:
    batches = [[{"c": f"c{number % 3}", "n": number} for number in range(at, at + 5)] for at in range(0, 30, 5)]
    batches.append([{"c": "../x", "n": 30}, {"n": 31}, {"c": "", "n": 32}, {"c": "x" * 300, "n": 33}])
    found = written([], batches, path=f"{tmp_path}/{{c}}/log.jsonl")
    assert found[:31] == [OK] * 31
    assert [each[0] for each in found[31:]] == [REJECT] * 3  # type: ignore[index]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["..%2Fx", "c0", "c1", "c2"]
    for name in ("c0", "c1", "c2"):
        lines = [json.loads(line)["n"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        assert lines == list(range(int(name[1]), 30, 3))


def test_few_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    class Appender(FileAppender):
        def open(self) -> None:
            super().open()
            opened.append(self.path)
            assert len(os.listdir("/proc/self/fd")) < before + 10

    monkeypatch.setattr("tidelog.flows.connectors.files.file.FileAppender", Appender)
    before = len(os.listdir("/proc/self/fd"))
    batch = [{"n": number % 50} for number in range(100)]
    assert written([], [batch, batch[:3], batch[:3]], path=f"{tmp_path}/{{n}}.jsonl", max_open=4) == [OK] * 106
    assert len(opened) == 50 + 3  # the batch needs each file once, and the last one opens none
    assert sum(len(each.read_text().splitlines()) for each in tmp_path.iterdir()) == 106


def test_files_that_are_not_written_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "IDLE", 0.0)
    before = len(os.listdir("/proc/self/fd"))
    seen: list[int] = []
    close = files.TemplateFiles._close_idle

    def closed(self: files.TemplateFiles) -> None:
        close(self)
        seen.append(len(os.listdir("/proc/self/fd")) - before)

    monkeypatch.setattr(files.TemplateFiles, "_close_idle", closed)
    written([], [[{"n": 1}], [{"n": 2}]], path=f"{tmp_path}/{{n}}.jsonl")
    idle = seen[0]
    assert seen == [idle, idle]


def test_a_directory_that_is_a_broken_link_does_not_affect_other_paths(tmp_path: Path) -> None:
    (tmp_path / "broken").symlink_to(tmp_path / "missing")
    lost: list[BaseException] = []
    found = written(lost, [[{"a": "broken"}, {"a": "good"}]], path=f"{tmp_path}/{{a}}/x.jsonl")
    assert (found[0][0], found[1], lost) == (RETRY, OK, [])  # type: ignore[index]


def test_a_file_that_can_not_be_used_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "log"
    path.write_text("an incomplete line")
    monkeypatch.setattr(appending, "write_all", full)
    one = FileAppender(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space left"):
        one.open()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_error_of_one_path_does_not_affect_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    lost: list[BaseException] = []
    path = f"{tmp_path}/{{a}}.jsonl"
    found = written(lost, [[{"a": "folder"}, {"a": "good"}]], path=path)
    assert (found[0][0], found[1]) == (REJECT, OK)  # type: ignore[index]
    found = written(lost, [[{"a": "file"}, {"a": "good"}]], path=f"{tmp_path}/{{a}}/x.jsonl")
    assert (found[0][0], found[1]) == (REJECT, OK)  # type: ignore[index]
    assert not lost
    write = FileAppender.write

    def refused(self: FileAppender, data: bytes) -> None:
        code = {"full": errno.ENOSPC, "secret": errno.EACCES}.get(self.path.stem)
        if code is not None:
            raise OSError(code, os.strerror(code))
        write(self, data)

    monkeypatch.setattr(FileAppender, "write", refused)
    found = written(lost, [[{"a": "secret"}, {"a": "good"}]], path=path)
    assert (found[0][0], found[1], lost) == (RETRY, OK, [])  # type: ignore[index]
    found = written(lost, [[{"a": "full"}, {"a": "good"}]], path=path)
    assert (found[0][0], found[1], len(lost)) == (RETRY, OK, 1)  # type: ignore[index]


def test_the_directory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such directory"):
        written([], [[{"a": 1}]], path=f"{tmp_path}/missing/{{a}}.jsonl")
    options = FileOptions(path=f"{tmp_path}/missing/{{a}}.jsonl")
    assert "there is no directory" in FileConnector.option_warnings(options, source=False)[0]
    assert not FileConnector.option_warnings(FileOptions(path=f"{tmp_path}/{{a}}/b/{{a}}"), source=False)


@pytest.mark.parametrize("path", ["{n}.csv", "all.csv"])
def test_files_have_headers_and_are_rotated(tmp_path: Path, path: str) -> None:
    batches = [[{"n": 1, "text": "x" * 50}]] * 6
    codec = {"csv": {"header": True}}
    found = written([], batches, path=f"{tmp_path}/{path}", codec=codec, rotate_bytes=130, fsync=True, max_open=1)
    assert found == [OK] * 6
    for each in tmp_path.iterdir():
        assert each.read_text().splitlines() == ["n,text", f"1,{'x' * 50}", f"1,{'x' * 50}"]
    assert len(list(tmp_path.iterdir())) == 3


def test_braces_in_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a{b}").write_text('"x"\n')
    reader = Reader("file", path=f"{tmp_path}/a{{{{b}}}}")

    async def scenario() -> None:
        async with reading_files(reader.flow, started=False) as one:
            await one.finished()

    asyncio.run(scenario())
    assert reader.values == ["x"]
    assert reader.events[0].meta["path"] == f"{tmp_path}/a{{b}}"


# -- servers ---------------------------------------------------------------------------------------------------
def writing(kind: str, events: list[Event], **options: Any) -> Flow:
    async def source() -> Any:
        for event in events:
            yield event

    flow = Flow("orders", **({} if "url" in options or "servers" in options else {"server": options.pop("server")}))
    flow.connector("in", source, on_error="dead_letter")
    flow.connector("out", kind, **options)
    flow.connect("in -> out")
    return flow


async def refused(kind: str, events: list[Event], **options: Any) -> list[str]:
    """Write events to the end. Return the reasons of those that were rejected."""
    reasons: list[str] = []

    async def letters(_: str, pairs: Any) -> bool:
        reasons.extend(reason for _, reason in pairs)
        return True

    async with running(writing(kind, events, **options), dead_letters=letters) as made, asyncio.timeout(40):
        await made.finished()
    return reasons


EVENTS = [
    Event({"c": "a", "n": 1}, {"key": "k1"}), Event({"c": "b", "n": 2}), Event({"n": 3}), Event({"c": "a", "n": 4}),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["redis_list", "redis_stream"])
@in_loop
async def test_keys_of_redis(redis_url: str, redis_client: Any, kind: str) -> None:
    (reason,) = await refused(kind, list(EVENTS), url=redis_url, key="jobs:{{{c}}}")
    assert "{c} is missing" in reason
    if kind == "redis_list":
        assert redis_client.lrange("jobs:{a}", 0, -1) == [b'{"c":"a","n":1}', b'{"c":"a","n":4}']
        assert redis_client.llen("jobs:{b}") == 1
    else:
        assert [fields[b"n"] for _, fields in redis_client.xrange("jobs:{a}")] == [b"1", b"4"]
        assert redis_client.xlen("jobs:{b}") == 1


@in_loop
async def test_channels_of_redis(redis_url: str, redis_client: Any) -> None:
    heard = redis_client.pubsub(ignore_subscribe_messages=True)
    heard.subscribe("jobs.a", "jobs.b")
    await until(lambda: redis_client.pubsub_numsub("jobs.a") == [(b"jobs.a", 1)])
    assert len(await refused("redis_pubsub", list(EVENTS), url=redis_url, channel="jobs.{c}")) == 1
    found: list[bytes] = []

    def hear() -> bool:
        message = heard.get_message(timeout=0.1)
        if message is not None:
            found.append(message["channel"])
        return len(found) == 3

    await until(hear)
    assert sorted(found) == [b"jobs.a", b"jobs.a", b"jobs.b"]
    heard.close()


@in_loop
async def test_lists_by_key_keep_their_length(redis_url: str, redis_client: Any) -> None:
    events = [Event({"c": "ab"[number % 2], "n": number}) for number in range(20)]
    assert await refused("redis_list", events, url=redis_url, key="l:{c}", max_length=3) == []
    for at, key in enumerate("ab"):
        assert [json.loads(raw)["n"] for raw in redis_client.lrange(f"l:{key}", 0, -1)] == [14 + at, 16 + at, 18 + at]


@in_loop
async def test_a_source_reads_a_key_with_braces(redis_url: str, redis_client: Any) -> None:
    redis_client.rpush("{x}:jobs", '{"n":1}')
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        seen.append((event.value, event.meta["key"]))

    flow = Flow("orders")
    flow.connector("in", "redis_list", url=redis_url, key="{{x}}:jobs")
    flow.connector("out", sink)
    flow.connect("in -> out")
    async with running(flow):
        await until(lambda: len(seen) == 1 and not redis_client.exists("{x}:jobs:processing:orders.in"))
    assert seen == [({"n": 1}, "{x}:jobs")]


@in_loop
async def test_topics_keys_and_headers_of_kafka() -> None:
    pytest.importorskip("confluent_kafka", reason="kafka: the package confluent-kafka is not installed")
    from tests.tidelog.flows.test_kafka import Cluster

    cluster, name = await asyncio.to_thread(Cluster), uuid4().hex
    for each in "ab":
        cluster.fill(f"{name}-{each}", [])
    events = [*EVENTS, Event({"c": "a b", "n": 5}), Event({"c": ".." * 125, "n": 6})]
    reasons = await refused(
        "kafka", events, servers=cluster.servers, topic=f"{name}-{{c}}", key="{meta.key|none}",
        headers={"number": "{n}", "note": "a\r\nb"},
    )  # fmt: skip
    assert sorted("can't be a topic" in each for each in reasons) == [False, True, True]
    seen: list[Event] = []

    async def sink(event: Event) -> None:
        seen.append(event)

    flow = Flow("orders")
    flow.connector("in", "kafka", servers=cluster.servers, topic=[f"{name}-a", f"{name}-b"], group=name)
    flow.connector("out", sink)
    flow.connect("in -> out")
    async with running(flow):
        await until(lambda: len(seen) == 3)
    found = sorted((each.value["n"], each.meta["topic"][-1], each.meta["key"], each.meta["headers"]) for each in seen)
    assert found == [
        (1, "a", "k1", {"number": "1", "note": "a\r\nb"}),
        (2, "b", "none", {"number": "2", "note": "a\r\nb"}),
        (4, "a", "none", {"number": "4", "note": "a\r\nb"}),
    ]


# -- the example -------------------------------------------------------------------------------------------------
@in_loop
async def test_the_example_archives_orders(
    tidelog_server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHIVE", str(tmp_path))
    spec = read_files([EXAMPLE], server=tidelog_server.url).flows["archive"]
    for number in range(6):
        order = {"id": number, "customer": {"id": f"c{number % 2}"}} | ({"region": "it"} if number < 4 else {})
        client.tappend("orders", {"data": json.dumps(order)})
    client.tappend("orders", {"data": '{"id":6}'})
    async with running(spec):
        await until(lambda: client.tlen("orders:c0") + client.tlen("orders:c1") == 6)
        await until(lambda: client.tlen("flow.archive.dead:0") == 1)
    entries, _ = run(client, deadletters.page("flow.archive.dead"))
    (letter,) = map(deadletters.read, entries)
    assert "{customer.id} is missing: the value has id" in letter.message
    assert lines_of(tmp_path) == {"it": 4, "unknown": 3}


def lines_of(directory: Path) -> dict[str, int]:
    """Return the number of lines by directory."""
    return {each.parent.name: len(each.read_text().splitlines()) for each in directory.glob("*/*.jsonl")}
