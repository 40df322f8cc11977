"""Keys that a group had before it joined a cluster, in slots that another group owns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from commands.slots import slot_of
from tests.replication.cluster import Node, cluster, wait_until
from tests.replication.clusters import Groups, ServerGroup, cluster_status
from tidelog.cli.program import main


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    """Group 2 had 2500 keys before it joined, more than one part of the search has."""
    with cluster() as servers:
        made = Groups(servers, groups=1)
        late = ServerGroup(servers, "2", 1, cluster_enabled="no")
        made.groups.append(late)
        node = late.wait()
        with node.redis.pipeline(transaction=False) as pipe:
            for number in range(2500):
                pipe.execute_command("TAPPEND", f"{{a}}{number}", "n", number)
            pipe.set("{a}expires", 1, px=1)
            pipe.execute()
        node.stop()
        node.config["cluster-enabled"] = "yes"
        node.start()
        made.leader(2)
        made.agree()
        yield made


def unserved(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = cluster_status(node)["unserved"]
    return found


def test_they_are_reported_with_the_remedy(groups: Groups) -> None:
    slot = slot_of(b"a")
    first, second = groups.nodes
    wait_until(lambda: unserved(second)["keys"] == 2500, "the search has ended")
    found = unserved(second)
    assert found["example"].startswith("{a}")
    assert found["slots"] == [str(slot)]
    assert unserved(first)["keys"] == 0
    (warning,) = cluster_status(second)["warnings"]
    for text in (
        "group 2 has 2500 keys, for example '{a}", f"in slots that it does not own (slot {slot})",
        f"(tidelog cluster move {slot} --to 2), or start it with an empty directory",
    ):  # fmt: skip
        assert text in warning
    assert second.redis.info("cluster")["cluster_unserved_keys"] == 2500
    assert first.redis.info("cluster")["cluster_unserved_keys"] == 0
    assert sum(warning in line for line in second.output) == 1
    done = CliRunner().invoke(main, ["cluster", "check", "--url", f"redis://127.0.0.1:{first.port}"])
    assert done.exit_code == 1
    assert warning in done.output


def test_the_remedy(groups: Groups) -> None:
    first, second = groups.nodes
    slot = slot_of(b"a")
    with_url = ["--url", f"redis://127.0.0.1:{first.port}"]
    done = CliRunner().invoke(main, ["cluster", "move", str(slot), "--to", "2", *with_url])
    assert done.exit_code == 0, done.output
    wait_until(lambda: unserved(second)["keys"] == 0, "no key is unserved")
    assert second("TLEN", "{a}7") == 1
    assert cluster_status(second)["warnings"] == []
