"""http_client: access tokens of OAuth 2, proxies, and batches that are too large for the server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from yarl import URL

from tests.tidelog.flows.netkit import feed, peer, running
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError, op
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.http.proxies import proxy_for
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.service.views import without_secrets

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "crm.yaml"
SECRET = "s3cret/Pass"
CLIENT = {"client_id": "a", "client_secret": "b"}


class Api:
    """An API with a token endpoint. Only the last token is valid. ``limit``: items of a request."""

    def __init__(self) -> None:
        self.tokens = 0
        self.refused = 0  # requests with a token that is not valid
        self.forms: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.items: list[Any] = []
        self.sizes: list[int] = []
        self.limit = 1000
        self.secret = SECRET
        self.lifetime: Any = 3600

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/token":
            self.forms.append(dict(await request.post()))
            self.authorizations.append(request.headers.get("Authorization", ""))
            both = f"shop:{self.secret.replace('/', '%2F')}"
            if self.authorizations[-1] != "Basic " + base64.b64encode(both.encode()).decode():
                return web.json_response({"error": "invalid_client", "error_description": SECRET}, status=401)
            self.tokens += 1
            return web.json_response({"access_token": f"t{self.tokens}", "expires_in": self.lifetime})
        if request.headers.get("Authorization") != f"Bearer t{self.tokens}":
            self.refused += 1
            return web.Response(status=401, text="expired")
        items = await request.json()
        items = items if isinstance(items, list) else [items]
        self.sizes.append(len(items))
        if len(items) > self.limit or any(each.get("large") for each in items):
            return web.Response(status=413, text="too large")
        self.items += items
        return web.Response()


def sending(url: str, *operators: Any, secret: str = SECRET, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("orders")
    oauth2 = {"token_url": f"{url}/token", "client_id": "shop", "client_secret": secret, "scope": "orders"}
    flow.connector("out", "http_client", url=f"{url}/orders", auth={"oauth2": oauth2}, **options)
    source = feed(flow, remembers=True)
    flow.pipeline("work", *operators)
    flow.connect("in -> work -> out")
    return flow, source


def events(first: int, last: int) -> list[Event]:
    return [Event({"n": number}, {}, number) for number in range(first, last)]


@in_loop
async def test_a_token_is_requested_once_and_renewed_after_401() -> None:
    api = Api()
    async with peer(api.answer) as url:
        flow, source = sending(url, concurrency=1)
        async with running(flow):
            source.give(*events(0, 20))
            await until(lambda: len(source.outcomes) == 20)
            assert api.tokens == 1
            assert api.forms == [{"grant_type": "client_credentials", "scope": "orders"}]
            api.tokens += 1  # the API no longer accepts the token
            source.give(*events(20, 40))
            await until(lambda: len(source.outcomes) == 40)
    assert {status for status, _ in source.outcomes.values()} == {"ok"}
    assert [each["n"] for each in api.items] == list(range(40))
    assert (api.tokens, api.refused) == (3, 1)


@in_loop
async def test_a_token_that_expires_is_renewed_before() -> None:
    api = Api()
    api.lifetime = 0.001
    async with peer(api.answer) as url:
        flow, source = sending(url, concurrency=1)
        async with running(flow):
            source.give(*events(0, 5))
            await until(lambda: len(source.outcomes) == 5)
    assert api.refused == 0
    assert api.tokens >= 2


@in_loop
async def test_wrong_client_credentials_are_an_outage() -> None:
    api = Api()
    api.secret = "another"
    async with peer(api.answer) as url:
        flow, source = sending(url)
        async with running(flow) as made:
            source.give(*events(0, 3))
            await until(lambda: "the token endpoint answered 401 invalid_client" in made.graph.sinks["out"].error_text)
            assert SECRET not in made.graph.sinks["out"].error_text
            assert not source.outcomes
            api.secret = SECRET
            await until(lambda: len(source.outcomes) == 3)
    assert {status for status, _ in source.outcomes.values()} == {"ok"}


@in_loop
async def test_a_batch_that_is_too_large_is_halved() -> None:
    api = Api()
    api.limit = 3
    async with peer(api.answer) as url:
        flow, source = sending(url, op("batch", count=8), concurrency=1)
        async with running(flow):
            given = events(0, 8)
            given[5].value["large"] = True
            source.give(*given)
            await until(lambda: len(source.outcomes) == 8)
    assert [source.outcomes[each][0] for each in range(8)] == ["ok"] * 5 + ["reject"] + ["ok"] * 2
    assert "413: too large" in source.outcomes[5][1]
    assert [each["n"] for each in api.items] == [0, 1, 2, 3, 4, 6, 7]
    assert api.sizes == [8, 4, 2, 2, 4, 2, 1, 1, 2]


@in_loop
async def test_the_example_sends_customers(tmp_path: Path) -> None:
    api = Api()
    api.limit = 30
    customers = tmp_path / "customers.jsonl"
    await asyncio.to_thread(customers.write_text, "".join(f'{{"n": {n}}}\n' for n in range(250)))
    async with peer(api.answer) as url:
        variables = {"CUSTOMERS": str(customers), "CRM": url, "CLIENT_SECRET": SECRET}
        text = await asyncio.to_thread(EXAMPLE.read_text)
        one = RunningFlow(read_text(text, variables=variables).flows["crm"], FlowContext("crm"))
        await one.start()
        await until(lambda: len(api.items) == 250)
        await one.stop()
    assert [each["n"] for each in sorted(api.items, key=lambda each: int(each["n"]))] == list(range(250))


# -- proxies ---------------------------------------------------------------------------------------------------
class Proxy:
    """A proxy with a password, for HTTP and for tunnels."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.url = ""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split(" ", 2)
            self.requests.append(f"{method} {target}")
            if "Proxy-Authorization: Basic bWU6cEBzcw==" not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            where = target if method == "CONNECT" else target.split("/")[2]
            host, _, port = where.rpartition(":")
            other, to = await asyncio.open_connection(host, int(port))
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                to.write(head.replace(f"http://{where}", "", 1).encode())
            await asyncio.gather(self._copy(reader, to), self._copy(other, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    made.url = f"http://me:p%40ss@127.0.0.1:{made.port}"
    try:
        yield made
    finally:
        server.close()


@in_loop
@pytest.mark.parametrize("secure", [False, True])
async def test_requests_go_through_the_proxy_of_the_environment(
    secure: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ssl

    got: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(await request.json())
        assert "Proxy-Authorization" not in request.headers or not secure
        return web.Response()

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    given: dict[str, Any] = {"ssl_context": context} if secure else {}
    async with peer(answer, **given) as url, proxy() as through:
        if secure:
            url = url.replace("http:", "https:")
        for name in ("NO_PROXY", "no_proxy", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy" if secure else "http_proxy", through.url)
        flow = Flow("orders")
        tls = {"tls": {"ca": str(tmp_path / "ca.pem")}} if secure else {}
        flow.connector("out", "http_client", url=f"{url}/a", **tls)
        source = feed(flow)
        flow.connect("in -> out")
        async with running(flow):
            source.give(*events(0, 3))
            await until(lambda: len(source.outcomes) == 3)
        assert len(got) == 3
        assert {status for status, _ in source.outcomes.values()} == {"ok"}
        assert through.requests[0] == (f"CONNECT {url[8:]}" if secure else f"POST {url}/a")


@in_loop
async def test_a_proxy_with_another_password_is_an_outage_and_hidden() -> None:
    async with proxy() as through:
        flow = Flow("orders")
        option = f"http://me:{SECRET.replace('/', '%2F')}@127.0.0.1:{through.port}"
        flow.connector("out", "http_client", url="http://example.invalid/a", proxy=option)
        source = feed(flow, remembers=True)
        flow.connect("in -> out")
        async with running(flow) as made:
            source.give(*events(0, 1))
            await until(lambda: "407" in made.graph.sinks["out"].error_text)
            assert not source.outcomes
            assert "s3cret" not in made.graph.sinks["out"].error_text
        assert "s3cret" not in str(without_secrets({"proxy": option}))


def test_hosts_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,.example.org")
    for name in ("HTTP_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = proxy_for(URL("http://example.com/"), "environment")
    assert found is not None
    assert str(found.url) == "http://proxy.example:3128"
    assert proxy_for(URL("http://api.example.org/"), "environment") is None
    assert proxy_for(URL("http://localhost:80/"), "environment") is None
    assert proxy_for(URL("https://example.com/"), "environment") is None
    assert proxy_for(URL("http://example.com/"), "none") is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"proxy": "socks5://me:s3cret@a"}, "proxy: it must have the form http://HOST:PORT"),
        ({"auth": {"bearer": "a", "oauth2": {**CLIENT, "token_url": "http://a"}}}, "or oauth2"),
        ({"auth": {"oauth2": {**CLIENT, "token_url": "ftp://a"}}}, "oauth2: url"),
        ({"auth": {"oauth2": {"token_url": "http://a"}}}, "client_id"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text) as raised:
        Flow("orders").connector("out", "http_client", url="http://a", **options)
    assert "s3cret" not in str(raised.value)
