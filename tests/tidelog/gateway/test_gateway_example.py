"""examples/gateway_chat.py in a real browser: a page that is reloaded in the middle of an answer misses nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from examples.gateway_chat import ANSWER
from tests.browserkit import browsing, require_chromium
from tests.tidelog.gateway.gatewaykit import serving
from tidelog.testing import Server, free_port

EXAMPLE = Path(__file__).parents[3] / "examples/gateway_chat.py"
SHOWN = "(document.getElementById('answer')?.textContent ?? '')"


def test_a_page_that_is_reloaded_misses_nothing(tidelog_server: Server, tmp_path: Path) -> None:
    require_chromium()
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    async def main() -> None:
        async with serving(tidelog_server.url, cors_origins=[url]) as gateway:
            environment = os.environ | {"GATEWAY": gateway.url, "PORT": str(port), "PAUSE": "0.02"}
            example = await asyncio.create_subprocess_exec(
                sys.executable, EXAMPLE, env=environment, stdout=asyncio.subprocess.PIPE
            )  # fmt: skip
            try:
                assert example.stdout is not None
                assert await example.stdout.readline() == f"open {url}\n".encode()
                async with browsing(url, tmp_path / "browser") as page:
                    await page.click("#ask")
                    await page.until(f"{SHOWN}.length > 20")
                    with tidelog_server.client() as client:
                        client.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # in the middle of the answer
                        before = await page.run(SHOWN)
                        assert before != ANSWER
                        chat = await page.run("location.href")
                        await page.go("about:blank")
                        await page.go(chat)
                        await page.until(f"{SHOWN}.length >= {len(before)}")
                        await page.run("window.isOld = true; setTimeout(() => location.reload())")
                        await page.until("window.isOld === undefined && document.readyState === 'complete'")
                        client.redis.execute_command("CLIENT", "UNPAUSE")
                    await page.until("document.getElementById('state')?.textContent === 'complete'")
                    assert await page.run(SHOWN) == ANSWER
                    assert page.complaints == []
            finally:
                example.terminate()
                await example.wait()

    asyncio.run(main())
