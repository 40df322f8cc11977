"""The first manifest of a stream that begins with references to linked objects."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import lmdb
import pytest

from persistence.storecopy import DATABASES, NODES
from persistence.tiering.freeing import FreedNode, Freeing
from persistence.tiering.objectstore import HistoryStoreError, LocalFiles
from persistence.tiering.source import AGELESS
from persistence.tiering.tieringpass import PassRequest, TieringPass
from storage.nodes import reference
from tests.persistence.tiering.kit import Copier, FaultyFiles, History, TieredServer

KEY = "k"


def add(data: TieredServer, count: int, first: int, key: str = KEY) -> None:
    chance = random.Random(first)
    data.client.pipeline(
        *[("XADD", key, f"{first + number}-1", "t", chance.randbytes(60).hex()) for number in range(count)]
    )
    data.save()


def put(store: Path, nodes: list[tuple[bytes, bytes]]) -> None:
    """Replace nodes in a store."""
    with lmdb.open(str(store), map_size=1 << 30, max_dbs=len(DATABASES)) as env, env.begin(write=True) as txn:
        for key, value in nodes:
            txn.put(key, value, db=env.open_db(DATABASES[NODES], txn=txn, create=False))


def linked(data: TieredServer, tmp_path: Path, *, delete: tuple[int, ...] = (), bad: bool = False) -> list[FreedNode]:
    """Two objects with the first nodes of a stream. The store has references to them, and there is no manifest."""
    copier = data.copier()
    add(data, 60, 1)
    if delete:
        data.client("XDEL", KEY, *(f"{number}-1" for number in delete))
    assert copier.run()
    add(data, 60, 61)
    assert copier.run()
    found: list[FreedNode] = []
    freeing = Freeing(copier.objects, copier.manifests, found.extend, lambda: None)
    freeing.free(data.copied, copier.manifests.latest(KEY.encode(), 0), AGELESS)
    if bad:
        first = reference.unpack(found[0].reference)
        found[0] = found[0]._replace(reference=first._replace(checksum=first.checksum ^ 1).pack())
    put(data.copied, [(node.key, node.reference) for node in found])
    shutil.rmtree(data.target / "streams")
    return found


def names(data: TieredServer) -> list[str]:
    """Return the objects that the manifest lists."""
    found = History(data.target).manifest(KEY.encode())
    return [part.name for part in found.parts] if found is not None else []


def test_objects_are_listed_and_nothing_is_copied(data: TieredServer, tmp_path: Path) -> None:
    found = linked(data, tmp_path, delete=(15, 16))
    assert len(found) == 10, "the node with deleted entries stays in the store"
    copier = data.copier()
    assert copier.run()
    assert copier.problems == []
    assert copier.state.totals.objects == 0
    assert len(names(data)) == 2
    entries = data.entries(KEY)
    assert [one for one in data.history(KEY) if one[0] not in (b"15-1", b"16-1")] == entries[: len(entries) - 10]
    # later entries follow, also for the next helper
    add(data, 30, 121)
    put(data.copied, [(node.key, node.reference) for node in found])
    for one in (copier, data.copier()):
        assert one.run()
        assert (one.warnings, one.problems) == ([], [])
    assert len(names(data)) == 3
    assert data.history(KEY)[-1] == data.entries(KEY)[-11]


def test_a_copy_that_may_be_incomplete_is_not_listed(data: TieredServer, tmp_path: Path) -> None:
    linked(data, tmp_path)
    copier = data.copier()
    request = PassRequest(data.copied, 0, AGELESS, -1, importing=True)
    assert TieringPass(request, copier.state, copier.objects, copier.manifests, lambda: None).run()
    assert names(data) == []
    assert copier.run()
    assert len(names(data)) == 2


def test_references_that_are_not_in_the_index(data: TieredServer, tmp_path: Path) -> None:
    """The object and those before it are not listed."""
    linked(data, tmp_path, bad=True)
    copier = data.copier()
    assert copier.run()
    assert names(data) == names(data)[-1:]
    history = data.history(KEY)
    assert history == data.entries(KEY)[-10 - len(history) : -10]
    assert 50 <= len(history) < 110


def test_a_node_with_other_entries(data: TieredServer, tmp_path: Path) -> None:
    """The last object has other entries than a node that is in the store: no object is listed."""
    found = linked(data, tmp_path)
    add(data, 60, 1, key="other")
    with lmdb.open(str(data.copied), max_dbs=len(DATABASES), readonly=True) as env, env.begin() as txn:
        nodes = dict(txn.cursor(db=env.open_db(DATABASES[NODES], txn=txn, create=False)))
    other = next(value for key, value in nodes.items() if key[:8] != found[0].key[:8] and len(value) > 500)
    put(data.copied, [(node.key, node.reference) for node in found[:-2]] + [(found[-2].key, other)])
    copier = data.copier()
    assert copier.run()
    assert not set(names(data)) & {reference.unpack(node.reference).object for node in found}


def test_a_renamed_stream(data: TieredServer, tmp_path: Path) -> None:
    found = linked(data, tmp_path)
    data.client("RENAME", KEY, "new")
    data.save()
    put(data.copied, [(node.key, node.reference) for node in found])
    copier = data.copier()
    assert copier.run()
    assert data.history("new") == []
    calls = copier.objects.calls
    assert copier.run()
    assert copier.objects.calls - calls < 5, "its objects are not read again"


@pytest.mark.parametrize("fail_at", range(1, 24, 2))
def test_faults(data: TieredServer, tmp_path: Path, fail_at: int) -> None:
    linked(data, tmp_path)
    failing = data.copier(FaultyFiles(LocalFiles(str(data.target)), fail_at))
    with contextlib.suppress(HistoryStoreError):
        failing.run()
    copier: Copier = data.copier()
    assert copier.run()
    assert len(names(data)) == 2
    assert copier.state.totals.objects == 0
