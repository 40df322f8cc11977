"""A real browser, headless: Debian's chromium, spoken to by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

LONG = 40.0  # s that anything may take
# The middle of an element that can be clicked, or null. A click on it sets window.isMissed to false.
TARGET = """(selector) => {
  const found = document.querySelector(selector);
  if (!found || document.readyState !== 'complete') return null;
  found.scrollIntoView({block: 'center', inline: 'center'});
  const box = found.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  if (!found.contains(document.elementFromPoint(x, y))) return null;
  window.isMissed = true;
  found.addEventListener('click', () => window.isMissed = false, {once: true, capture: true});
  return [x, y];
}"""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def require_chromium() -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium here (apt install chromium)")


class NavigatedError(AssertionError):
    """The page was replaced while an expression ran in it."""


class Page:
    """One tab. ``requests``: URLs that it asked for; ``complaints``: what the browser complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._session: str | None = None
        self._loaded = asyncio.Event()
        self.requests: list[str] = []
        self.complaints: list[str] = []

    async def open(self, url: str) -> None:
        target = (await self._call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self._call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for each in ("Page", "Runtime", "Log", "Network"):
            await self._call(f"{each}.enable")
        self._loaded.clear()
        await self._call("Page.navigate", url=url)
        async with asyncio.timeout(LONG):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true; its value."""
        try:
            async with asyncio.timeout(LONG):
                while True:
                    try:
                        if value := await self.run(script):
                            return value
                    except NavigatedError:  # the page is being replaced
                        pass
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise AssertionError(f"never true: {script}\n{text}\n{self.complaints}") from None

    async def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of what a selector names, once it is seen and the page loaded.

        If the page moves it meanwhile, the click misses it, and is repeated.
        """
        try:
            async with asyncio.timeout(LONG):
                missed = True
                while missed:
                    x, y = await self.until(f"({TARGET})({json.dumps(selector)})")
                    for kind in ("mousePressed", "mouseReleased"):
                        await self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
                    try:
                        missed = await self.run("window.isMissed === true")
                    except NavigatedError:  # it was a link
                        missed = False
        except TimeoutError:
            raise AssertionError(f"each click misses {selector}") from None

    async def press(self, key: str) -> None:
        """Press and release a key: Tab, Enter, Escape, ArrowDown, or a character."""
        named = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " "), "ArrowDown": (40, "")}
        code, text = named.get(key, (ord(key[0].upper()), key))
        facts = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        await self._call("Input.dispatchKeyEvent", type="keyDown", **facts, **({"text": text} if text else {}))
        await self._call("Input.dispatchKeyEvent", type="keyUp", **facts)

    async def size(self, width: int, height: int) -> None:
        """The size of the window, in px; below 500 px that of a telephone."""
        await self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    async def go(self, url: str) -> None:
        """Open another address in the tab."""
        await self.run("window.isLeft = true")
        await self._call("Page.navigate", url=url)
        await self.until("window.isLeft === undefined && document.readyState === 'complete'")

    async def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field, as typing does."""
        await self.click(selector)
        await self.run(f"document.querySelector({json.dumps(selector)}).select()")
        await self._call("Input.insertText", text=text)

    async def colors(self, scheme: str) -> None:
        """The color scheme of the system: ``light`` or ``dark``."""
        await self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self, path: Path, height: int | None = None) -> None:
        """Write what the tab shows, from its top to its bottom, or to ``height`` px, as PNG."""
        size = (await self._call("Page.getLayoutMetrics"))["cssContentSize"]
        size["height"] = height or size["height"]
        found = await self._call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={**size, "scale": 1}
        )  # fmt: skip
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))

    async def forget(self) -> None:
        """Delete the cookies."""
        await self._call("Network.clearBrowserCookies")

    async def _call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        async with asyncio.timeout(LONG):
            return await self._waiting[number]

    async def follow(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            waiting = self._waiting.pop(found.get("id"), None)
            if waiting is not None and not waiting.done():
                if "error" in found:
                    gone = re.search(r"navigated|context", str(found["error"]))
                    waiting.set_exception((NavigatedError if gone else AssertionError)(str(found["error"])))
                else:
                    waiting.set_result(found["result"])
            method, params = found.get("method"), found.get("params", {})
            if method == "Page.loadEventFired":
                self._loaded.set()
            elif method == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            elif method == "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))


@asynccontextmanager
async def browsing(url: str, folder: Path) -> AsyncIterator[Page]:
    """A browser that shows a page. folder: for its files."""
    assert CHROMIUM is not None
    browser = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--window-size=1400,1000",
        "--remote-debugging-port=0", f"--user-data-dir={folder}",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert browser.stderr is not None
        async with asyncio.timeout(LONG):
            while True:
                line = (await browser.stderr.readline()).decode()
                assert line, "chromium has ended"
                if found := re.search(r"DevTools listening on (ws://\S+)", line):
                    break
        async with aiohttp.ClientSession() as session, session.ws_connect(found[1], max_msg_size=0) as socket:
            page = Page(socket)
            following = asyncio.create_task(page.follow())
            draining = asyncio.create_task(browser.stderr.read())  # it says a lot
            try:
                await page.open(url)
                yield page
            finally:
                following.cancel()
                draining.cancel()
                await asyncio.gather(following, draining, return_exceptions=True)
    finally:
        browser.send_signal(signal.SIGKILL)
        await browser.wait()
