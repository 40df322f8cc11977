"""The data is replaced while a scrub or a repair is in progress: the store is closed only after their threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from persistence.noderepair import NodeRange
from persistence.scrub import Scrub
from persistence.store import Store
from respserver.maintenance import repairing
from respserver.testing import RunningServer, start_in_thread
from storage.nodes.node import seal
from storage.streams.stream import Stream
from tests.persistence.datakit import range_copy
from tests.persistence.test_scrub import damage_node, noise
from tests.waiting import eventually
from tests.wire.rawclient import Raw

CONFIG: dict[str, Any] = {
    "save": "", "stream_node_max_entries": "10", "node_cache_size": "0", "scrub_rate": "1gb",
    "enable_debug_command": "yes",
}


class Held:
    """A function that stops in its thread, before or after it has worked, until let go."""

    def __init__(self, work: Callable[..., Any], before: bool) -> None:
        self.work, self.before = work, before
        self.inside, self.go = threading.Event(), threading.Event()
        self.active = False

    def __call__(self, *arguments: Any) -> Any:
        if self.go.is_set():
            return self.work(*arguments)
        self.active = True
        try:
            found = None if self.before else self.work(*arguments)
            self.inside.set()
            assert self.go.wait(20)
            return self.work(*arguments) if self.before else found
        finally:
            self.active = False


def info(c: Raw) -> dict[str, str]:
    return dict(line.split(":", 1) for line in c("INFO", "everything").decode().splitlines() if ":" in line)


def sound(server: RunningServer, asked: NodeRange) -> bytes:
    """Return the entries as a blob, from a server whose store is sound."""
    stream = server.server.data.ks.keys[b"s"]
    assert isinstance(stream, Stream)
    node = range_copy(stream, asked.first_ord, asked.first_id, asked.size)
    assert node is not None
    return seal(node)


def follow(c: Raw, port: int) -> None:
    assert c("REPLICAOF", "127.0.0.1", port) == b"OK"


def synced(leader: Raw, replica: Raw) -> bool:
    one, two = info(leader), info(replica)
    return two.get("master_link_status") == "up" and one["master_repl_offset"] == two["slave_repl_offset"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    """A new leader, and the old one: its log has a record more, and its store is sound."""
    with (
        start_in_thread(tmp_path / "new", **CONFIG) as new, start_in_thread(tmp_path / "old", **CONFIG) as old,
        Raw(new.port) as one, Raw(old.port) as two,
    ):  # fmt: skip
        for number in range(200):
            two("TAPPEND", "s", "body", noise(number))
        follow(one, old.port)
        eventually(lambda: synced(two, one))
        two("SAVE")
        two("TAPPEND", "later", "f", "v")
        eventually(lambda: synced(two, one))
        one("REPLICAOF", "NO", "ONE")
        two("TAPPEND", "later", "f", "lost")
        yield new, old


@pytest.mark.parametrize("kind", ["rewind", "copy"])
@pytest.mark.parametrize("what", ["step", "wanted", "replace", "replaced"])
def test_the_threads_end_first(
    pair: tuple[RunningServer, RunningServer], monkeypatch: pytest.MonkeyPatch, what: str, kind: str
) -> None:  # fmt: skip
    new, old = pair
    data = old.server.data
    place: Any = Scrub if what == "step" else repairing
    name = {"step": "_read", "replaced": "replace"}.get(what, what)
    held = Held(getattr(place, name), before=what != "replaced")
    closed_while_active: list[bool] = []
    close, store = Store.close, data.disk.store

    def closing(each: Store) -> None:
        if each is store:
            closed_while_active.append(held.active)
        close(each)

    with Raw(new.port) as one, Raw(old.port) as two:
        async def copy(_: object, asked: NodeRange) -> tuple[bytes, str]:
            return new.call(lambda: sound(new, asked)), "a test"

        if what.startswith("replace"):
            monkeypatch.setattr(repairing.Repairing, "_copy", copy)
        monkeypatch.setattr(place, name, lambda *arguments: held(*arguments))
        monkeypatch.setattr(Store, "close", closing)
        damage_node(Path(old.server.config.dir))
        if what == "step":
            old.call(lambda: data.disk.scrub.begin(old.server.clock.now()))
        else:
            assert "entries 50 to 59" in two("TRANGE", "s", "-", "+", "COUNT", "60")
        assert held.inside.wait(20)
        if kind == "copy":
            two("SAVE")  # its store is beyond the point where the histories diverge
        follow(two, new.port)
        eventually(lambda: info(two)["loading"] == "1")
        held.go.set()
        eventually(lambda: synced(one, two))
        assert closed_while_active == [False]
        fields = info(two)
        assert fields["sync_truncated"] == ("1" if kind == "rewind" else "0")
        old.call(lambda: data.disk.scrub.begin(old.server.clock.now()))  # finds what is still damaged
        eventually(lambda: info(two)["scrub_running"] == info(two)["scrub_damaged"] == "0")
        assert one("DEBUG", "DIGEST") == two("DEBUG", "DIGEST")
