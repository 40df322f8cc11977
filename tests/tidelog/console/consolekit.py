"""A console on a real server, and a real browser that shows it. The tests of a module share them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from tests.browserkit import Page, browsing, require_chromium
from tidelog.client import Client
from tidelog.console.application import ConsoleOptions, ConsoleServer
from tidelog.testing import Server, running_server
from tidelog.transport.access import Access

T = TypeVar("T")
Form = dict[str, str] | list[tuple[str, str]]
PASSWORD = "a password"
ALL = ("~*", "&*", "+@all")

# Text whose contrast with its background is below WCAG AA: 4.5 to 1, or 3 to 1 for large text.
FAINT = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const light = (color) => { const [r, g, b] = color.map((each) => {
    const part = each / 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (element) => {
    if (!element) return rgba(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3);
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement, style = getComputedStyle(element);
    if (!node.textContent.trim() || !element.checkVisibility({visibilityProperty: true}) || element.disabled) continue;
    const under = ground(element), text = over(rgba(style.color), under);
    const [low, high] = [light(text), light(under)].sort((a, b) => a - b), ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)}: ${node.textContent.trim().slice(0, 40)}`);
  }
  return found;
})()"""

# Controls that a screen reader could not name, and duplicate IDs.
NAMELESS = """(() => {
  const named = (each) => each.getAttribute("aria-label") || each.labels?.[0]?.textContent.trim()
    || document.getElementById(each.getAttribute("aria-labelledby") || "")?.textContent.trim()
    || (each.matches("button, a, summary") && each.textContent.trim());
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  return [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, " +
    "[role=region], [role=img], [tabindex='0'], dialog, table")]
    .filter((each) => !each.matches("table") && !named(each)).map((each) => each.outerHTML.slice(0, 100))
    .concat(ids.filter((id, index) => ids.indexOf(id) !== index));
})()"""
WIDE = """[...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > innerWidth + 1
  && !each.closest(".scroll, nav, .u-wrap, .skip, pre")).map((each) => each.outerHTML.slice(0, 100))"""


class ConsoleBench:
    """A server, a console, and a tab of a browser. ``run`` executes a coroutine of a test."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, console: ConsoleServer, page: Page) -> None:
        self._loop = loop
        self.server = server
        self.console = console
        self.page = page

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(100)

    def client(self) -> Client:
        return self.server.client()

    def user(self, name: str, *rules: str) -> None:
        """Create an ACL user with the password PASSWORD."""
        add_user(self.server, name, *rules)

    async def log_in(self, user: str = "ann", path: str = "/") -> Page:
        """Log in as a user, with a new session, and open a page."""
        page = self.page
        await page.go("about:blank")  # the page before it may still send requests, which need its cookie
        await page.forget()
        await page.go(f"{self.console.url}/login")
        await page.fill("#user", user)
        await page.fill("#password", PASSWORD)
        await page.click("button.primary")
        await page.until("location.pathname === '/' && document.readyState === 'complete'")
        if path != "/":
            await page.go(self.console.url + path)
        return page

    async def inspect(self, *paths: str, ready: str = "true") -> None:
        """Open pages at two widths in two color schemes. They must fit, be readable, and have named controls."""
        page = self.page
        for path in paths:
            await page.go(self.console.url + path)
            for width in (1280, 400):
                await page.size(width, 900)
                for scheme in ("light", "dark"):
                    await page.colors(scheme)
                    await page.until(f"innerWidth === {width} && ({ready})")
                    where = f"{path} at {width} px, {scheme}"
                    assert await page.run(FAINT) == [], where
                    assert await page.run(NAMELESS) == [], where
                    assert await page.run(WIDE) == [], where
                    assert await page.run("document.documentElement.scrollWidth <= innerWidth"), where
        await page.size(1280, 900)
        await page.colors("light")

    def check(self, *expected: str) -> None:
        """Fail if the browser reported an error or asked another host. expected: parts of texts of known errors."""
        hosts = {urlsplit(each).netloc for each in self.page.requests if not each.startswith(("data:", "about:"))}
        assert hosts <= {urlsplit(self.console.url).netloc}
        found = [each for each in self.page.complaints if not any(part in each for part in expected)]
        self.page.complaints.clear()
        assert not found, found


def add_user(server: Server, name: str, *rules: str) -> None:
    with server.client() as client:
        client.redis.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *(rules or ALL))


@contextmanager
def benched(folder: Path) -> Iterator[ConsoleBench]:
    """A server, a console and a browser. folder: for the browser's files."""
    with running_server() as server:
        add_user(server, "ann")
        with bench_of(server, folder) as bench:
            yield bench


@contextmanager
def bench_of(server: Server, folder: Path) -> Iterator[ConsoleBench]:
    """A console of a server, or of the cluster that it belongs to, and a browser. Its event loop runs in a thread."""
    require_chromium()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()

    async def start() -> ConsoleBench:
        console = await stack.enter_async_context(serving(server.url, audit_file=str(folder / "audit.jsonl")))
        page = await stack.enter_async_context(browsing(f"{console.url}/login", folder / "browser"))
        return ConsoleBench(loop, server, console, page)

    def call(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(100)

    try:
        yield call(start())
    finally:
        call(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[ConsoleServer]:
    """A console on a free port."""
    console = ConsoleServer(ConsoleOptions(Access.of(url), **({"listen": "127.0.0.1:0"} | options)))
    await console.start()
    try:
        yield console
    finally:
        await console.stop()


class Visitor:
    """A client without a browser."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        return await self._ask("GET", path, None, headers)

    async def post(self, path: str, form: Form | None = None, **headers: str) -> tuple[int, str, Any]:
        return await self._ask("POST", path, form or {}, headers)

    async def log_in(self, user: str = "ann", password: str = PASSWORD) -> tuple[int, str, Any]:
        return await self.post("/login", {"user": user, "password": password})

    async def csrf(self) -> str:
        _, text, _ = await self.get("/")
        return text.partition('name="csrf" value="')[2].partition('"')[0]

    async def _ask(self, method: str, path: str, form: Any, headers: dict[str, str]) -> tuple[int, str, Any]:
        named = {"Accept": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method, self.url + path, data=form, headers=named, allow_redirects=False
        ) as answer:  # fmt: skip
            return answer.status, await answer.text(), answer.headers


def visit(
    server: Server | str, test: Callable[[Visitor, ConsoleServer], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Run a test with a client of a console. server: the one that it shows, or its URL."""

    async def main() -> None:
        async with (
            serving(server if isinstance(server, str) else server.url, **options) as console,
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,  # cookies of an IP address
        ):
            await test(Visitor(session, console.url), console)

    asyncio.run(main())


def audited(path: Path) -> list[dict[str, Any]]:
    """The lines of an audit log."""
    return [json.loads(line) for line in path.read_text().splitlines()]
