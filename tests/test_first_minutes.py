"""The first minutes of a user who has never seen tidelog: the commands of the README's first screen, and then a
browser, in which this user clicks what the pages name.

The wheel that tests/test_wheels.py builds is installed, in an environment of its own that has tidelog's dependencies.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import time
from pathlib import Path
from typing import Final

import pytest

from tests.browserkit import Page, browsing, require_chromium
from tests.test_readme import ROOT, blocks
from tests.tidelog.console.consolekit import FAINT, NAMELESS, WIDE, audited
from tests.tidelog.quickstart.quickstartkit import RunningQuickstart, quickstarted
from tests.waiting import eventually
from tests.wheels import install, wheel
from tidelog import Client
from tidelog.cli.quickstart import DIRECTORY
from tidelog.quickstart import history, shop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT: Final = 180.0  # s from the start of the program until all is done
SCREEN: Final = 30  # lines of the README that a first screen shows

# The first visible control whose text, or whose label, is this. It is marked for ``Page.click``.
FIND: Final = """((wanted) => {
  const text = (each) => (each.getAttribute("aria-label") || each.textContent).trim().replace(/\\s+/g, " ");
  const labeled = (each) => [...(each.labels || [])].map(text).concat(each.getAttribute("aria-label") || "");
  const shown = document.querySelector("dialog[open]") || document;
  const found = [...shown.querySelectorAll("*")].find((each) => each.checkVisibility() && (
    each.matches("a[href], button, summary") ? text(each) === wanted
    : each.matches("input, select, textarea") && labeled(each).includes(wanted)));
  document.querySelector("[data-wanted]")?.removeAttribute("data-wanted");
  found?.setAttribute("data-wanted", "");
  return found !== undefined;
})(%s)"""


class Person:
    """A user, who sees texts and clicks them."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def click(self, text: str) -> None:
        await self.page.until(FIND % json.dumps(text))
        await self.page.click("[data-wanted]")

    async def write(self, label: str, text: str) -> None:
        await self.page.until(FIND % json.dumps(label))
        await self.page.fill("[data-wanted]", text)

    async def close(self) -> None:
        await self.click("Close")
        await self.page.until("document.querySelector('dialog[open]') === null")

    async def sees(self, pattern: str) -> None:
        """Wait until the page, or its open dialog, shows a text that matches."""
        matches = f"new RegExp({json.dumps(pattern)}).exec(document.readyState === 'complete' ? shown.innerText : '')"
        await self.page.until(
            f"(() => {{ const shown = document.querySelector('dialog[open]') || document.body; return {matches}; }})()"
        )


def first_screen() -> list[str]:
    """Return the commands on the first screen of the README."""
    block = blocks()[0]
    assert block.line + len(block.text.splitlines()) <= SCREEN
    return [line.partition("#")[0].strip() for line in block.text.splitlines()]


async def browse(person: Person) -> None:
    await person.click("page-views")
    await person.sees(r"Entries over time")
    shown = await person.page.run("document.querySelector('#entries a').textContent")
    await person.click(shown)
    await person.sees(rf"{re.escape(shown)}(.|\n)*visitor(.|\n)*agent")
    await person.click("JSON")
    await person.sees(r'"fields": \{')  # of the JSON view, not of the view before it
    await person.close()
    await person.click("Older")
    await person.sees(r"Newer")


async def reset(person: Person) -> None:
    await person.click("recommendations")
    await person.sees(r"Lag\s+[\d,]{3,} entries")
    await person.write("New position", "latest")
    await person.click("Preview")
    await person.sees(r"[\d,]+ entries will be skipped")
    await person.click("Reset the group even if its position has changed since this preview")
    await person.click("Reset the group")
    await person.sees(r"reset|Reset")


async def replay(person: Person, running: RunningQuickstart) -> None:
    await person.click("orders.dead")
    await person.sees(r"\d+ open in orders\.dead")
    row = await person.page.run(
        "[...document.querySelectorAll('tbody tr')].find((each) => each.innerText.includes('BankError')).innerText"
    )
    number = row.split()[0]
    await person.click(number)
    await person.sees(r"Fjordbank did not answer(.|\n)*Traceback(.|\n)*shop\.py")
    await person.close()
    with Client(running.url) as client:
        letter = next(each for each in client.trange("orders.dead:0") if str(each.id) == number)
        order = json.loads(letter["data"])["id"]
        await person.click(f"Select {number}")
        await person.click("Replay selected")
        await person.sees(r"1 dead letter replayed")
        invoices = [f"invoices:{partition}" for partition in range(4)]
        eventually(
            lambda: any(int(each.text()["order"]) == order for key in invoices for each in client.trange(key)),
            "the order was not billed",
        )
    await person.click("Reload")
    await person.page.until(
        f"document.readyState === 'complete' && !document.body.innerText.includes({json.dumps(number)})"
    )


async def use(running: RunningQuickstart, folder: Path, ready: float) -> None:
    async with browsing(running.console, folder) as page:
        person = Person(page)
        await person.click("Log in")
        await person.sees(r"Next steps")
        for width in (1280, 400):
            await page.size(width, 900)
            for scheme in ("light", "dark"):
                await page.colors(scheme)
                assert [await page.run(each) for each in (FAINT, NAMELESS, WIDE)] == [[], [], []]
        await page.size(1280, 900)
        await browse(person)
        await person.click("Next steps")
        await reset(person)
        await person.click("Next steps")
        eventually(lambda: time.monotonic() > ready + shop.OUTAGE)  # the bank answers again
        await replay(person, running)
        await person.click("Next steps")
        await person.click("Copy")
        await person.sees(r"Copied|Selected")
        assert page.complaints == []


def test_browse_a_stream_reset_a_group_replay_a_dead_letter(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    require_chromium()
    entering, installing, starting = first_screen()
    assert entering == "python3.11 -m venv .venv && . .venv/bin/activate"
    assert installing == "pip install '.[console]'"
    name, command = shlex.split(starting)
    here = install(wheel("plain", tmp_path_factory), tmp_path)
    environment = here.environment | {"PATH": f"{here.bin}{os.pathsep}{os.environ['PATH']}"}
    began = time.monotonic()
    with quickstarted(tmp_path, program=(str(here.bin / name), command), environment=environment) as running:
        asyncio.run(use(running, tmp_path / "browser", time.monotonic()))
        assert time.monotonic() - began < LIMIT
        with Client(running.url) as client:
            (group,) = client.tgroup_list(history.VIEWS)
            assert client.tcount(history.VIEWS, f"({group.offset}", "+") < 200
    assert [each["action"] for each in audited(tmp_path / DIRECTORY / "console.jsonl")] == ["login", "reset", "replay"]
    assert str(ROOT) not in (tmp_path / DIRECTORY / "samples.log").read_text(), "the checkout was used"
