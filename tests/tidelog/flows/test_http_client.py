"""http_client: statuses, templates, the limit, outages, responses."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.tidelog.flows.netkit import feed, peer, running, seen
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError, op


def _flow(url: str, **options: Any) -> Flow:
    flow = Flow("orders")
    flow.connector("search", "http_client", url=url, **options)
    flow.connect("in -> search")
    return flow


def test_each_status_class_settles_its_event() -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=int(request.path.strip("/")), text="because")

        async with peer(answer) as url:
            flow = _flow(url + "/{meta.status}")
            source = feed(flow)
            statuses = [200, 201, 204, 301, 400, 404, 408, 422, 500, 503]
            async with running(flow):
                source.give(*(Event({}, {"status": each}, each) for each in statuses))
                await until(lambda: len(source.outcomes) == len(statuses))
        assert {each: outcome[0] for each, outcome in source.outcomes.items()} == {
            200: "ok", 201: "ok", 204: "ok", 301: "reject", 400: "reject", 404: "reject", 408: "retry", 422: "reject",
            500: "retry", 503: "retry",
        }  # fmt: skip
        assert source.outcomes[400][1] == "search: 400: because"

    asyncio.run(scenario())


def test_what_statuses_mean_is_an_option() -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=int(request.path.strip("/")))

        async with peer(answer) as url:
            statuses = {"ok": ["2xx", 409], "retry": ["400-499", 503], "reject": ["5xx", 422]}
            flow = _flow(url + "/{meta.status}", statuses=statuses)
            source = feed(flow)
            async with running(flow):
                source.give(*(Event({}, {"status": each}, each) for each in (200, 409, 404, 422, 500, 503)))
                await until(lambda: len(source.outcomes) == 6)
        assert [outcome[0] for _, outcome in sorted(source.outcomes.items())] == [
            "ok", "retry", "ok", "reject", "reject", "retry",
        ]  # fmt: skip

    asyncio.run(scenario())


def test_a_request_is_what_was_declared() -> None:
    async def scenario() -> None:
        got: list[tuple[str, str, dict[str, str], bytes]] = []

        async def answer(request: web.Request) -> web.Response:
            got.append((request.method, request.raw_path, dict(request.headers), await request.read()))
            return web.Response()

        async with peer(answer) as url:
            flow = _flow(
                url + "/a/{customer}?q={meta.headers.x}",
                method="put",
                headers={"X-Customer": "c-{customer}"},
                auth={"username": "me", "password": "secret"},
            )
            source = feed(flow)
            async with running(flow):
                source.give(Event({"customer": "x/../?&ä"}, {"headers": {"x": "1 &b=2"}}, 1))
                source.give(Event({"customer": ".."}, {"headers": {"x": 1}}, 2))
                source.give(Event({}, {"headers": {"x": 1}}, 3))
                source.give(Event({"customer": "a\r\nb: c"}, {"headers": {"x": 1}}, 4))
                await until(lambda: len(source.outcomes) == 4)
        ((method, path, headers, body),) = got
        assert (method, path) == ("PUT", "/a/x%2F..%2F%3F%26%C3%A4?q=1%20%26b%3D2")
        assert body.decode() == '{"customer":"x/../?&ä"}'
        assert headers["X-Customer"] == "c-x/../?&ä"
        assert headers["Content-Type"] == "application/json"
        assert headers["Authorization"] == "Basic bWU6c2VjcmV0"
        assert [source.outcomes[each][0] for each in (1, 2, 3, 4)] == ["ok", "reject", "reject", "reject"]
        assert "{customer} is missing" in source.outcomes[3][1]

    asyncio.run(scenario())


def test_an_event_made_of_several_is_one_request_with_lines() -> None:
    async def scenario() -> None:
        bodies: list[bytes] = []

        async def answer(request: web.Request) -> web.Response:
            bodies.append(await request.read())
            return web.Response()

        async with peer(answer) as url:
            flow = _flow(url, codec="jsonl")
            source = feed(flow)
            async with running(flow):
                source.give(Event([{"a": 1}, {"a": 2}], None, 1))
                await until(lambda: source.outcomes)
        assert bodies == [b'{"a":1}\n{"a":2}\n']

    asyncio.run(scenario())


def test_the_cap_is_a_true_limit_and_is_reached() -> None:
    async def scenario() -> None:
        now = most = 0

        async def answer(request: web.Request) -> web.Response:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1
            return web.Response()

        async with peer(answer) as url:
            flow = _flow(url, concurrency=5, target_latency="10s")
            source = feed(flow)
            async with running(flow):
                source.give(*(Event({}, None, each) for each in range(600)))
                await until(lambda: len(source.outcomes) == 600)
        assert {each[0] for each in source.outcomes.values()} == {"ok"}
        assert most == 5

    asyncio.run(scenario())


def test_one_at_a_time_keeps_order() -> None:
    async def scenario() -> None:
        got: list[int] = []

        async def answer(request: web.Request) -> web.Response:
            got.append(await request.json())
            return web.Response()

        async with peer(answer) as url:
            flow = _flow(url, concurrency=1)
            source = feed(flow)
            async with running(flow):
                source.give(*(Event(each, None, each) for each in range(100)))
                await until(lambda: len(source.outcomes) == 100)
        assert got == list(range(100))

    asyncio.run(scenario())


def test_retry_after_holds_up_all_requests() -> None:
    async def scenario() -> None:
        times: list[float] = []
        loop = asyncio.get_running_loop()

        async def answer(request: web.Request) -> web.Response:
            times.append(loop.time())
            if len(times) == 1:
                return web.Response(status=429, headers={"Retry-After": "1"})
            return web.Response()

        async with peer(answer) as url:
            flow = _flow(url)
            source = feed(flow, remembers=True)
            async with running(flow) as one:
                source.give(*(Event({}, None, each) for each in range(10)))
                await until(lambda: "unavailable:search" in one.graph.sources["in"].breaker)
                await until(lambda: len(source.outcomes) == 10)
                assert not one.graph.sources["in"].breaker
        assert len(times) == 11
        assert times[1] - times[0] >= 0.99

    asyncio.run(scenario())


def test_a_flapping_server_loses_nothing() -> None:
    async def scenario() -> None:
        got: set[int] = set()
        count = 0

        async def answer(request: web.Request) -> web.Response:
            nonlocal count
            count += 1
            if count % 7 == 3:
                assert request.transport is not None
                request.transport.abort()
            if count % 11 == 5:
                return web.Response(status=503)
            got.add(await request.json())
            return web.Response()

        async with peer(answer) as url:
            port = int(url.rpartition(":")[2])
        flow = _flow(url, reconnect={"retry": {"first": "10ms", "most": "50ms"}})
        source = feed(flow, remembers=True, on_error={"retry": {"first": "10ms"}})
        async with running(flow) as one:
            source.give(*(Event(number, None, number) for number in range(300)))
            while len(source.outcomes) < 300:
                async with peer(answer, port):
                    before = count
                    await until(lambda: count > before + 40 or len(source.outcomes) == 300)  # noqa: B023
                if len(source.outcomes) < 300:
                    await until(lambda: not one.graph.connections["search"].connected)
        assert {each[0] for each in source.outcomes.values()} == {"ok"}
        assert got == set(range(300))

    asyncio.run(scenario())


PEER = """
import asyncio, sys
from aiohttp import web

async def answer(request):
    with open(sys.argv[2], "a") as file:
        file.write((await request.text()) + "\\n")
    return web.Response()

app = web.Application()
app.router.add_post("/", answer)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=lambda *_: print("ready", flush=True), access_log=None)
"""


def test_a_peer_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def nobody(request: web.Request) -> web.Response:
            raise AssertionError

        async with peer(nobody) as url:
            port = url.rpartition(":")[2]
        seen_file = tmp_path / "seen"
        seen_file.touch()
        flow = _flow(url, reconnect={"retry": {"first": "20ms", "most": "100ms"}}, concurrency=8)
        source = feed(flow, remembers=True, on_error={"retry": {"first": "10ms"}})
        async with running(flow):
            source.give(*(Event(number, None, number) for number in range(2000)))
            for kill_at in (300, 900, None):
                process = await asyncio.create_subprocess_exec(sys.executable, "-c", PEER, port, str(seen_file))
                try:
                    goal = 2000 if kill_at is None else kill_at
                    await until(lambda: len(source.outcomes) >= goal)  # noqa: B023
                finally:
                    process.send_signal(signal.SIGKILL)
                    await process.wait()
        assert {each[0] for each in source.outcomes.values()} == {"ok"}
        assert set(map(int, seen_file.read_text().split())) == set(range(2000))

    asyncio.run(scenario())


def test_while_the_server_is_away_nothing_is_tried() -> None:
    async def scenario() -> None:
        got: list[int] = []

        async def answer(request: web.Request) -> web.Response:
            got.append(await request.json())
            return web.Response()

        async with peer(answer) as url:
            port = int(url.rpartition(":")[2])
        flow = _flow(url, reconnect={"retry": {"first": "20ms", "most": "50ms"}})
        source = feed(flow, remembers=True, on_error={"retry": {"attempts": 1, "first": "10ms"}})
        async with running(flow) as one:
            source.give(*(Event(each, None, each) for each in range(50)))
            await until(lambda: one.graph.connections["search"].error)
            assert one.status == "initializing"
            for begin in (0, 50, 100):
                async with peer(answer, port):
                    await until(lambda: len(source.outcomes) == begin + 50)  # noqa: B023
                source.give(*(Event(each, None, each) for each in range(begin + 50, begin + 100)))
                await until(lambda: "disconnected:search" in one.graph.sources["in"].breaker)
        assert {each[0] for each in source.outcomes.values()} == {"ok"}
        assert sorted(got) == list(range(150))

    asyncio.run(scenario())


def test_responses_leave_by_out_and_carry_the_settlement() -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response({"got": await request.json()}, headers={"X-A": "b"})

        async with peer(answer) as url:
            flow = _flow(url)
            flow.pipeline("after")
            flow.connect("search -> after -> seen")
            source, sink = feed(flow), seen(flow)
            async with running(flow):
                source.give(Event(7, {"mine": 1}, "a"))
                await until(lambda: source.outcomes)
        assert source.outcomes == {"a": ("ok", "")}
        (event,) = sink.events
        assert (event.value, event.id) == ({"got": 7}, "a")
        assert (event.meta["status"], event.meta["mine"], event.meta["response_headers"]["x-a"]) == (200, 1, "b")

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"not json", b"x" * 2000])
def test_a_response_that_can_not_be_read_rejects(body: bytes) -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=body)

        async with peer(answer) as url:
            flow = _flow(url, max_response=1000)
            flow.connect("search -> seen")
            source, sink = feed(flow), seen(flow)
            async with running(flow):
                source.give(Event(7, None, "a"))
                await until(lambda: source.outcomes)
        assert source.outcomes["a"][0] == "reject"
        assert sink.events == []

    asyncio.run(scenario())


def test_a_packed_response_is_unpacked_no_further_than_allowed() -> None:
    async def scenario() -> None:
        bomb = gzip.compress(bytes(50 << 20))

        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

        async with peer(answer) as url:
            flow = _flow(url)
            flow.connect("search -> seen")
            source, _ = feed(flow), seen(flow)
            async with running(flow):
                source.give(Event(7, None, "a"))
                await until(lambda: source.outcomes)
        assert source.outcomes["a"][0] == "reject"
        assert "max_response" in source.outcomes["a"][1]

    asyncio.run(scenario())


def test_a_server_that_never_answers() -> None:
    async def scenario() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            flow = _flow(f"http://127.0.0.1:{port}", request_timeout="50ms")
            source = feed(flow)
            async with running(flow):
                source.give(Event(1, None, 1), Event(2, None, 2))
                await until(lambda: len(source.outcomes) == 2)
        assert source.outcomes[1] == ("retry", "search: no response within 0.05 s")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "junk",
    [b"", b"\x00\xff\r\n\r\n", b"HTTP/1.1 999999 x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"],
)
def test_junk_from_the_server_is_tried_again(junk: bytes) -> None:
    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(junk)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            flow = _flow(f"http://127.0.0.1:{port}")
            source = feed(flow)
            async with running(flow):
                source.give(Event(1, None, 1))
                await until(lambda: source.outcomes)
        assert source.outcomes[1][0] == "retry"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "localhost:9200"}, "must have the form http://"),
        ({"url": "http://{host}/x"}, "placeholders are only allowed"),
        ({"url": "http://a:b@h/x"}, "use auth"),
        ({"url": "http://h/{x"}, "a single '{'"),
        ({"url": "http://h/ä"}, "escape"),
        ({"url": "http://h", "concurrency": 0}, ">= 1, got 0"),
        ({"url": "http://h", "headers": {"a": "b\r\nc: d"}}, "can't be a header"),
        ({"url": "http://h", "auth": {"bearer": "a", "username": "b"}}, "either bearer"),
        ({"url": "http://h", "statuses": {"ok": ["2x"]}}, "'2x' is not a status"),
        ({"url": "http://h", "statuses": {"ok": [503], "retry": [503]}}, "in ok and in retry"),
        ({"url": "http://h", "tls": {"verify": False}}, "is not https"),
        ({"url": "http://h", "method": "a b"}, "method"),
    ],
)
def test_what_is_wrong_is_said_at_declaration(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("orders").connector("search", "http_client", **options)


def test_a_value_that_is_no_json_is_rejected() -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(json.loads(await request.read()))

        async with peer(answer) as url:
            flow = _flow(url, max_bytes=100)
            flow.pipeline("p", op("passthrough"))
            source = feed(flow)
            flow.connect("in -> p -> search")
            async with running(flow):
                source.give(Event(object(), None, 1), Event("x" * 200, None, 2), Event(3, None, 3))
                await until(lambda: len(source.outcomes) == 3)
        assert [source.outcomes[each][0] for each in (1, 2, 3)] == ["reject", "reject", "ok"]

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [401, 403, 407])
def test_wrong_credentials_are_an_outage_and_cost_no_event(status: int) -> None:
    async def scenario() -> None:
        admitted = False
        taken: list[Any] = []

        async def answer(request: web.Request) -> web.Response:
            if not admitted:
                return web.Response(status=status, text="who are you?")
            taken.append(await request.json())
            return web.Response()

        async with peer(answer) as url:
            flow = _flow(url)
            source = feed(flow, remembers=True, on_error={"retry": {"attempts": 49, "first": "10ms"}})
            async with running(flow) as one:
                source.give(*(Event(number, None, number) for number in range(30)))
                node = one.graph.sources["in"]
                await until(lambda: "unavailable:search" in node.breaker)
                (reason,) = (each for each in node.breaker.reasons if each.reason == "unavailable:search")
                assert f"check auth and headers: {status}: who are you?" in reason.detail
                assert source.outcomes == {}
                admitted = True
                await until(lambda: len(taken) == 30)
                await until(lambda: len(source.outcomes) == 30)
            assert {outcome for outcome, _ in source.outcomes.values()} == {"ok"}
            assert "rejected" not in one.graph.sinks["search"].counts

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [401, 403])
def test_an_event_that_alone_is_refused_is_rejected_in_the_end(status: int) -> None:
    async def scenario() -> None:
        tries: Counter[Any] = Counter()

        async def answer(request: web.Request) -> web.Response:
            value = await request.json()
            tries[value] += 1
            return web.Response(status=status if value == "attack" else 200)

        async with peer(answer) as url:
            flow = _flow(url)
            source = feed(flow, remembers=True, on_error={"retry": {"first": "10ms"}})
            async with running(flow) as one:
                sink = one.graph.sinks["search"]
                source.give(Event("attack", None, "attack"))
                for number in range(2000):
                    source.give(Event(number, None, number))
                    await until(lambda: tries[number])  # noqa: B023
                    if sink.counts.get("rejected"):
                        break
                assert sink.counts["rejected"] == 1
                assert 3 <= tries["attack"] < 20

    asyncio.run(scenario())


def test_a_status_that_is_listed_means_what_the_list_says() -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=int(request.path.strip("/")))

        async with peer(answer) as url:
            flow = _flow(url + "/{meta.status}", statuses={"reject": [401, "4xx"], "ok": ["2xx", 407]})
            source = feed(flow)
            async with running(flow):
                source.give(*(Event({}, {"status": each}, each) for each in (401, 403, 407)))
                await until(lambda: len(source.outcomes) == 3)
        assert [outcome[0] for _, outcome in sorted(source.outcomes.items())] == ["reject", "reject", "ok"]

    asyncio.run(scenario())
