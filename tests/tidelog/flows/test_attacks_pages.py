"""Pages of other sites that a browser of this machine shows, and peers' text in logs."""

from __future__ import annotations

import asyncio
import io
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.browserkit import browsing, require_chromium
from tests.tidelog.flows.netkit import changing, running, seen, url_of
from tests.waiting import until
from tidelog.cli.logs import text_formatter
from tidelog.flows import Flow, FlowFileError


@pytest.mark.parametrize(
    ("options", "headers", "admitted"),
    [
        ({}, {}, True),
        ({}, {"Origin": "http://127.0.0.1:PORT"}, True),
        ({}, {"Origin": "http://evil.example"}, False),
        ({}, {"Origin": "null"}, False),
        ({}, {"Origin": "http://evil.example:PORT", "Host": "evil.example:PORT"}, False),  # DNS rebinding
        ({}, {"Host": "evil.example:PORT"}, True),  # no page: those say where they are from
        ({"origins": ["http://shop.example"]}, {"Origin": "http://shop.example"}, True),
        ({"origins": ["http://shop.example"]}, {"Origin": "http://evil.example"}, False),
        ({"origins": ["*"]}, {"Origin": "http://evil.example"}, True),
        ({"host": "0.0.0.0"}, {"Origin": "http://a.example:PORT", "Host": "a.example:PORT"}, True),
    ],
)
@pytest.mark.parametrize("kind", ["http_server", "websocket_server"])
def test_pages_of_other_sites_send_nothing(
    kind: str, options: dict[str, Any], headers: dict[str, str], admitted: bool
) -> None:
    async def scenario() -> None:
        flow = Flow("web")
        flow.connector("in", kind, port=0, codec="string", **options)
        sink = seen(flow)
        flow.connect("in -> seen")
        async with running(flow) as one, aiohttp.ClientSession() as session:
            url = (await url_of(one)).replace("0.0.0.0", "127.0.0.1")
            port = url.rpartition(":")[2].strip("/")
            given = {name: value.replace("PORT", port) for name, value in headers.items()}
            if kind == "http_server":
                async with session.post(url, data="text", headers={"Content-Type": "text/plain", **given}) as response:
                    assert response.status == (200 if admitted else 403)
            else:
                refused = 0
                try:
                    async with session.ws_connect(url, headers=given) as socket:
                        await socket.send_str("text")
                        await until(lambda: sink.events)
                except aiohttp.WSServerHandshakeError as error:
                    refused = error.status
                assert refused == (0 if admitted else 403)
        assert len(sink.events) == admitted

    asyncio.run(scenario())


def test_what_a_peer_says_begins_no_line_of_the_log() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(text_formatter())
    logger = logging.Logger("x")  # noqa: LOG001 - nobody else's
    logger.addHandler(handler)
    logger.error("rejected: %s", "a\n2026-01-01 00:00:00 ERROR root: all is lost\r\x1b[2J\x85\u2028b")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    first, second, third, *_ = out.getvalue().split("\n")
    assert first.endswith(r"rejected: a\n2026-01-01 00:00:00 ERROR root: all is lost\r\x1b[2J\x85\u2028b")
    assert second.endswith("failed")
    assert third == "Traceback (most recent call last):"


SHOP = "https://shop.example.org"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,authorization"}


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ([SHOP], SHOP, SHOP),
        (["HTTPS://Shop.Example.org:443/"], SHOP, SHOP),
        (["*"], SHOP, "*"),
        (["null"], "null", "null"),
        ([SHOP], "https://evil.example.org", None),
        ([], SHOP, None),
        (None, SHOP, None),
    ],
)
def test_pages_of_known_origins_may_send_and_read(origins: list[str] | None, origin: str, allowed: str | None) -> None:
    async def scenario() -> None:
        flow = Flow("web")
        flow.connector("in", "http_server", port=0, auth={"bearer": "0123456789"}, origins=origins)
        sink = seen(flow)
        flow.connect("in -> seen")
        async with running(flow) as one, aiohttp.ClientSession() as session:
            url = await url_of(one)
            async with session.options(url, headers={"Origin": origin, **ASKS}) as response:
                headers = response.headers
                assert headers.get("Access-Control-Allow-Origin") == allowed
                if allowed is None:
                    assert response.status in (401, 403)
                else:
                    assert response.status == 204
                    assert headers["Access-Control-Allow-Methods"] == "POST, PUT"
                    assert headers["Access-Control-Allow-Headers"] == "content-type,authorization"
                    assert (headers.get("Vary") == "Origin") == (allowed != "*")
            for token, status in (("0123456789", 200), ("wrong", 401)):
                asked = {"Origin": origin, "Authorization": f"Bearer {token}"}
                async with session.post(url, json=1, headers=asked) as response:
                    assert response.status == (status if allowed or status == 401 else 403)
                    assert response.headers.get("Access-Control-Allow-Origin") == allowed
        assert len(sink.events) == (allowed is not None)

    asyncio.run(scenario())


@pytest.mark.parametrize("origin", ["shop.example.org", "https://shop.example.org/a", "https://u@h", "https://h:x", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    flow = Flow("web")
    with pytest.raises(FlowFileError, match="is not an origin such as https://shop"):
        flow.connector("in", "http_server", port=0, origins=[origin])


@pytest.mark.slow
def test_a_browser_lets_a_page_of_a_known_origin_send_and_read(tmp_path: Path) -> None:
    require_chromium()
    send = """(async (url, type) => {
        try {
            const options = {method: 'POST', headers: {'Content-Type': type, 'X-Own': '1'}, body: '{"a": 1}'};
            const answer = await fetch(url, options);
            return answer.status + ' ' + answer.headers.get('X-Told') + ' ' + await answer.text();
        } catch (error) { return error.name; }
    })"""

    async def scenario() -> None:
        async def page(_: web.Request) -> web.Response:
            return web.Response(text="<title>shop</title>", content_type="text/html")

        app = web.Application()
        app.router.add_get("/", page)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
        flow = Flow("web")
        flow.connector("known", "http_server", port=0, origins=[origin])
        flow.connector("other", "http_server", port=0, origins=["https://shop.example.org"])
        flow.pipeline("told", changing(lambda event: event.meta.update(response_headers={"X-Told": "yes"})))
        flow.connect("known -> told -> known")
        sink = seen(flow)
        flow.connect("other -> seen")
        async with running(flow) as one:
            known, other = await url_of(one, "known"), await url_of(one, "other")
            async with browsing(f"{origin}/", tmp_path) as shown:
                for kind in ("application/json", "text/plain"):
                    assert await shown.run(f"{send}({known!r}, {kind!r})") == '200 yes {"a":1}'
                    assert await shown.run(f"{send}({other!r}, {kind!r})") == "TypeError"
        assert sink.events == []
        await runner.cleanup()

    asyncio.run(scenario())
