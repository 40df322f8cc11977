"""What somebody may try who can reach the HTTP API, or deploy over it, or whose events pass."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

import pytest

from tests.tidelog.flows.servicekit import LONG, Client, flowing
from tests.waiting import until
from tidelog.flows import Event
from tidelog.flows.files import read_flow, yamltext
from tidelog.flows.service import api, tap
from tidelog.flows.service.host import FlowHost
from tidelog.flows.service.views import without_secrets
from tidelog.options.structs import Problems


def test_no_form_of_a_secret_is_told() -> None:
    given = {
        "auth": {"bearer": "x"}, "headers": {"Cookie": "x", "X-Anything": "x"}, "options": {"sasl_secret": ["x"]},
        "nested": [{"auth": {"username": "ann", "password": "x"}}],
        "url": "redis://ann:p@ss@host/0", "hook": "https://host/in?api_key=x&page=2&access_token=x",
    }  # fmt: skip
    assert without_secrets(given) == {
        "auth": {"bearer": "***"}, "headers": {"Cookie": "***", "X-Anything": "***"},
        "options": {"sasl_secret": ["***"]}, "nested": [{"auth": {"username": "***", "password": "***"}}],
        "url": "redis://***@host/0", "hook": "https://host/in?api_key=***&page=2&access_token=***",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("connector", "said"),
    [
        ({"type": "stdio"}, "standard input"),
        ({"type": "exit"}, "end this process"),
        ({"type": "http_client", "url": "https://h/", "tls": {"ca": "/etc/shadow"}}, "tls.ca"),
        ({"type": "http_client", "url": "https://h/", "tls": {"cert": "/a", "key": "/b"}}, "tls.cert"),
        ({"type": "http_server", "port": 0, "tls": {"cert": "/a"}}, "tls.cert"),
        (
            {"type": "redis_list", "key": "k", "url": "rediss://h?ssl_certfile=/a&ssl_keyfile=/b"},
            "the URL names a local file",
        ),
        ({"type": "object_store", "url": "file:///etc/"}, "the URL names a local file"),
        ({"type": "object_store", "url": "s3://a/", "position": "/etc/a"}, "position names a local file"),
        ({"type": "redis_list", "key": "k", "url": "rediss://h?ssl_c%61_certs=/a"}, "the URL names a local file"),
        ({"type": "redis_list", "key": "k", "url": " unix:///run/redis.sock"}, "the URL names a local file"),
        (
            {"type": "redis_pubsub", "channel": "c", "url": "rediss://a,rediss://b?ssl_ca_path=/a"},
            "the URL names a local file",
        ),
        ({"type": "redis_stream", "key": "k", "url": "unix://u:p@/run/redis.sock?db=1"}, "the URL names a local file"),
        ({"type": "stream", "key": "k", "url": "rediss://h?ssl_ca_certs=/a"}, "the URL names a local file"),
        ({"type": "stream", "key": "k", "url": "redis+sentinel://h/s?ssl_ca_certs=/a"}, "the URL names a local file"),
        ({"type": "http_client", "url": "file:///etc/passwd"}, "the URL names a local file"),
        ({"type": "elastic", "url": ["http://h", "FILE:///etc/passwd"]}, "x.url[1]: the URL names a local file"),
        ({"type": "kafka", "topic": "t", "tls": {"ca": "/a"}}, "tls.ca"),
        ({"type": "tcp_server", "unixsocket": "/run/a.sock"}, "unixsocket names a local file"),
        ({"type": "tcp_client", "port": 1, "tls": {"cert": "/a"}}, "tls.cert"),
    ],
)
def test_what_comes_over_http_touches_nothing_of_the_machine(connector: dict[str, Any], said: str) -> None:
    def problems(given: dict[str, Any], *, outside: bool) -> str:
        found = Problems()
        flow = {"connectors": {"in": "null", "x": given}, "connect": ["in -> x", "x -> in"][:1]}
        read_flow("new", flow, "new", None, found, outside=outside)
        return "; ".join(f"{path}: {what}" for path, what in found.found)

    assert said in problems(connector, outside=False)
    assert "--allow-local" in problems(connector, outside=False)
    assert "--allow-local" not in problems(connector, outside=True)
    assert not problems({"type": "http_client", "url": "https://h/", "tls": {"verify": False}}, outside=False)
    assert not problems({"type": "exit", "what": "flow"}, outside=False)
    assert not problems({"type": "http_client", "url": "https://h/?path=/etc/passwd"}, outside=False)
    assert not problems({"type": "redis_list", "key": "k", "url": "rediss://h?ssl_cert_reqs=none"}, outside=False)


REFUSED = (
    {"type": "redis_list", "key": "k", "url": "rediss://h:1?ssl_certfile=/a&ssl_keyfile=/b&password=pa55"},
    {"type": "stream", "key": "k", "url": "unix:///run/pa55.sock?password=pa55"},
    {"type": "redis_list", "key": "k", "url": "redis://h?path=/run/pa55.sock"},
)


def test_such_flows_get_422_and_say_no_secret() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        for connector in REFUSED:
            flow = {"connectors": {"in": connector, "out": "null"}, "connect": ["in -> out"]}
            answer = await ask("PUT", "/v1/flows/new", json=flow)
            assert answer.status == 422
            assert "password" not in str(answer.body) or "pa55" not in str(answer.body)
        assert set(host.flows) == {"main"}

    flowing(test)


def test_secrets_of_urls_are_not_in_what_the_api_tells() -> None:
    url = "http://127.0.0.1:9/in?sig=pa55a&key=pa55b&code=pa55c&pwd=pa55d&page=7"
    given = {
        "connectors": {
            "in": "null", "out": {"type": "http_client", "url": url},
            "ws": {"type": "websocket_client", "url": f"ws{url[4:]}"},
        },
        "connect": ["in -> out", "in -> ws"],
    }  # fmt: skip

    async def test(ask: Client, host: FlowHost) -> None:
        assert (await ask("PUT", "/v1/flows/new", json=given)).status == 201
        await until(lambda: all(host.flows["new"].instances[0].graph.connections[each].error for each in ("out", "ws")))
        for path in (
            "",
            "/new",
            "/new/connectors",
            "/new/connectors/out",
            "/new/connectors/ws",
            "/new/breaker",
            "/new/graph",
        ):
            answer = await ask("GET", f"/v1/flows{path}")
            assert answer.status == 200
            assert "pa55" not in str(answer.body)
        assert "sig=***&key=***&code=***&pwd=***&page=7" in str((await ask("GET", "/v1/flows/new/connectors/out")).body)
        assert "pa55" not in str((await ask("GET", "/v1/ready")).body)

    flowing(test)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(8)
)
HEAVY = {
    "list": ("yaml", "- a\n" * 60_000),
    "bomb": ("yaml", BOMB),
    "nested": ("yaml", "[" * 250_000),
    "values": ("yaml", "[" + "1," * 120_000 + "]"),
    "duration": ("json", '{"connectors": {"in": {"type": "metronome", "interval": "%s"}}}' % ("1" * 200_000)),
    "chain": ("json", '{"connectors": {"in": "null"}, "connect": ["%s"]}' % ("in -> ! -> " * 20_000)),
    "problems": ("json", '{"connectors": {"in": "null"}, "connect": [%s"x"]}' % ('"! -> !",' * 490)),
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_body_does_not_hold_up_the_process(name: str) -> None:
    kind, body = HEAVY[name]

    async def test(ask: Client, host: FlowHost) -> None:
        held: list[threading.Thread] = []
        real = asyncio.to_thread

        async def noted(function: Any, *given: Any) -> Any:
            def work() -> Any:
                held.append(threading.current_thread())
                return function(*given)

            return await real(work)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "to_thread", noted)
            began = time.process_time()
            headers = {"Content-Type": f"application/{kind}"}
            answer = await ask("PUT", "/v1/flows/x", data=body.encode(), headers=headers)
        assert answer.status in (400, 422)
        assert len(str(answer.body)) < 300_000
        assert time.process_time() - began < 10
        assert held
        assert threading.main_thread() not in held

    flowing(test)


def test_a_tap_breaks_no_flow() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for value in ("\ud800", {"a": "\udfff"}, Odd(), {"a": Odd()}):
        json.loads(tap.as_json("main", "a -> b", Event(value, {"m": value}, "\ud800")))


def test_connections_that_say_nothing_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "HEADERS_WITHIN", 0.2)

    async def test(ask: Client, host: FlowHost) -> None:
        port = int(ask.url.rpartition(":")[2])
        for begun in (b"", b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\nX-A: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            async with asyncio.timeout(LONG):
                await reader.read()
            writer.close()
            await writer.wait_closed()
        assert (await ask("GET", "/v1/live")).status == 200

    flowing(test)


def test_no_more_than_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "CONNECTIONS", 3)

    async def test(ask: Client, host: FlowHost) -> None:
        port = int(ask.url.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(LONG):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        for _, each in (*held, (reader, writer)):
            each.close()

        async def answered() -> None:
            while (await ask("GET", "/v1/live")).status != 200:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

        async with asyncio.timeout(LONG):
            await answered()

    flowing(test)


def test_who_does_not_read_a_tap_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "UNREAD", 0.2)
    given = "flows: {main: {connectors: {in: {type: 'null', value: %s}, out: 'null'}, connect: [in -> out]}}"

    async def test(ask: Client, host: FlowHost) -> None:
        port = int(ask.url.rpartition(":")[2])
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", port))
        silent.sendall(b"GET /v1/flows/main/tap?rate=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        channels = host.flows["main"].instances[0].graph.channels
        await until(lambda: any(each.taps for each in channels))
        await until(lambda: not any(each.taps for each in channels))
        silent.close()

    flowing(test, given % ("x" * 900))


def test_many_merges_take_no_longer_than_many_values() -> None:
    problems = Problems()
    found = yamltext.read(
        "<<: [" + ",".join(f"{{k{number}: 1, both: {number}}}" for number in range(9000)) + "]", problems
    )
    assert (len(found.value), found.value["both"], found.value["k8999"], problems.found) == (9001, 0, 1, [])


def _wrong(given: dict[str, Any]) -> list[tuple[str, str]]:
    problems = Problems()
    read_flow("new", given, "new", None, problems, outside=False)
    return problems.found


def test_a_flow_that_is_all_wrong_is_answered_in_few_words() -> None:
    chain = " -> ".join(f"p{number}" for number in range(400))
    found = _wrong({"connectors": {f"a{number}": "null" for number in range(400)}, "connect": [chain] * 20})
    assert sum(len(what) for _, what in found) < 1 << 20
    odd = {"type": "http_client", "url": "http://h/", **{f"conurrency{number}": 1 for number in range(5000)}}
    found = _wrong({"connectors": {"a": "null", "b": odd}, "connect": ["a -> b"]})
    assert sum("did you mean" in what for _, what in found) < 100 < len(found)


@pytest.mark.parametrize("part", ["connectors", "pipelines", "operators", "connect"])
def test_a_flow_has_no_more_than_so_many_parts(part: str) -> None:
    many = range(501)
    flow: dict[str, Any] = {"connectors": {"a": "null", "b": "null"}, "pipelines": {}, "connect": ["a -> b"]}
    if part == "connectors":
        flow[part] |= {f"c{number}": "null" for number in many}
    elif part == "pipelines":
        flow[part] = {f"p{number}": [] for number in range(1500)}
        flow["connect"] = [" -> ".join(["a", *flow[part], "b"])]
    elif part == "operators":
        flow["pipelines"] = {"p": ["passthrough"] * 501}
    else:
        flow[part] *= 501
    assert f"a flow can have at most 500 {part}" in str(_wrong(flow))
