"""An app's declaration on the server: what tools without the app's code know about it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from click.testing import CliRunner

from tests.tidelog.workers.workerkit import working
from tests.waiting import until
from tidelog.cli.program import main as program
from tidelog.client import Client
from tidelog.client.steps import run
from tidelog.coordination import programs
from tidelog.testing import Server
from tidelog.workers import App, DeadLetter
from tidelog.workers.coordination import declaration
from tidelog.workers.operate.status import read_status
from tidelog.workers.operate.timerstatus import read_timers


class Order(msgspec.Struct):
    id: int
    customer: str = "ann"


def shop(url: str) -> App:
    app = App("shop", url, lease=1.0)
    orders = app.topic("orders", Order, partition_by="customer", partitions=2)

    @app.each(orders, ordering="key", on_error=[DeadLetter("failures")])
    async def bill(order: Order) -> None: ...

    @app.each(orders, ordering="none")
    async def mail(order: Order) -> None: ...

    @app.timer(0.05, on_leader=True)
    async def sweep() -> None:
        raise ValueError

    @app.timer(60, on_leader=False)
    async def beat() -> None: ...

    @app.cron("0 3 * * *", timezone="Europe/Oslo", on_leader=True)
    async def nightly() -> None: ...

    return app


def declared(client: Client) -> declaration.AppDeclaration:
    found = run(client, declaration.read("shop"))
    assert found is not None
    return found


def test_workers_declare_their_app(tidelog_server: Server) -> None:
    app = shop(tidelog_server.url)
    with tidelog_server.client() as client:
        assert run(client, declaration.read("shop")) is None

        async def test() -> None:
            async with working(app, "w1"), working(app, "w2"):
                found = declared(client)
                assert msgspec.structs.replace(found, workers={}) == declaration.declaration_of(app)
                assert sorted(found.workers) == ["w1", "w2"]
                assert [each.dead_letters for each in found.processors] == ["failures", "orders.dead"]
                assert list(run(client, programs.read()).apps) == ["shop"]
                await until(lambda: client.redis.exists("app:shop:timer:sweep"))
                await until(lambda: run(client, read_timers(found))[0].error == "ValueError")
                sweep, beat, nightly = run(client, read_timers(found))
                assert sweep.next is not None
                assert sweep.last is not None
                assert sweep.next - sweep.last == 50
                assert (beat.last, beat.next) == (None, None)
                assert nightly.last is None
                assert nightly.next is not None
                assert nightly.schedule == "0 3 * * * Europe/Oslo"
                # the status of the declaration is that of the code, and finds the workers without a search
                both = ["w1", "w2"]
                await until(lambda: [each.alive for each in run(client, read_status(found)).processors] == [both, both])

        asyncio.run(test())
        assert declared(client).workers == {}


def test_a_dead_worker_is_removed_by_the_next_one(tidelog_server: Server) -> None:
    app = shop(tidelog_server.url)
    with tidelog_server.client() as client:
        run(client, declaration.write(app, "killed"))

        async def test() -> None:
            async with working(app, "w1"):
                assert list(declared(client).workers) == ["w1"]

        asyncio.run(test())


@pytest.mark.parametrize("value", [b"garbage", b'{"version": 99}', b'{"version": 1, "workers": 3}'])
def test_invalid_documents_do_not_stop_a_worker(
    tidelog_server: Server, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    app = shop(tidelog_server.url)
    with tidelog_server.client() as client:
        for key in ("app:shop:declaration", programs.KEY):
            client.redis.set(key, value)

        async def test() -> None:
            async with working(app, "w1"):
                assert ("can't show app shop" in caplog.text) == (b"99" in value)

        asyncio.run(test())


def test_the_names_are_limited_and_removed(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST", 2)
    with tidelog_server.client() as client:
        for name in ("a", "b", "shop"):
            run(client, programs.record("apps", name))
        run(client, programs.record("flows", "default"))
        assert sorted(run(client, programs.read()).apps) == ["b", "shop"]
        run(client, declaration.write(shop(tidelog_server.url), "w1"))
        result = CliRunner().invoke(program, ["app", "delete", "shop", "--yes", "--url", tidelog_server.url])
        assert result.exit_code == 0, result.output
        names = run(client, programs.read())
        assert (list(names.apps), list(names.flows)) == (["b"], ["default"])
        assert run(client, declaration.read("shop")) is None
