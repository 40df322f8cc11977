"""The browser kit of the tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.browserkit import browsing, require_chromium

# The button moves right after its position was read for the first time.
MOVING = """data:text/html,<div style="height:0"></div><button onclick="document.title += 'x'">press</button><script>
const found = document.elementFromPoint.bind(document); let moved = false;
document.elementFromPoint = (x, y) => {
  const result = found(x, y);
  if (!moved) { moved = true; document.querySelector('div').style.height = '300px'; }
  return result;
};</script>"""


@pytest.mark.slow
def test_a_click_follows_a_button_that_moves(tmp_path: Path) -> None:
    require_chromium()

    async def test() -> None:
        async with browsing(MOVING, tmp_path) as page:
            await page.click("button")
            assert await page.run("document.title") == "x"

    asyncio.run(test())
