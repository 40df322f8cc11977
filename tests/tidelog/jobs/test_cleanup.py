"""What becomes of states and snapshots of generations that are over, on an engine without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
pytest.importorskip("fsspec", reason="no fsspec here (pip install 'tidelog[jobs]')")

from tests.tidelog.jobs.enginekit import Diarist, change, fold, in_loop, soon, supervised
from tests.waiting import eventually
from tidelog import Client
from tidelog.jobs.engine.cleanup import Cleanup, disks_of
from tidelog.jobs.engine.session import EngineSettings
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobRegistry, JobSpec
from tidelog.jobs.snapshots import owners
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.jobs.store import StateStore
from tidelog.testing import Server, free_port
from tidelog.topics import Topic
from tidelog.transport.access import Access


class Engine:
    """The part of an engine that sweeps."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.state, self.store = url, folder / "state", f"file://{folder}/store"
        self.objects = ObjectStore(self.store)
        self.cleared: list[dict[str, int]] = []
        clicks: Topic[Any] = Topic("clicks", dict, url=url)
        clicks.sync.ready()
        self.topics = {"clicks": clicks.settings.id, "gone": "1234"}
        clicks.sync.close()

    @contextmanager
    def sweeping(self, wait: float = 0.05, again: float = 0.3, store: str | None = None) -> Iterator[Cleanup]:
        settings = EngineSettings("e1", Access((self.url,)), "local[1]", str(self.state))
        local: Any = None
        clear = disks_of(settings, local)

        def disks(over: Mapping[str, int]) -> bool:
            self.cleared.append(dict(over))
            return clear(over)

        given = self.store if store is None else store
        with Cleanup(settings.access, "e1", given, disks, wait=wait, again=again) as sweeping:
            yield sweeping

    def leave(self, job: str, generation: int) -> None:
        """A state and a snapshot."""
        with StateStore.open(self.slot(job, generation), generation=generation) as store:
            store.commit(store.begin(1), 1, "run")
        owners.write(self.objects, job, generation, self.topics)
        self.objects.write(f"{job}/{generation}/0/x.json", b"x")

    def slot(self, job: str, generation: int) -> Path:
        return self.state / job / str(generation) / "0" / "0"

    def there(self, job: str) -> list[int]:
        """The generations of which there is something."""
        found = {int(name) for name in self.objects.folders(job)}
        with suppress(FileNotFoundError):  # it is being deleted
            found |= {int(path.name) for path in self.state.glob(f"{job}/*")}
        return sorted(found)


@pytest.fixture
def engine(tidelog_server: Server, tmp_path: Path) -> Engine:
    return Engine(tidelog_server.url, tmp_path)


def spec(name: str = "a", **options: Any) -> JobSpec:
    return JobSpec(name, f"module:{name}", **options)


def test_a_reset_leaves_the_new_generation_alone(engine: Engine, client: Client) -> None:
    change(client, registry.add(spec()))
    change(client, registry.reset(spec()))
    for generation in (1, 2, 3):  # the last one is of another server, or not known yet
        engine.leave("a", generation)
    engine.leave("stranger", 1)
    with engine.sweeping() as sweeping:
        sweeping.update(fold(client))
        eventually(lambda: engine.there("a") == [2, 3])
        change(client, registry.reset(spec()))
        sweeping.update(fold(client))
        eventually(lambda: engine.there("a") == [3])
    assert engine.there("stranger") == [1]


def test_a_removed_job_leaves_nothing(engine: Engine, client: Client, tmp_path: Path) -> None:
    """Also one that was removed before this engine began, with an object store of its own."""
    own = f"file://{tmp_path}/own"
    change(client, registry.add(spec(store=own)))
    change(client, registry.remove("a"))
    engine.leave("a", 1)
    owners.write(ObjectStore(own), "a", 1, engine.topics)
    ObjectStore(own).write("a/1/0/x.json", b"x")
    with engine.sweeping() as sweeping:
        sweeping.update(fold(client))
        eventually(lambda: not engine.there("a") and not ObjectStore(own).folders("a"))
        change(client, registry.add(spec()))
        engine.leave("a", 2)
        sweeping.update(fold(client))
        eventually(lambda: {"a": 1} in engine.cleared)
    assert engine.there("a") == [2]


def test_nothing_goes_whose_fence_is_not_closed(engine: Engine, client: Client) -> None:
    """A registry that says too much: of a server that has lost the reset since, for one."""
    change(client, registry.add(spec()))
    change(client, registry.add(spec("b")))
    change(client, registry.remove("b"))
    engine.leave("a", 1)
    engine.leave("b", 1)
    with engine.sweeping() as sweeping:
        sweeping.update(JobRegistry({"a": spec(generation=2)}, {"b": 1}))
        eventually(lambda: not engine.there("b"))
    assert engine.there("a") == [1]


def test_nothing_goes_of_another_servers_job(engine: Engine, client: Client) -> None:
    change(client, registry.add(spec()))
    change(client, registry.reset(spec()))
    engine.topics = {"clicks": "another", "gone": "1234"}
    engine.leave("a", 1)
    with engine.sweeping() as sweeping:
        sweeping.update(fold(client))
        eventually(lambda: len(engine.cleared) > 1)
    assert sorted(engine.objects.below("a", 10)) == ["a/1/0/x.json", "a/1/owner.json"]


def test_what_a_zombie_leaves_is_swept_later(engine: Engine, client: Client) -> None:
    change(client, registry.add(spec()))
    change(client, registry.reset(spec()))
    engine.leave("a", 1)
    with StateStore.open(engine.slot("a", 1), generation=1), engine.sweeping() as sweeping:
        sweeping.update(fold(client))
        eventually(lambda: not engine.objects.folders("a") and len(engine.cleared) > 2)
        assert engine.slot("a", 1).exists()
    with engine.sweeping(again=1.0) as sweeping:
        sweeping.update(fold(client))
        eventually(lambda: not engine.there("a"))
        engine.leave("a", 1)  # by what did not know
        eventually(lambda: not engine.there("a"))


def test_an_object_store_that_fails_is_tried_again(engine: Engine, client: Client) -> None:
    """The disks are cleared all the same."""
    change(client, registry.add(spec()))
    change(client, registry.reset(spec()))
    engine.leave("a", 1)
    with engine.sweeping(store="nosuch://x") as sweeping:
        sweeping.update(fold(client))
        eventually(lambda: len(engine.cleared) > 2)
    assert not engine.slot("a", 1).exists()


def test_a_server_that_is_away_is_asked_again(engine: Engine, client: Client) -> None:
    engine.leave("a", 1)
    here, engine.url = engine.url, f"redis://127.0.0.1:{free_port()}"
    with engine.sweeping() as sweeping:
        sweeping.update(JobRegistry({"a": spec(generation=2)}))
        time.sleep(0.5)  # nothing is to happen
        assert engine.there("a") == [1]
    assert engine.cleared == []
    engine.url = here


@in_loop
async def test_a_supervisor_tells_what_is_over(engine: Engine, client: Client) -> None:
    change(client, registry.add(spec()))
    engine.leave("a", 1)
    with engine.sweeping() as sweeping:
        async with supervised(engine.url, made=Diarist, on_registry=sweeping.update):
            change(client, registry.reset(spec()))
            await soon(lambda: not engine.there("a"))
