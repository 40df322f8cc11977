"""Makes the pictures of the console in docs/pictures/ from a quickstart: scripts/pictures runs it.

The sample data is the same each time, but ages, rates, and entries of the last minute differ.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parent.parent))

from tests.browserkit import CHROMIUM, Page, browsing
from tests.tidelog.quickstart.quickstartkit import RunningQuickstart, quickstarted
from tests.waiting import until
from tidelog.client import Client
from tidelog.quickstart.ports import is_free
from tidelog.testing import free_port

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / "docs/pictures"
WIDTH: Final = 1280  # px
SAMPLES: Final = 12  # of the plots on the overview, one in five seconds
LARGEST: Final = 150 * 1024  # bytes of a picture


async def overview(page: Page) -> None:
    await page.until("document.querySelectorAll('.u-wrap').length > 3")


async def stream(page: Page) -> None:
    await page.until("document.querySelectorAll('#density .u-wrap').length && $('entries').rows.length > 9")


async def group(page: Page) -> None:
    await page.fill("#to", "latest")
    await page.press("Enter")
    await page.until("document.querySelector('#reset-result button.danger') !== null")
    await page.run("scrollTo(0, 0); document.activeElement.blur()")


async def dead_letters(page: Page) -> None:
    await page.until("document.querySelectorAll('main tbody input').length > 7")


async def app(page: Page) -> None:
    await page.until("document.querySelector('main').innerText.includes('shop.bill')")


async def loaded(page: Page) -> None:
    await page.until("document.readyState === 'complete'")


#: By file: the address, its height in px, and what must be shown. The plots of the overview need samples.
PICTURES: Final[dict[str, tuple[str, int, Callable[[Page], Awaitable[None]]]]] = {
    "next-steps": ("/next-steps", 860, loaded),
    "stream": ("/streams/stream?key=page-views", 800, stream),
    "topic": ("/topics/topic?name=orders", 760, loaded),
    "group": ("/streams/group?key=page-views&group=recommendations", 800, group),
    "dead-letters": ("/deadletters?queue=orders.dead", 540, dead_letters),
    "app": ("/programs/app?name=shop", 700, app),
    "overview": ("/", 590, overview),
    "stream-dark": ("/streams/stream?key=page-views", 800, stream),  # dark: by the end of the name
}


async def photograph(running: RunningQuickstart, scratch: Path) -> None:
    async with browsing(f"{running.console}/login", scratch) as page:
        await page.size(WIDTH, 900)
        await page.click("button.primary")
        await page.until("location.pathname === '/next-steps'")
        with Client(running.url) as client:
            await until(lambda: client.tlen("tidelog:console:history") >= SAMPLES, seconds=10 * SAMPLES)
        for name, (path, height, shown) in PICTURES.items():
            await page.size(WIDTH, height)
            await page.colors("dark" if name.endswith("-dark") else "light")
            await page.go(running.console + path)
            await shown(page)
            file = FOLDER / f"{name}.png"
            await page.picture(file, height)
            size = file.stat().st_size
            print(f"{file.relative_to(ROOT)}  {size // 1024} KB")
            if size > LARGEST:
                sys.exit(f"{file} has more than {LARGEST // 1024} KB")


def main() -> None:
    if CHROMIUM is None:
        sys.exit("no chromium here (Debian: apt-get install chromium)")
    FOLDER.mkdir(exist_ok=True)
    ports = [str(port if is_free(port) else free_port()) for port in (6379, 9899)]
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-pictures-", ignore_cleanup_errors=True) as scratch,
        quickstarted(Path(scratch), "--port", ports[0], "--console-port", ports[1]) as running,
    ):
        asyncio.run(photograph(running, Path(scratch) / "browser"))


if __name__ == "__main__":
    main()
