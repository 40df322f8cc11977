"""http_server: answers after the settlement, responses through a flow, limits, pauses, addresses that are shared."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from tests.tidelog.flows.netkit import Seen, changing, feed, given, running, seen, served, url_of
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError
from tidelog.flows.api.connector import Outcome, Sink
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY


class Judge(Sink):
    """Settles each event as its value says; ``None``: never."""

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        if any(each.value == "never" for each in events):
            await asyncio.Event().wait()
        means = {"ok": OK, "discard": DISCARD, "reject": REJECT, "retry": RETRY}
        return [(means[each.value], "because") for each in events]


def _flow(sink: Any = Judge, name: str = "web", **options: Any) -> Flow:
    flow = Flow(name)
    flow.connector("in", "http_server", **{"port": 0, **options})
    flow.connector("judge", sink)
    flow.connect("in -> judge")
    return flow


def test_the_answer_says_what_became_of_the_event() -> None:
    async def scenario() -> None:
        async with served(_flow(reasons=True)) as (_, url, session):
            got = {}
            for value in ("ok", "discard", "reject", "retry"):
                async with session.post(url, json=value) as response:
                    got[value] = (response.status, await response.text(), response.headers.get("Retry-After"))
        assert got == {
            "ok": (200, "", None),
            "discard": (200, "", None),
            "reject": (422, '{"error": "judge: because"}', None),
            "retry": (503, '{"error": "judge: because"}', "1"),
        }

    asyncio.run(scenario())


def test_reasons_are_told_only_when_asked_for() -> None:
    async def scenario() -> None:
        async with served(_flow()) as (_, url, session), session.post(url, json="reject") as response:
            assert (response.status, await response.json()) == (422, {"error": "the request was rejected"})

    asyncio.run(scenario())


def test_a_body_of_several_messages_is_answered_by_the_worst() -> None:
    async def scenario() -> None:
        async with served(_flow(preprocessors=["separate"])) as (one, url, session):
            for body, status in ((b'"ok"\n"ok"\n', 200), (b'"ok"\n"reject"\n"ok"', 422), (b'"reject"\n"retry"', 503)):
                async with session.post(url, data=body) as response:
                    assert response.status == status
            await until(lambda: one.unsettled().count == 0)

    try:
        Flow("x").connector("in", "http_server", port=0, preprocessors=["separate"])
    except FlowFileError:
        pytest.skip("the preprocessor is not there yet")
    asyncio.run(scenario())


def test_what_an_event_says_of_its_request() -> None:
    async def scenario() -> None:
        flow = Flow("web")
        flow.connector("in", "http_server", port=0, auth={"bearer": "secret"}, methods=["PATCH", "GET"])
        sink = seen(flow)
        flow.connect("in -> seen")
        async with served(flow) as (_, url, session):
            headers = {"Authorization": "Bearer secret", "X-A": "b"}
            async with session.patch(url + "a/b?c=d&c=e", json={"f": 1}, headers=headers) as response:
                assert response.status == 200
            async with session.get(url, headers=headers) as response:
                assert response.status == 200
            async with session.post(url, headers=headers) as response:
                assert (response.status, response.headers["Allow"]) == (405, "PATCH, GET")
            for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic secret"}):
                async with session.get(url, headers=given) as response:
                    assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        first, second = sink.events
        assert first.value == {"f": 1}
        assert {each: first.meta[each] for each in ("method", "path", "query", "peer")} == {
            "method": "PATCH", "path": "/a/b", "query": {"c": "d"}, "peer": "127.0.0.1",
        }  # fmt: skip
        assert first.meta["headers"]["x-a"] == "b"
        assert "authorization" not in first.meta["headers"]
        assert second.value is None

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", ["settled", "response"])
def test_a_request_is_answered_through_the_flow(answer: str) -> None:
    async def scenario() -> None:
        def double(event: Event) -> None:
            event.value = {"doubled": event.value["n"] * 2}

        flow = Flow("web")
        flow.connector("in", "http_server", port=0, answer=answer)
        flow.pipeline("work", changing(double))
        flow.connect("in -> work -> in")
        async with served(flow) as (_, url, session):

            async def ask(number: int) -> Any:
                async with session.post(url, json={"n": number}) as response:
                    assert response.status == 200
                    assert response.content_type == "application/json"
                    return await response.json()

            answers = await asyncio.gather(*(ask(number) for number in range(50)))
            assert answers == [{"doubled": 2 * number} for number in range(50)]
            async with session.post(url, json={}) as response:  # the function raises
                assert response.status == 422

    asyncio.run(scenario())


def test_a_response_may_come_after_the_settlement_and_by_another_way() -> None:
    async def scenario() -> None:
        flow = Flow("web")
        flow.connector("in", "http_server", port=0, answer="response", wait="300ms")
        first, second = seen(flow, "first"), feed(flow, "second")
        flow.connect("in -> first", "second -> in")
        async with served(flow) as (one, url, session):
            asked = asyncio.ensure_future(session.post(url, json=1))
            await until(lambda: first.events)
            await until(lambda: one.graph.sources["in"].unsettled == 0)
            ident = first.events[0].meta["request"]
            meta = {"request": ident, "status": 201, "response_headers": {"X-A": "b", "Content-Length": "7"}}
            second.give(Event("made", meta, 1), Event("again", meta, 2))
            second.give(Event("x", {"request": "none"}, 3), Event("x", {}, 4))
            async with await asked as response:
                assert (response.status, await response.json(), response.headers["X-A"]) == (201, "made", "b")
            await until(lambda: len(second.outcomes) == 4)
            assert [second.outcomes[each][0] for each in (1, 2, 3, 4)] == ["ok", "discard", "discard", "reject"]
            async with session.post(url, json=1) as response:  # and this one never
                assert response.status == 504

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "meta",
    [{"status": 99}, {"status": "x"}, {"response_headers": {"a": "b\r\nc: d"}}, {"response_headers": {"a b": "c"}}],
)
def test_an_event_that_can_not_be_a_response_is_rejected(meta: dict[str, Any]) -> None:
    async def scenario() -> None:
        flow = Flow("web")
        flow.connector("in", "http_server", port=0)
        flow.pipeline("work", changing(lambda event: event.meta.update(meta)))
        flow.connect("in -> work -> in")
        async with served(flow) as (_, url, session), session.post(url, json=1) as response:
            assert response.status == 422

    asyncio.run(scenario())


def test_accepted_answers_at_once_and_the_runtime_tries_again() -> None:
    async def scenario() -> None:
        class Fails(Seen):
            async def write(self, events: list[Event]) -> None:
                self.events += events
                if len(self.events) < 3:
                    raise RuntimeError("not yet")

        flow = Flow("web")
        flow.connector("in", "http_server", port=0, answer="accepted", on_error={"retry": {"first": "10ms"}})
        made = Fails()
        flow.connector("out", given(made))
        flow.connect("in -> out")
        async with served(flow) as (one, url, session):
            async with session.post(url, json="never") as response:
                assert response.status == 202
            await until(lambda: len(made.events) == 3 and one.unsettled().count == 0)
            assert [each.attempt for each in made.events] == [1, 2, 3]

    asyncio.run(scenario())


def test_a_flow_without_settlement_accepts() -> None:
    async def scenario() -> None:
        flow = Flow("web", settle=False)
        flow.connector("in", "http_server", port=0)
        sink = seen(flow)
        flow.connect("in -> seen")
        async with served(flow) as (_, url, session):
            async with session.post(url, json=1) as response:
                assert response.status == 202
            await until(lambda: sink.events)

    asyncio.run(scenario())


def test_no_answer_in_time() -> None:
    async def scenario() -> None:
        async with served(_flow(wait="50ms")) as (_, url, session), session.post(url, json="never") as response:
            assert response.status == 504

    asyncio.run(scenario())


def test_a_paused_flow_refuses() -> None:
    async def scenario() -> None:
        async with served(_flow()) as (one, url, session):
            await one.pause()
            async with session.post(url, json="ok") as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
            await one.resume()
            async with session.post(url, json="ok") as response:
                assert response.status == 200

    asyncio.run(scenario())


def test_a_paused_flow_lets_wait_where_that_is_asked_for() -> None:
    async def scenario() -> None:
        async with served(_flow(when_paused="wait", max_waiting=3)) as (one, url, session):
            await one.pause()
            asked = [asyncio.ensure_future(session.post(url, json="ok")) for _ in range(3)]
            connector: Any = one.graph.connectors["in"]
            await until(lambda: connector.stored == 3)
            async with session.post(url, json="ok") as response:
                assert response.status == 503
            await one.resume()
            for each in asked:
                async with await each as response:
                    assert response.status == 200

    asyncio.run(scenario())


def test_requests_that_gave_up_while_it_was_paused_leave_nothing() -> None:
    async def scenario() -> None:
        async with served(_flow(when_paused="wait", wait="30ms")) as (one, url, session):
            await one.pause()
            for _ in range(3):
                async with session.post(url, json="ok") as response:
                    assert response.status == 503
            connector: Any = one.graph.connectors["in"]
            assert not connector.stored
            assert not connector.requests
            assert connector.waiting_bytes == 0
            await one.resume()
            async with session.post(url, json="ok") as response:
                assert response.status == 200
            assert one.graph.sources["in"].counts["out"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("packed", [gzip.compress, zlib.compress, lambda data: zlib.compress(data)[2:-4]])
def test_packed_bodies(packed: Callable[[bytes], bytes]) -> None:
    async def scenario() -> None:
        headers = {"Content-Encoding": "gzip" if packed is gzip.compress else "deflate"}
        bodies = {b'"ok"': 200, b'"reject"': 422, b" " * 1000: 400, b" " * 1001: 413, bytes(10 << 20): 413}
        async with served(_flow(max_body=1000)) as (_, url, session):
            for body, status in bodies.items():
                async with session.post(url, data=packed(body)[:1000], headers=headers) as response:
                    assert response.status == status
            async with session.post(url, data=packed(b'"ok"')[:-2], headers=headers) as response:
                assert response.status == 400
            async with session.post(url, data=b"x", headers={"Content-Encoding": "br"}) as response:
                assert response.status == 415

    asyncio.run(scenario())


def test_bodies_that_can_not_be_read() -> None:
    async def scenario() -> None:
        async with served(_flow(max_body=1000)) as (one, url, session):
            async with session.post(url, data=b"{") as response:
                assert response.status == 400
            async with session.post(url, data=b"x" * 1001) as response:
                assert response.status == 413

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(100):
                    yield b"x" * 100

            async with session.post(url, data=pieces()) as response:
                assert response.status == 413
            assert one.graph.sources["in"].counts.get("out", 0) == 0

    asyncio.run(scenario())


def test_with_err_connected_what_can_not_be_read_goes_there() -> None:
    async def scenario() -> None:
        flow = _flow()
        sink = seen(flow)
        flow.connect("in.err -> seen")
        async with served(flow) as (_, url, session), session.post(url, data=b"{") as response:
            assert response.status == 200
        assert sink.values == [b"{"]

    asyncio.run(scenario())


def test_requests_that_wait_are_limited_in_number_and_bytes() -> None:
    async def scenario() -> None:
        async with served(_flow(max_waiting=2, wait="10s")) as (one, url, session):
            asked = [asyncio.ensure_future(session.post(url, json="never")) for _ in range(2)]
            connector: Any = one.graph.connectors["in"]
            await until(lambda: len(connector.requests) == 2)
            async with session.post(url, json="ok") as response:
                assert response.status == 503
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        async with served(_flow(max_waiting_bytes=500)) as (_, url, session):
            async with session.post(url, data=b" " * 600) as response:
                assert response.status == 503
            async with session.post(url, json="ok") as response:
                assert response.status == 200

    asyncio.run(scenario())


async def _raw(url: str, data: bytes) -> bytes:
    """What a server says to these bytes until it closes the connection."""
    host, _, port = url.split("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(15):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_slow_peers_are_let_go() -> None:
    async def scenario() -> None:
        async with served(_flow(header_timeout="100ms", body_timeout="100ms")) as (one, url, session):
            assert await _raw(url, b"") == b""
            assert await _raw(url, b"POST / HTTP/1.1\r\nHost: x\r\nX-A: ") == b""
            slow = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
            assert (await _raw(url, slow)).startswith(b"HTTP/1.1 408 ")
            async with session.post(url, json="ok") as response:
                assert response.status == 200
            connector: Any = one.graph.connectors["in"]
            assert connector.waiting_bytes == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * 10000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + b"X-A: b\r\n" * 1000 + b"\r\n",
    ],
)
def test_junk_is_refused_and_changes_nothing(junk: bytes) -> None:
    async def scenario() -> None:
        async with served(_flow(header_timeout="200ms", body_timeout="200ms")) as (one, url, session):
            answer = await _raw(url, junk)
            assert answer == b"" or b" 400 " in answer.split(b"\r\n")[0] or b" 431 " in answer.split(b"\r\n")[0]
            async with session.post(url, json="ok") as response:
                assert response.status == 200
            assert one.graph.sources["in"].counts["out"] == 1

    asyncio.run(scenario())


def test_a_peer_that_goes_away_in_the_middle_takes_nothing_with_it() -> None:
    async def scenario() -> None:
        async with served(_flow()) as (one, url, session):
            host, _, port = url.split("/")[2].partition(":")
            for data in (b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(data)
                await writer.drain()
                writer.transport.abort()
            connector: Any = one.graph.connectors["in"]
            await until(lambda: not connector.requests and connector.listener.connections == 0)
            assert connector.waiting_bytes == 0
            async with session.post(url, json="ok") as response:
                assert response.status == 200

    asyncio.run(scenario())


def test_connections_are_limited() -> None:
    async def scenario() -> None:
        async with served(_flow(max_connections=2)) as (one, url, session):
            host, _, port = url.split("/")[2].partition(":")
            open_ones = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
            listener: Any = one.graph.connectors["in"]
            await until(lambda: listener.listener.connections == 2)
            assert (await _raw(url, b"POST / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            for _, writer in open_ones:
                writer.close()
            await until(lambda: listener.listener.connections == 0)
            async with session.post(url, json="ok") as response:
                assert response.status == 200

    asyncio.run(scenario())


def test_curl_waits_for_leave_to_send_its_body() -> None:
    async def scenario() -> None:
        async with served(_flow()) as (_, url, session), session.post(url, json="ok", expect100=True) as response:
            assert response.status == 200

    asyncio.run(scenario())


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_connectors_of_several_flows_share_an_address() -> None:
    async def scenario() -> None:
        port = _free_port()
        shared: dict[str, Any] = {}
        a, b = Flow("a"), Flow("b")
        a.connector("in", "http_server", port=port, path="/a")
        a.connector("all", "http_server", port=port, path="/*")
        b.connector("in", "http_server", port=port, path="/a/b/*")
        exact, rest, deep = seen(a, "exact"), seen(a, "rest"), seen(b, "deep")
        a.connect("in -> exact", "all -> rest")
        b.connect("in -> deep")
        async with aiohttp.ClientSession() as session:

            async def post(path: str) -> int:
                async with session.post(f"http://127.0.0.1:{port}{path}", json=path) as response:
                    return response.status

            async with running(a, shared) as one:
                await url_of(one)
                await url_of(one, "all")
                async with running(b, shared) as two:
                    await url_of(two)
                    for path in ("/a", "/a/", "/a/b", "/a/b/c", "/a/bc", "/"):
                        assert await post(path) == 200
                assert exact.values == ["/a"]
                assert rest.values == ["/a/", "/a/bc", "/"]
                assert deep.values == ["/a/b", "/a/b/c"]
                assert await post("/a/b/d") == 200
                assert rest.values[-1] == "/a/b/d"
            assert shared["http_listeners"] == {}
            with pytest.raises(aiohttp.ClientConnectionError):
                await post("/a")

    asyncio.run(scenario())


def test_a_path_or_other_options_of_an_address_can_not_be_had_twice() -> None:
    async def scenario() -> None:
        port = _free_port()
        shared: dict[str, Any] = {}
        async with running(_flow(name="a", port=port), shared) as one:
            await url_of(one)
            refusals: list[tuple[dict[str, Any], str]] = [
                ({}, "belongs to the connector 'in' of the flow 'a'"),
                ({"max_connections": 7}, "other options"),
            ]
            for options, text in refusals:
                async with running(_flow(name="b", port=port, **options), shared) as two:
                    await until(lambda: two.graph.connections["in"].error)
                    assert text in two.graph.connections["in"].error

    asyncio.run(scenario())


def test_instances_of_a_flow_take_turns_and_a_paused_one_is_passed_over() -> None:
    async def scenario() -> None:
        port = _free_port()
        shared: dict[str, Any] = {}
        flows = [_flow(name="web", port=port) for _ in range(2)]
        async with (
            running(flows[0], shared, "web.1") as one,
            running(flows[1], shared, "web.2") as two,
            aiohttp.ClientSession() as session,
        ):
            url = await url_of(one)
            await url_of(two)
            for _ in range(4):
                async with session.post(url, json="ok") as response:
                    assert response.status == 200
            assert [each.graph.sources["in"].counts["out"] for each in (one, two)] == [2, 2]
            await one.pause()
            for _ in range(4):
                async with session.post(url, json="ok") as response:
                    assert response.status == 200
            assert [each.graph.sources["in"].counts["out"] for each in (one, two)] == [2, 6]

    asyncio.run(scenario())


def test_a_drain_answers_all_that_was_taken_and_refuses_the_rest() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        class Slow(Sink):
            concurrency = 10

            async def write(self, events: list[Event]) -> None:
                await go.wait()

        async with served(_flow(Slow)) as (one, url, session):
            asked = [asyncio.ensure_future(session.post(url, json=each)) for each in range(5)]
            await until(lambda: one.graph.sinks["judge"].in_flight == 5)
            draining = asyncio.ensure_future(one.drain(10))
            await until(lambda: one.status == "draining")
            async with session.post(url, json=1) as response:
                assert response.status == 503
            go.set()
            report = await draining
            assert report.complete
            for each in asked:
                async with await each as response:
                    assert response.status == 200

    asyncio.run(scenario())


def test_a_flow_that_stops_answers_those_who_wait() -> None:
    async def scenario() -> None:
        async with served(_flow()) as (one, url, session):
            asked = asyncio.ensure_future(session.post(url, json="never"))
            await until(lambda: one.graph.sinks["judge"].in_flight)
            await one.stop()
            async with await asked as response:
                assert response.status == 503

    asyncio.run(scenario())


def test_tls_and_certificates_of_clients(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("127.0.0.1", "client"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    server_tls = {"cert": str(tmp_path / "127.0.0.1.pem"), "ca": str(tmp_path / "ca.pem")}
    client_tls = {"cert": str(tmp_path / "client.pem"), "ca": str(tmp_path / "ca.pem")}

    async def scenario() -> None:
        serving = Flow("a")
        serving.connector("in", "http_server", port=0, tls=server_tls, auth={"username": "u", "password": "p"})
        sink = seen(serving)
        serving.connect("in -> seen")
        async with running(serving) as one:
            url = await url_of(one)
            assert url.startswith("https://")
            asking = Flow("b")
            auth = {"username": "u", "password": "p"}
            asking.connector("out", "http_client", url=url, tls=client_tls, auth=auth)
            source = feed(asking)
            asking.connect("in -> out")
            async with running(asking):
                source.give(Event({"a": 1}, None, 1))
                await until(lambda: source.outcomes)
            assert source.outcomes == {1: ("ok", "")}
            assert sink.values == [{"a": 1}]
            plain = Flow("c")
            plain.connector("out", "http_client", url=url)
            feed(plain)
            plain.connect("in -> out")
            async with running(plain) as two:
                await until(lambda: "CERTIFICATE_VERIFY_FAILED" in two.graph.connections["out"].error)

    asyncio.run(scenario())


def test_what_is_wrong_is_said_at_declaration() -> None:
    for options, text in (
        ({"port": 0, "path": "in"}, "use the form /in"),
        ({"port": 0, "path": "/a*"}, "use the form /in"),
        ({"port": 70000}, "<= 65535, got 70000"),
        ({"port": 0, "methods": []}, "methods"),
        ({"port": 0, "answer": "later"}, "answer"),
        ({"port": 0, "max_waiting": 0}, "max_waiting"),
    ):
        with pytest.raises(FlowFileError, match=text):
            Flow("web").connector("in", "http_server", **options)


def test_a_policy_that_no_one_applies_is_an_error() -> None:
    """With ``answer: settled``, the peer gets the outcome and retries: the runtime does not."""

    def problems(**options: Any) -> str:
        flow = Flow("web")
        flow.connector("in", "http_server", port=0, **options)
        flow.connector("out", "null")
        flow.connect("in -> out")
        try:
            flow.spec()
        except FlowFileError as error:
            return str(error)
        return ""

    text = "web.connectors.in: on_error has no effect, because the answer tells the peer to retry"
    for policy in ("skip", [{"retry": {"attempts": 2}}, "dead_letter"], "halt"):
        for answer in ("settled", "response"):
            assert text in problems(answer=answer, on_error=policy)
        assert problems(answer="accepted", on_error=policy) == ""
    assert problems() == problems(on_error=[{"retry": {}}, "dead_letter"]) == ""


def test_answers_that_fit_no_flow_are_said_when_it_starts() -> None:
    async def scenario() -> None:
        flow = _flow(answer="response")
        async with running(flow) as one:
            await until(lambda: "no events are written to it" in one.graph.connections["in"].error)

    asyncio.run(scenario())
