"""The pages of streams in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tidelog.console.consolekit import FAINT, NAMELESS, ConsoleBench, benched

EVIL = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
ROWS = "document.querySelectorAll('#entries tr').length"
BARS = "document.querySelectorAll('#density .u-over').length === 1"
LIVE = "document.querySelector('#live').dataset.state === 'live'"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        with bench.client() as client:
            client.tmappend("orders", ["n", "item"], [(n, "tea") for n in range(230)])
            client.tappend("evil", {EVIL: EVIL, "json": '{"a": [1]}', "binary": b"\xff\x00"})
        yield bench


def test_find_and_open(bench: ConsoleBench) -> None:
    async def test() -> None:
        page = await bench.log_in(path="/")
        await page.press("g")
        await page.press("s")
        await page.until("location.pathname === '/streams'")
        await bench.inspect("/streams")
        await page.press("/")
        await page.until("document.activeElement.id === 'pattern'")
        await page.fill("#pattern", "ord")
        await page.press("Enter")
        await page.until("document.querySelectorAll('tbody th').length === 1")
        await page.click("tbody th a")
        await page.until(f"location.pathname === '/streams/stream' && {ROWS} === 50")
        await page.go(f"{bench.console.url}/streams")
        await page.fill("#pattern", "orders")
        await page.click("[data-open=pattern]")
        await page.until(f"location.pathname === '/streams/stream' && {ROWS} === 50")

    bench.run(test())
    bench.check()


def test_paging_and_positions(bench: ConsoleBench) -> None:
    async def test() -> None:
        position = "document.querySelector('#position')?.textContent"
        page = await bench.log_in(path="/streams/stream?key=orders")
        await bench.inspect("/streams/stream?key=orders", ready=BARS)
        for button, expected in (
            ("older", "131 to 180"), ("older", "81 to 130"), ("newer", "131 to 180"),
            ("oldest", "1 to 50"), ("newer", "51 to 100"), ("newest", "181 to 230"),
        ):  # fmt: skip
            await page.click(f"#{button}")
            await page.until(f"document.readyState === 'complete' && {position} === '{expected} of 230'")
        await page.fill("#at", "#10")
        await page.press("Enter")
        await page.until(f"{position} === '1 to 10 of 230'")
        await page.fill("#at", "no time")
        await page.press("Enter")
        await page.until("document.querySelector('.problem')?.textContent.includes('is not a position')")
        await page.go(f"{bench.console.url}/streams/stream?key=orders")
        await page.until(BARS)
        await page.click("[data-density='900']")
        await page.until("document.querySelector('#density').getAttribute('aria-label').startsWith('230 entries')")
        await page.click("#density .u-over")
        await page.until("location.search.includes('&at=') && document.readyState === 'complete'")
        assert await page.run(ROWS) == 50

    bench.run(test())
    bench.check()


def test_an_entry_in_all_views_is_text(bench: ConsoleBench) -> None:
    async def test() -> None:
        page = await bench.log_in(path="/streams/stream?key=evil")
        body = "document.querySelector('#entry-body')?.textContent"
        await page.click("#entries a")
        await page.until(f"document.querySelector('#entry').open && {body}.includes('onerror')")
        assert await page.run("document.activeElement.closest('dialog') !== null")
        for number, shown in ((2, '"a": ['), (3, "ff 00"), (4, "redis-cli"), (1, "\\\\xff")):
            button = f"#entry .segments button:nth-child({number})"
            await page.click(button)
            await page.until(f"document.querySelector('{button}').ariaPressed === 'true' && {body}.includes('{shown}')")
        for width in (1280, 400):
            await page.size(width, 900)
            assert await page.run("document.querySelector('#entry').scrollWidth <= innerWidth")
            assert await page.run(FAINT) == await page.run(NAMELESS) == []
        await page.size(1280, 900)
        await page.press("Escape")
        await page.until("!document.querySelector('#entry').open")
        assert await page.run("document.querySelectorAll('main img, main script').length") == 0
        assert await page.run("document.title") == "evil · tidelog console"
        await page.click("#values")
        await page.until("document.querySelector('#entries')?.textContent.includes('hidden')")
        assert "onerror" not in await page.run("document.body.innerHTML")
        await page.click("#values")
        await page.until("document.querySelector('#entries')?.textContent.includes('onerror')")

    bench.run(test())
    bench.check()


def test_append_and_follow(bench: ConsoleBench) -> None:
    async def test() -> None:
        with bench.client() as client:
            client.tappend("live", {"n": "first"})
            page = await bench.log_in(path="/streams/stream?key=live")
            await page.click("[data-dialog=append]")
            await page.fill("#append [name=field]", "city")
            await page.fill("#append [name=value]", "Bergen")
            await page.click("#add-field")
            await page.until("document.querySelectorAll('#append-fields .field').length === 2")
            await page.click("#append button.primary")
            await page.until("document.querySelector('#append-result').textContent.includes('Appended as')")
            assert client.trange("live")[-1].text() == {"city": "Bergen"}
            await page.click("#append [data-close]")

            await page.go(f"{bench.console.url}/streams/stream?key=live")
            await page.click("#follow")
            await page.until(LIVE)
            await page.run("banner('The server did not answer.')")
            await page.until("document.querySelector('#banner').hidden")  # without a new entry, too
            client.tappend("live", {"n": EVIL})
            await page.until(f"{ROWS} === 3 && document.querySelector('#entries').textContent.includes('onerror')")
            client.tmappend("live", ["n"], [(n,) for n in range(700)])
            await page.until("!document.querySelector('#skipped').hidden")
            assert "600 entries" in await page.run("document.querySelector('#skipped').textContent")
            await page.click("#follow")
            await page.until("document.querySelector('#follow').textContent === 'Follow'")
            shown = await page.run(ROWS)
            client.tappend("live", {"n": "while paused"})
            await page.click("#follow")
            await page.until("document.querySelector('#entries').textContent.includes('while paused')")
            assert await page.run(ROWS) == shown + 1
            for _ in range(5):
                client.tmappend("live", ["n"], [(n,) for n in range(99)])
                await page.until(f"document.querySelector('#entries').dataset.last === '{client.tinfo('live').last}'")
            assert await page.run(ROWS) == 500
            await page.click("#entries a")  # rows that arrived later open, too
            await page.until("document.querySelector('#entry').open")
        assert await page.run("document.querySelectorAll('main img, main script').length") == 0

    bench.run(test())
    bench.check()
