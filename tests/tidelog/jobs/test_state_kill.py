"""A process that commits and takes back is killed with SIGKILL, again and again: the store is always at one version."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from time import perf_counter, sleep
from typing import NoReturn

import lmdb
import msgspec
import pytest

pytest.importorskip("pyarrow")

from tidelog.jobs.state import State
from tidelog.jobs.store import StateStore, StoreUnusableError, environments

KEYS = 3000
KILLS = 60


def content(epoch: int) -> dict[bytes, int]:
    """All keys have the epoch's number, but every seventh, which is another each time."""
    return {b"%d" % key: epoch for key in range(KEYS) if key % 7 != epoch % 7} if epoch else {}


def write(path: Path, cache: int, told: int) -> NoReturn:
    """Commit epoch after epoch; take every third back, and do it again. Tell of each step when it is done."""
    turn = 0
    while True:
        with StateStore.open(path, cache=cache) as store:
            epoch = store.version.epoch + 1
            changes = store.begin(epoch)
            state = State(changes, int, job="j")
            state.put_many(range(KEYS), [epoch] * KEYS, ttl=1000)
            state.delete_many(range(epoch % 7, KEYS, 7))
            store.commit(changes, epoch, f"run{epoch}", b"%d" % epoch)
            os.write(told, b"%d\n" % epoch)
            turn += 1
            if turn % 3 == 0:
                store.undo()
                os.write(told, b"%d\n" % (epoch - 1))


def killed(path: Path, cache: int, steps: int, part: float) -> list[int]:
    """What a process told that did so many steps, at least two, and a part of one more: of the time that the last one
    took, which depends on the machine."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reader)
            write(path, cache, writer)
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as file:
        lines = [file.readline()]
        took = 0.0
        while len(lines) < steps:
            began = perf_counter()
            lines.append(file.readline())
            took = perf_counter() - began
        sleep(part * took)
        os.kill(pid, signal.SIGKILL)
        lines += file.readlines()
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return [int(line) for line in lines]


def torn(path: Path) -> bool:
    with lmdb.open(str(path), max_dbs=4, readonly=True) as env, env.begin() as txn:
        said = txn.get(b"store", db=env.open_db(b"meta", txn))
        return bool(msgspec.msgpack.decode(said or b"")["torn"])


@pytest.mark.parametrize("cache", [64 << 20, 20_000], ids=["whole", "parts"])
def test_killed_at_any_moment(tmp_path: Path, cache: int) -> None:
    path = tmp_path / "0"
    chance = random.Random()
    cut, last = 0, 0
    for _ in range(KILLS):
        told = killed(path, cache, chance.randint(2, 4), chance.uniform(0, 2))  # the moment is the point
        cut += torn(path)
        with StateStore.open(path) as store:
            epoch = store.version.epoch
            assert epoch in (told[-1] - 1, told[-1], told[-1] + 1)
            assert (store.version.run, store.current.position) == (f"run{epoch}", b"%d" % epoch)
            assert dict(State(store.begin(0), int, job="j").scan()) == content(epoch)
            if store.previous is not None and chance.random() < 0.5:
                store.undo()
                assert store.version.epoch == epoch - 1
                assert dict(State(store.begin(0), int, job="j").scan()) == content(epoch - 1)
            last = store.version.epoch
        environments.forget(path)
    assert last >= KILLS
    assert bool(cut) == (cache < 64 << 20), f"{cut} kills came between two parts"


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_killed_and_then_cut_short(tmp_path: Path, part: float) -> None:
    """Whoever was killed has told how long the file was: else to read it would end each process with SIGBUS."""
    path = tmp_path / "0"
    killed(path, 64 << 20, 3, 0.5)
    data = path / "data.mdb"
    os.truncate(data, int(data.stat().st_size * part))
    pid = os.fork()
    if not pid:
        try:
            StateStore.open(path)
        except StoreUnusableError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0) == (pid, 0)
