"""elastic: the bulk API with a result for each item, batches settled item by item, refusals of whole requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.tidelog.flows.netkit import changing, feed, peer, running, seen
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError, op


class Cluster:
    """Answers as Elasticsearch does. A document's ``status`` becomes its result's; ``refuse`` refuses requests."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], Any] = {}
        self.requests: list[list[tuple[str, dict[str, Any], Any]]] = []
        self.refuse: Callable[[bytes], web.Response | None] = lambda body: None
        self.made = 0
        self.queries: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/":
            return web.json_response({"version": {"number": "8.0.0"}, "tagline": "You Know, for Search"})
        assert (request.method, request.path) == ("POST", "/_bulk")
        assert request.headers["Content-Type"] == "application/x-ndjson"
        self.queries.append(request.query_string)
        body = await request.read()
        refused = self.refuse(body)
        if refused is not None:
            return refused
        assert body.endswith(b"\n")
        lines = [json.loads(each) for each in body.splitlines()]
        done, items = [], []
        while lines:
            ((action, about),) = lines.pop(0).items()
            document = None if action == "delete" else lines.pop(0)
            done.append((action, about, document))
            items.append({action: self.perform(action, about, document)})
        self.requests.append(done)
        failed = any("error" in result for item in items for result in item.values())
        return web.json_response({"took": 1, "errors": failed, "items": items})

    def perform(self, action: str, about: dict[str, Any], document: Any) -> dict[str, Any]:
        self.made += 1
        key = (about["_index"], about.get("_id", f"made-{self.made}"))
        told: dict[str, Any] = {"_index": key[0], "_id": key[1]}
        status = (document or {}).get("status", 201)
        if action == "create" and key in self.documents:
            status = 409
        if action == "delete":
            status = 200 if self.documents.pop(key, None) is not None else 404
        elif status < 300:
            self.documents[key] = document
        if status >= 400 and action != "delete":
            told["error"] = {"type": f"error_{status}", "reason": "because"}
        return told | {"status": status}


def _flow(url: str | list[str], **options: Any) -> Flow:
    flow = Flow("logs")
    flow.connector("search", "elastic", url=url, **{"index": "logs", **options})
    return flow


def test_each_item_settles_its_own_event() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with peer(cluster.answer) as url:
            flow = _flow(url)
            source = feed(flow)
            flow.connect("in -> search")
            async with running(flow):
                statuses = [200, 201, 400, 404, 409, 429, 500, 503]
                source.give(*(Event({"status": each}, None, each) for each in statuses))
                await until(lambda: len(source.outcomes) == len(statuses))
        assert [source.outcomes[each][0] for each in statuses] == [
            "ok", "ok", "reject", "reject", "reject", "retry", "retry", "retry",
        ]  # fmt: skip
        assert source.outcomes[400][1] == "search: 400: error_400: because"
        assert len(cluster.requests) == 1

    asyncio.run(scenario())


def test_bulk_items_of_a_batch_are_not_lost() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with peer(cluster.answer) as url:
            flow = _flow(url, event_id=True)
            flow.pipeline("gather", op("batch", count=4))
            source = feed(flow)
            flow.connect("in -> gather -> search")
            async with running(flow):
                for number, status in enumerate((201, 429, 201, 400)):
                    source.give(Event({"status": status, "n": number}, None, f"id-{number}"))
                await until(lambda: len(source.outcomes) == 4)
        assert [source.outcomes[f"id-{each}"][0] for each in range(4)] == ["ok", "retry", "ok", "reject"]
        assert sorted(cluster.documents) == [("logs", "id-0"), ("logs", "id-2")]
        assert len(cluster.requests) == 1

    _needs_batch()
    asyncio.run(scenario())


def _needs_batch() -> None:
    try:
        Flow("x").pipeline("gather", op("batch", count=4))
    except (FlowFileError, ModuleNotFoundError):
        pytest.skip("the operator batch is not there yet")


def test_what_is_tried_again_comes_until_it_is_taken() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        tries = 0

        def refuse(body: bytes) -> web.Response | None:
            nonlocal tries
            tries += 1
            return web.json_response({"error": "busy"}, status=503) if tries < 3 else None

        cluster.refuse = refuse
        async with peer(cluster.answer) as url:
            flow = _flow(url, event_id=True)
            source = feed(flow, remembers=True, on_error={"retry": {"first": "10ms"}})
            flow.connect("in -> search")
            async with running(flow):
                source.give(*(Event({"n": each}, None, each) for each in range(100)))
                await until(lambda: len(source.outcomes) == 100)
        assert len(cluster.documents) == 100

    asyncio.run(scenario())


def test_index_id_and_action_come_from_options_meta_and_documents() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with peer(cluster.answer) as url:
            flow = _flow(url, index="logs-{meta.day}", id="{order.id}", pipeline="geo", refresh="wait_for")
            source = feed(flow)
            flow.connect("in -> search")
            meta = {"day": "monday"}
            document = {"order": {"id": 7}}
            async with running(flow):
                source.give(
                    Event(document, meta, 1),
                    Event(document, {**meta, "elastic": {"index": "other", "id": "x", "routing": "r"}}, 2),
                    Event(document, {**meta, "elastic": {"action": "create"}}, 3),
                    Event(document, {**meta, "elastic": {"action": "update"}}, 4),
                    Event(None, {**meta, "elastic": {"action": "delete", "id": "x"}}, 5),
                    Event(document, {}, 6),
                    Event({}, meta, 7),
                    Event(document, {**meta, "elastic": {"colour": "red"}}, 8),
                    Event("text", meta, 9),
                    Event([document], meta, 10),
                )
                await until(lambda: len(source.outcomes) == 10)
        (request,) = cluster.requests
        assert cluster.queries == ["refresh=wait_for"]
        assert [(action, about) for action, about, _ in request] == [
            ("index", {"_index": "logs-monday", "_id": "7", "pipeline": "geo"}),
            ("index", {"_index": "other", "_id": "x", "routing": "r", "pipeline": "geo"}),
            ("create", {"_index": "logs-monday", "_id": "7", "pipeline": "geo"}),
            ("update", {"_index": "logs-monday", "_id": "7"}),
            ("delete", {"_index": "logs-monday", "_id": "x"}),
        ]
        assert request[3][2] == {"doc": document}
        assert [source.outcomes[each][0] for each in range(1, 11)] == [
            "ok", "ok", "discard", "ok", "ok", "reject", "reject", "reject", "reject", "reject",
        ]  # fmt: skip

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 413])
def test_one_document_that_spoils_its_request_is_found(status: int) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.refuse = lambda body: web.Response(status=status) if b'"bad"' in body else None
        async with peer(cluster.answer) as url:
            flow = _flow(url)
            source = feed(flow)
            flow.connect("in -> search")
            async with running(flow):
                source.give(*(Event({"n": "bad" if each == 37 else each}, None, each) for each in range(100)))
                await until(lambda: len(source.outcomes) == 100)
        assert [each for each, outcome in source.outcomes.items() if outcome[0] != "ok"] == [37]
        assert source.outcomes[37][0] == "reject"
        assert len(cluster.documents) == 99

    asyncio.run(scenario())


def test_requests_are_no_larger_than_allowed() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        sizes = []

        def note(body: bytes) -> None:
            sizes.append(len(body))

        cluster.refuse = note
        async with peer(cluster.answer) as url:
            flow = _flow(url, max_bulk=1000)
            source = feed(flow)
            flow.connect("in -> search")
            async with running(flow):
                source.give(*(Event({"n": "x" * (2000 if each == 5 else 100)}, None, each) for each in range(30)))
                await until(lambda: len(source.outcomes) == 30)
        assert max(sizes) <= 1000
        assert len(sizes) < 10
        assert [each for each, outcome in source.outcomes.items() if outcome[0] != "ok"] == [5]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"not json",
        b"[]",
        b'{"items": []}',
        b'{"items": [{"index": {"status": "x"}}]}',
        b'{"items": [{}]}',
        b'{"items": {"a": 1}}',
    ],
)
def test_an_answer_that_makes_no_sense_is_tried_again(answer: bytes) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.refuse = lambda body: web.Response(body=answer)
        async with peer(cluster.answer) as url:
            flow = _flow(url)
            source = feed(flow)
            flow.connect("in -> search")
            async with running(flow):
                source.give(Event({}, None, 1))
                await until(lambda: source.outcomes)
        assert source.outcomes[1][0] == "retry"

    asyncio.run(scenario())


def test_credentials_that_are_refused_reject_nothing() -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response({"error": "who are you"}, status=401)

        async with peer(answer) as url:
            flow = _flow(url, auth={"username": "a", "password": "b"})
            source = feed(flow)
            flow.connect("in -> search")
            async with running(flow) as one:
                source.give(Event({}, None, 1))
                await until(lambda: "401" in one.graph.connections["search"].error)
                assert one.status == "initializing"
                assert source.outcomes == {}

    asyncio.run(scenario())


def test_another_node_is_asked_where_one_is_away() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with peer(cluster.answer) as gone:
            pass
        async with peer(cluster.answer) as url:
            flow = _flow([gone, url])
            source = feed(flow)
            flow.connect("in -> search")
            async with running(flow) as one:
                for number in range(4):
                    source.give(Event({}, None, number))
                    await until(lambda: len(source.outcomes) == number + 1)  # noqa: B023
                assert one.graph.connections["search"].connects == 1
        assert {each[0] for each in source.outcomes.values()} == {"ok"}

    asyncio.run(scenario())


def test_results_leave_by_out() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with peer(cluster.answer) as url:
            flow = _flow(url, event_id=True)
            source, sink = feed(flow), seen(flow)
            flow.pipeline("after", changing(lambda event: event.meta.update(after=1)))
            flow.connect("in -> search -> after -> seen")
            async with running(flow):
                source.give(Event({"a": 1}, {"b": 2}, "x"), Event({"status": 400}, None, "y"))
                await until(lambda: len(source.outcomes) == 2)
        assert source.outcomes["x"] == ("ok", "")
        assert source.outcomes["y"][0] == "reject"
        assert [(each.value, each.meta) for each in sink.events] == [
            ({"_index": "logs", "_id": "x", "status": 201}, {"b": 2, "after": 1})
        ]

    asyncio.run(scenario())


def test_what_is_wrong_is_said_at_declaration() -> None:
    for options, text in (
        ({"url": []}, "give at least one"),
        ({"url": "localhost"}, "must have the form http"),
        ({"url": "http://h?a=b"}, "must not have a query"),
        ({"url": "http://h", "index": "a-{"}, "a single"),
        ({"url": "http://h", "id": "a", "event_id": True}, "one of them"),
        ({"url": "http://h", "action": "drop"}, "action"),
    ):
        with pytest.raises(FlowFileError, match=text):
            Flow("logs").connector("search", "elastic", **options)


def test_a_conflict_of_an_update_is_tried_again() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        left = {"a": 2, "b": 2, "c": 2}
        real = cluster.perform

        def conflicting(action: str, about: dict[str, Any], document: Any) -> dict[str, Any]:
            told = real(action, about, document)
            if left.get(about["_id"], 0):
                left[about["_id"]] -= 1
                return {**told, "status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "r"}}
            return told

        cluster.perform = conflicting  # type: ignore[method-assign]
        async with peer(cluster.answer) as url:
            flow = _flow(url, action="update", id="{id}", upsert=True, retry_on_conflict=5)
            source = feed(flow, remembers=True, on_error={"retry": {"first": "10ms"}})
            flow.connect("in -> search")
            async with running(flow) as one:
                source.give(
                    Event({"id": "a"}, None, 1),
                    Event({"id": "b"}, {"elastic": {"if_seq_no": 1, "if_primary_term": 1}}, 2),
                    Event({"id": "c"}, {"elastic": {"action": "index"}}, 3),
                    Event({"id": "d"}, {"elastic": {"retry_on_conflict": 1}}, 4),
                )
                sink = one.graph.sinks["search"]
                await until(lambda: {1, 4} <= set(source.outcomes) and sink.counts["rejected"] == 2)
        abouts = [(action, about) for request in cluster.requests for action, about, _ in request]
        assert abouts[:4] == [
            ("update", {"_index": "logs", "_id": "a", "retry_on_conflict": 5}),
            ("update", {"_index": "logs", "_id": "b", "if_seq_no": 1, "if_primary_term": 1}),
            ("index", {"_index": "logs", "_id": "c"}),
            ("update", {"_index": "logs", "_id": "d", "retry_on_conflict": 1}),
        ]
        assert [about["_id"] for _, about in abouts].count("a") == 3

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "own", "outcome"),
    [
        ("cluster_block_exception", False, "retry"), ("cluster_block_exception", True, "retry"),
        ("security_exception", False, "retry"), ("security_exception", True, "reject"), ("other", False, "reject"),
    ],
)  # fmt: skip
def test_what_the_server_does_not_allow_is_no_fault_of_the_documents(kind: str, own: bool, outcome: str) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.perform = lambda action, about, document: {  # type: ignore[method-assign]
            "status": 403, "error": {"type": kind, "reason": "because"}
        }  # fmt: skip
        async with peer(cluster.answer) as url:
            flow = _flow(url)
            source = feed(flow)
            flow.connect("in -> search")
            async with running(flow):
                source.give(Event({"a": 1}, {"elastic": {"index": "mine"}} if own else {}, 1))
                await until(lambda: source.outcomes)
        assert source.outcomes[1] == (outcome, f"search: 403: {kind}: because")

    asyncio.run(scenario())
