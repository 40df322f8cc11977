"""Takes a picture of a page with headless Chromium, over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import aiohttp

PATIENCE: Final = 30.0  # timeout of each step, in seconds
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def browser() -> str | None:
    """Return the path of the browser, or None if it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def photograph(program: str, url: str, shown: str, path: Path) -> None:
    """Display a page until the expression ``shown`` is true in it, then write a picture to ``path`` as PNG.

    Raises OSError if the browser fails or the expression does not become true in time.
    """
    path.write_bytes(asyncio.run(_photograph(program, url, shown)))


async def _photograph(program: str, url: str, shown: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tidelog-photo-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--window-size=1300,640", "--hide-scrollbars",
            "--remote-debugging-port=0", f"--user-data-dir={folder}",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            async with asyncio.timeout(PATIENCE):
                while not (found := re.search(rb"DevTools listening on (ws://\S+)", await process.stderr.readline())):
                    if process.stderr.at_eof():
                        raise OSError(f"{program} has ended with status {await process.wait()}")
                devtools = found[1].decode()
                async with aiohttp.ClientSession() as session, session.ws_connect(devtools, max_msg_size=0) as tab:
                    return await _shown(tab, url, shown)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OSError(f"{program} shows nothing: {type(error).__name__} {error}") from error
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _shown(tab: aiohttp.ClientWebSocketResponse, url: str, shown: str) -> bytes:
    numbers = itertools.count(1)
    session: dict[str, str] = {}

    async def call(method: str, **params: Any) -> Any:
        number = next(numbers)
        await tab.send_json({"id": number, "method": method, "params": params} | session)
        while True:
            answer = json.loads((await tab.receive()).data)
            if answer.get("id") == number:
                if "error" in answer:
                    raise OSError(f"{method}: {answer['error']}")
                return answer["result"]

    target = await call("Target.createTarget", url=url)
    session["sessionId"] = (await call("Target.attachToTarget", targetId=target["targetId"], flatten=True))["sessionId"]
    while True:
        found = await call("Runtime.evaluate", expression=shown, returnByValue=True)
        if found["result"].get("value") is True:
            break
        await asyncio.sleep(0.1)
    return base64.b64decode((await call("Page.captureScreenshot", format="png"))["data"])
