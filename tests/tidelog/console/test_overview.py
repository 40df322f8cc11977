"""The login and the overview in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browserkit import Page
from tests.tidelog.console.consolekit import ConsoleBench, benched
from tidelog.console import history
from tidelog.testing import running_server

LIVE = "document.querySelector('#live')?.dataset.state === 'live'"
PLOTS = "document.querySelectorAll('.plot .u-over').length === 8"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        yield bench


async def text_of(page: Page, selector: str) -> str:
    return str(await page.run(f"document.querySelector({selector!r}).textContent"))


def test_a_wrong_password_and_a_login(bench: ConsoleBench) -> None:
    async def test() -> None:
        page = bench.page
        await page.go(bench.console.url)
        await page.until("location.pathname === '/login' && document.activeElement.id === 'password'")
        await bench.inspect("/login")
        await page.fill("#user", "ann")
        await page.fill("#password", "wrong")
        await page.press("Enter")
        await page.until("document.querySelector('.problem')?.textContent.startsWith('WRONGPASS')")
        assert await page.run("document.querySelector('#user').value") == "ann"
        await bench.log_in()
        assert await text_of(page, ".who .user") == "User ann"
        assert await page.run("document.cookie") == ""  # scripts can't read the session

    bench.run(test())
    bench.check("401", "403")


def test_the_overview_fits_two_widths_and_both_themes(bench: ConsoleBench) -> None:
    async def test() -> None:
        await bench.log_in()
        await bench.inspect("/", ready=f"{LIVE} && {PLOTS}")

    bench.run(test())
    bench.check()


def test_numbers_and_plots_are_live(bench: ConsoleBench) -> None:
    async def test() -> None:
        page = await bench.log_in()
        await page.until(f"{LIVE} && {PLOTS}")
        tiles = "[...document.querySelectorAll('.tile')]"
        streams = f"{tiles}.find((each) => each.innerText.startsWith('Streams')).innerText"
        before = await page.run(streams)
        with bench.client() as client:
            client.tmappend("numbers", ["n"], [(n,) for n in range(1234)])
        await page.until(f"{streams} !== {before!r} && {streams}.includes('1,2')")
        for span in ("1h", "24h", "15m"):
            await page.click(f"[data-span='{span}']")
            await page.until(f"document.querySelector('[aria-pressed=true]').textContent === '{span}'")
            await page.until(PLOTS)
        await page.until("document.querySelector('.plot').getAttribute('aria-label').match(/Commands: [0-9]/)")
        assert await page.run("document.querySelector('#plots-notice').hidden")
        with bench.client() as client:
            assert client.redis.exists(history.KEY)

    bench.run(test())
    bench.check()


def test_clients_are_listed_on_demand_and_names_are_text(bench: ConsoleBench) -> None:
    evil = "<img/src=x/onerror=alert(1)>"

    async def test() -> None:
        page = await bench.log_in()
        with bench.client() as client:
            client.redis.execute_command("CLIENT", "SETNAME", evil)
            await page.click("#clients button")
            await page.until("document.querySelectorAll('#clients-list tbody tr').length >= 2")
        assert evil in await text_of(page, "#clients-list")
        assert await page.run("document.querySelectorAll('main img').length") == 0

    bench.run(test())
    bench.check()


def test_theme_keys_and_logout(bench: ConsoleBench) -> None:
    async def test() -> None:
        page = await bench.log_in()
        theme = "document.documentElement.dataset.theme"
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        light = await page.run(ground)
        await page.click("#theme")
        await page.click("#theme")
        assert await page.run(theme) == "dark"
        assert await page.run(ground) != light
        await page.go(bench.console.url)
        assert await page.run(theme) == "dark"  # from the cookie, before any script
        await page.press("Tab")
        assert await page.run("document.activeElement.className") == "skip"
        await page.press("?")
        await page.until("document.querySelector('#keys').open")
        await page.press("Escape")
        await page.until("!document.querySelector('#keys').open")
        await page.click("form[action='/logout'] button")
        await page.until("location.pathname === '/login'")
        await page.go(bench.console.url)
        await page.until("location.pathname === '/login'")

    bench.run(test())
    bench.check()


def test_a_user_sees_what_the_acl_permits(bench: ConsoleBench) -> None:
    bench.user("guest", "~orders", "+ping", "+client|setname")

    async def test() -> None:
        page = await bench.log_in("guest")
        await page.until(LIVE)
        for part in ("tiles", "server", "storage", "slowlog"):
            assert "NOPERM" in await text_of(page, f"#part-{part}")
        await page.until("document.querySelector('#plots-notice').textContent.includes('NOPERM')")
        await page.click("#clients button")
        await page.until("document.querySelector('#clients-list').textContent.includes('NOPERM')")
        with bench.client() as client:
            client.redis.execute_command("ACL", "LOG", "RESET")
            sample = "document.querySelector('[data-live]').addEventListener('live:sample', () => done(1))"
            await page.run(f"new Promise((done) => {sample})")  # the next update
            denied = len(client.redis.execute_command("ACL", "LOG"))
        assert denied == 0  # what was denied is not asked for again and again
        await bench.inspect("/", ready=LIVE)

    bench.run(test())
    bench.check()


def test_replicas_are_listed_and_a_replica_shows_its_leader(bench: ConsoleBench) -> None:
    async def test() -> None:
        page = await bench.log_in()
        await page.until("document.querySelector('#part-replication tbody .state')?.textContent === 'online'")

    with running_server(replicaof=f"{bench.server.host} {bench.server.port}"):
        bench.run(test())
    bench.check()


def test_the_server_goes_and_comes_back(bench: ConsoleBench) -> None:
    async def gone() -> None:
        page = await bench.log_in("default")  # other users do not survive a restart without an ACL file
        await page.until(LIVE)
        bench.server.kill()
        await page.until("!document.querySelector('#banner').hidden")
        assert await page.run("document.querySelector('#live').dataset.state") == "lost"
        bench.server.start()
        await page.until(f"{LIVE} && document.querySelector('#banner').hidden")

    bench.run(gone())
    bench.check("503", "ERR_INCOMPLETE_CHUNKED_ENCODING")
