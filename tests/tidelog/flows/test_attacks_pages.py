"""Pages of other sites that a browser of this machine shows, and peers' text in logs."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import Any

import aiohttp
import pytest

from tests.tidelog.flows.netkit import running, seen, until
from tidelog.cli.logs import text_formatter
from tidelog.flows import Flow


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
            context = one.graph.connectors["in"].context
            await until(lambda: "url" in context.described and one.status == "running")
            url = context.described["url"].replace("0.0.0.0", "127.0.0.1")
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
