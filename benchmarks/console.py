"""The console: ``python -m benchmarks.console [--streams N] [--groups N] [--partitions N] [--rounds N]``.

A server in a process of its own has N streams, N groups on one stream, a topic of 16 and one of N partitions, and an
app with four processors. A browser (Debian's chromium, headless) opens each page several times. Measures the median
time until the browser paints the first content of a page, and the CPU time of the longest turn of the console's event
loop, for which other users of the console wait. A page stays open for a moment, so that its live parts are included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from tests.browserkit import CHROMIUM, Page, browsing
from tidelog import Client
from tidelog.client import calls
from tidelog.client.steps import run
from tidelog.console.application import ConsoleOptions, ConsoleServer
from tidelog.coordination import programs
from tidelog.testing import Server, running_server
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.workers import App
from tidelog.workers.coordination import declaration

PIPELINE = 2000  # calls
SMALL = 16  # partitions
STATUS = "performance.getEntriesByType('navigation')[0].responseStatus"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
PASSWORD = "secret"


class Order(msgspec.Struct):
    id: int
    customer: str


class MeasuredConsole:
    """A console whose event loop runs in a thread. ``longest``: CPU time of its longest turn, in ms."""

    def __init__(self, url: str) -> None:
        self.longest = 0.0
        self._server = ConsoleServer(ConsoleOptions(Access.of(url), "127.0.0.1:0"))
        self._loop = asyncio.new_event_loop()
        loop: Any = self._loop
        once = loop._run_once

        def turn() -> None:
            before = time.thread_time_ns()
            once()
            self.longest = max(self.longest, (time.thread_time_ns() - before) / 1e6)

        loop._run_once = turn
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run the console; yields its URL."""
        self._call(self._server.start)
        gc.collect()
        gc.freeze()  # as the program does
        try:
            yield self._server.url
        finally:
            self._call(self._server.stop)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, function: Callable[[], Awaitable[None]]) -> None:
        async def called() -> None:
            await function()

        asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)


def fill(server: Server, streams: int, groups: int, partitions: int) -> None:
    """Create what the pages show."""
    with server.client() as client:
        together(client, (calls.tappend(f"s:{at}", {"n": at}) for at in range(streams)))
        client.tappend("grouped", {"n": 1})
        together(client, (calls.tread("grouped", "0", 1, group=f"g{at}") for at in range(groups)))
        app = App("shop", server.url)
        small = app.topic("small", Order, partition_by="customer", partitions=SMALL)
        large = app.topic("large", Order, partition_by="customer", partitions=partitions)
        for name, topic in (("pack", small), ("mail", small), ("bill", large), ("count", large)):

            async def processor(order: Order) -> None: ...

            app.each(topic, ordering="key", name=name)(processor)
        run(client, declaration.write(app, "w1"))
        run(client, programs.record("apps", "shop"))
        for topic in (small, large):
            fill_topic(client, topic, [each.group for each in app.processors.values() if each.topic is topic])
            topic.close_sync()
        client.redis.execute_command("ACL", "SETUSER", "ann", "on", f">{PASSWORD}", "~*", "&*", "+@all")


def fill_topic(client: Client, topic: Topic[Order], groups: Sequence[str]) -> None:
    """Append a record to each partition, and read it as the groups of the processors."""
    run(client, topic.agree())
    streams = [topic.stream(at) for at in range(topic.partitions)]
    together(client, (calls.tappend(each, {"id": 1, "customer": "ann"}) for each in streams))
    together(client, (calls.tread(each, "0", 1, group=group) for each in streams for group in groups))


def together(client: Client, commands: Iterable[Any]) -> None:
    """Send calls in pipelines."""
    part = []
    for each in commands:
        part.append(each)
        if len(part) == PIPELINE:
            client.together(*part)
            part.clear()
    if part:
        client.together(*part)


def pages(partitions: int) -> list[tuple[str, str]]:
    """Return the title and the path of each page."""
    topics = [(name, f"{count} partitions") for name, count in (("small", SMALL), ("large", partitions))]
    found = [
        ("overview", "/"),
        ("streams: a search", f"/streams?pattern={quote('s:1*')}"),
        ("a stream", "/streams/stream?key=s:1"),
        ("the groups of a stream", "/streams/groups?key=grouped"),
        ("a group", "/streams/group?key=grouped&group=g1"),
    ]
    for name, what in topics:
        found += [
            (f"a topic, {what}", f"/topics/topic?name={name}"),
            (f"its records, {what}", f"/topics/records?name={name}"),
            (f"its groups, {what}", f"/groups?topic={name}"),
        ]
    found += [
        ("programs", "/programs"),
        ("an app", "/programs/app?name=shop"),
        ("dead letters", "/deadletters"),
    ]
    return found


async def open_pages(
    console: MeasuredConsole, url: str, folder: Path, listed: list[tuple[str, str]], rounds: int, seconds: float
) -> None:
    """Open each page for some seconds, and print its figures."""
    async with browsing(f"{url}/login", folder) as page:
        await log_in(page)
        for title, path in listed:
            paints = []
            console.longest = 0.0
            for _ in range(rounds):
                await page.go(url + path)
                paints.append(await page.until(PAINTED))
                status = await page.run(STATUS)
                if status != 200:
                    sys.exit(f"{path}: status {status}")
                await asyncio.sleep(seconds)
            print(f"{title:<36} {median(paints):8.0f} {console.longest:8.1f}", flush=True)


async def log_in(page: Page) -> None:
    await page.fill("#user", "ann")
    await page.fill("#password", PASSWORD)
    await page.click("button.primary")
    await page.until("location.pathname === '/' && document.readyState === 'complete'")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=1000, help="of the large topic")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="for which a page stays open")
    parser.add_argument("--only", default="", help="only pages whose title contains this text")
    given = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("there is no chromium (Debian: apt-get install chromium)")
    listed = [each for each in pages(given.partitions) if given.only in each[0]]
    with running_server() as server, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        fill(server, given.streams, given.groups, given.partitions)
        console = MeasuredConsole(server.url)
        with console.running() as url:
            print(f"{'page':<36} {'paint ms':>8} {'turn ms':>8}", flush=True)
            asyncio.run(open_pages(console, url, Path(folder), listed, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
