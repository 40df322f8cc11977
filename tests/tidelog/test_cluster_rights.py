"""Programs in a cluster of two groups, by users with exactly the rights that docs/acl.md lists."""

from __future__ import annotations

import asyncio

from tests.replication.clusters import Groups
from tests.tidelog.flows.serverkit import running
from tests.tidelog.flows.servicekit import hosted
from tests.tidelog.rightskit import rules_of
from tests.tidelog.workers.workerkit import Order, orders, working
from tests.waiting import until
from tidelog import Client
from tidelog.client.alone import run_alone
from tidelog.client.steps import run
from tidelog.flows import Flow
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.service.history import FlowHistory
from tidelog.flows.service.publisher import FlowPublisher
from tidelog.topics import deadletters
from tidelog.workers import App, DeadLetter

CLUSTER = ("+cluster|slots", "+command", "+role")  # the sentences before the table
PARTITIONS = 8


def limited(groups: Groups, *rules: str) -> str:
    """The URL of a user with these rules on both groups, which are empty."""
    for each in (1, 2):
        leader = groups.leader(each)
        leader.say("FLUSHALL")
        assert leader.say("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules, *CLUSTER) == b"OK"
        leader.say("ACL", "LOG", "RESET")
    return ",".join(f"redis://limited:secret@127.0.0.1:{node.port}" for node in groups.nodes)


def denied(groups: Groups) -> list[object]:
    return [entry for each in (1, 2) for entry in groups.leader(each).say("ACL", "LOG")]


def test_producers_workers_and_their_dead_letters(groups: Groups) -> None:
    rows = ("the same with an exactly-once producer", "a worker, `tidelog app`", "its dead letters")
    url = limited(groups, *rules_of(*rows, A="shop", T="orders"), *rules_of("`tidelog dlq replay`", T="orders"))

    async def main() -> None:
        app = App("shop", url, lease=3.0, grace=5.0)
        topic = orders(app, PARTITIONS)

        @app.each(topic, on_error=[DeadLetter()])
        async def bill(order: Order) -> None:
            if order.id % 2:
                raise ValueError("odd")

        async with working(app) as worker:
            await topic.producer("sender").send_many([Order(number, f"key-{number}") for number in range(40)])
            await until(lambda: worker.stats["bill"].acknowledged == 40)
        await topic.close()

    asyncio.run(main())
    with Client(url) as client:
        assert run(client, deadletters.count("orders.dead")) == 20
        assert run_alone(client, deadletters.replay("orders.dead")).letters == 20
    assert denied(groups) == []


def test_flows(groups: Groups) -> None:
    streams = ["in:0", "in:1", "in:2", "in:3", "out"]
    rows = ("a flow with a `stream` of a group", "`tidelog flow run` with a server")
    url = limited(groups, *rules_of(*rows, S=streams, F="copy", N="shop"))

    async def rejecting(event: Event) -> None:
        raise RejectError("no")

    async def main(client: Client) -> None:
        flow = Flow("copy", server=url)
        flow.connector("in", "stream", key=streams[:4], group="g", on_error=["dead_letter"])
        flow.connector("out", "stream", key="out")
        flow.connector("not", rejecting)
        flow.connect("in -> out", "in -> not")
        for key in streams[:4]:
            client.tmappend(key, ["n"], [[str(number)] for number in range(5)])
        async with hosted(server=url, name="shop") as host, FlowPublisher(host), running(flow):
            await FlowHistory(host, "one").take()
            await until(lambda: run(client, deadletters.count("flow.copy.dead")) == 20)
        assert client.tlen("out") >= 20

    with Client(url) as client:
        asyncio.run(main(client))
    assert denied(groups) == []
