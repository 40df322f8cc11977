"""A storm over flows in a cluster of two groups. Entries are appended all the time, while faults happen.

The flows copy streams to streams, with and without a WAL, with tidelog's connectors and those of Redis, and one rejects
all. Each copy has the ID of its original and the number of the attempt, so the check knows what was delivered again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import redis

from tests.replication.clusterfaults import ClusterFaults
from tests.replication.clusters import Groups
from tests.waiting import eventually
from tidelog import Client
from tidelog.topics import deadletters

ROOT: Final = Path(__file__).parents[3]
RECONNECT: Final = {"retry": {"first": "50ms", "most": "500ms"}}
AGAIN: Final = {"retry": {"first": "50ms", "most": "500ms"}}
STREAMS: Final = 4  # of each flow, besides ``broken``
FLOWS: Final = ("plain", "logged", "other")  # those that copy
KEYS: Final = {name: [f"{name}:in:{at}" for at in range(STREAMS)] for name in (*FLOWS, "broken")}
INTERNAL: Final = ("flow:logged:wal:log", "flow.broken.dead:0", "flows:storm")
DRAINED: Final = 180.0  # seconds until everything has arrived once no more faults happen
MODULE: Final = """
from tidelog.flows import RejectError

def marked(event):
    key, _, id = event.id.rpartition("/")
    return {**event.value, "id": id.replace("-", "."), "attempt": event.attempt}

def logged(event):
    return {**event.value, "attempt": max(event.value["attempt"], event.attempt)}

def rejected(event):
    raise RejectError("not this one")
"""


def outputs(name: str) -> list[str]:
    return [f"{name}:out:{at}" for at in range(STREAMS)]


def document(url: str) -> str:
    """The flows. JSON is YAML."""
    stream = {"group": "g", "retry": "2s", "reconnect": RECONNECT}
    mark = {"mark": [{"python": "stormmarks:marked"}]}

    def source(name: str, *on_error: Any) -> dict[str, Any]:
        return {"type": "stream", "key": KEYS[name], "on_error": [AGAIN, *on_error], **stream}

    def sink(name: str, **options: Any) -> dict[str, Any]:
        key = f"{name}:out:{{to}}"
        return {"type": "stream", "key": key, "concurrency": 1, "reconnect": RECONNECT, **options}

    other: dict[str, Any] = {
        f"in{at}": {
            "type": "redis_stream", "url": url, "key": key, "group": "g", "claim": "2s", "reconnect": RECONNECT,
        }
        for at, key in enumerate(KEYS["other"])
    }  # fmt: skip
    to_redis = {"type": "redis_stream", "url": url, "key": "other:out:{to}", "reconnect": RECONNECT}
    flows = {
        "plain": {
            "connectors": {"in": source("plain"), "out": sink("plain")},
            "pipelines": mark,
            "connect": ["in -> mark -> out"],
        },
        "logged": {
            "connectors": {
                "in": source("logged"), "log": {"type": "wal", "reconnect": RECONNECT}, "out": sink("logged"),
            },
            "pipelines": {**mark, "again": [{"python": "stormmarks:logged"}]},
            "connect": ["in -> mark -> log -> again -> out"],
        },
        "other": {
            "connectors": {**other, "out": to_redis},
            "pipelines": mark,
            "connect": [*(f"{name} -> mark" for name in other), "mark -> out"],
        },
        "broken": {
            "connectors": {"in": source("broken", "dead_letter"), "out": {"type": "null"}},
            "pipelines": {"reject": [{"python": "stormmarks:rejected"}]},
            "connect": ["in -> reject -> out"],
        },
    }  # fmt: skip
    return json.dumps({"name": "storm", "server": url, "listen": "none", "flows": flows})


class FlowStorm:
    """The cluster, the process of the flows, and the entries that were acknowledged."""

    def __init__(self, groups: Groups, folder: Path, chance: random.Random) -> None:
        self.done: list[str] = []
        self.acked: dict[str, list[str]] = {}  # IDs by stream, as a range from the first to the last of a call
        self.url = groups.url(3)
        self._folder, self.chance = folder, chance
        keys = [*(key for keys in KEYS.values() for key in keys), *(key for name in FLOWS for key in outputs(name))]
        self._faults = ClusterFaults(groups, chance, [*keys, *INTERNAL])
        self._log = folder / "flows.log"
        (folder / "stormmarks.py").write_text(MODULE)
        (folder / "flows.yaml").write_text(document(self.url))
        self._start()

    def _start(self) -> None:
        path = f"{ROOT}{os.pathsep}{self._folder}"
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli", "flow", "run", "flows.yaml"], cwd=self._folder,
                env=os.environ | {"PYTHONPATH": path}, stdout=out, stderr=out,
            )  # fmt: skip

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    # -- entries -----------------------------------------------------------------------------------------------------
    @contextmanager
    def filling(self, pause: float = 0.02) -> Iterator[None]:
        """Append entries all the time. What is not acknowledged may be there, or not."""
        ending = threading.Event()

        def fill() -> None:
            number = 0
            with Client(self.url, decode_responses=True) as client:
                while not ending.wait(pause):
                    for name, keys in KEYS.items():
                        count = 2 if name == "broken" else 10
                        number += count
                        rows = [[str(each), str(number % STREAMS)] for each in range(number, number + count)]
                        self._append(client, keys[number // count % STREAMS], rows)

        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def _append(self, client: Client, key: str, rows: list[list[str]]) -> None:
        with suppress(redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            span = client.tmappend(key, ["n", "to"], rows)
            self.acked.setdefault(key, []).extend((str(span.first), str(span.last)))

    # -- faults ------------------------------------------------------------------------------------------------------
    def step(self, *names: str) -> None:
        """Cause one of these faults, or any. At its end, each group has a leader, and the process runs."""
        faults = self._faults
        known: dict[str, Callable[[], None]] = {
            "move": faults.move, "leader": faults.kill, "freeze": faults.freeze, "process": self._kill,
            "pause": self._pause, "end": self._end, "both": self._both,
        }  # fmt: skip
        name = self.chance.choice(names or [*known, "move", "move"])
        self.done.append(name)
        known[name]()
        faults.ended()
        assert self._process.poll() is None, f"the process has ended by itself: {self.log[-8000:]}"

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        time.sleep(self.chance.choice([0.0, 0.5, 3.0]))
        self._start()

    def _pause(self) -> None:
        """Suspend the process, also for longer than the time after which entries are delivered again."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(4 * self.chance.random())
        self._process.send_signal(signal.SIGCONT)

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(90)
        assert code in (0, 1, -signal.SIGTERM), f"exit status {code}: {self.log[-8000:]}"  # 1: events were abandoned
        self._start()

    def _both(self) -> None:
        """Slots move while the process is killed."""
        thread = threading.Thread(target=self._faults.move)
        thread.start()
        self._kill()
        thread.join()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    # -- the check ---------------------------------------------------------------------------------------------------
    def check(self) -> str:
        """Wait until everything has arrived, and check it. Return the counts."""
        with Client(self.url, decode_responses=True) as client:
            originals = {key: _read(client, key) for keys in KEYS.values() for key in keys}
            for key, ends in self.acked.items():
                there = {str(entry.id) for entry in originals[key]}
                assert not [each for each in ends if each not in there], f"{key}: an acknowledged entry is lost"
            eventually(lambda: not self._missing(client, originals), "everything has arrived", DRAINED)
            eventually(lambda: not _owed(client), "nothing is pending", DRAINED)
            again = sum(_copies(client, name, originals) for name in FLOWS)
        log = self.log
        for text in ("Traceback", "settled twice", "unsettled:", "never retrieved", "Task was destroyed"):
            assert text not in log, log[-20_000:]
        total = sum(map(len, originals.values()))
        return f"{total} entries, {again} copied again, {len(self.done)} steps: {self.done}"

    def _missing(self, client: Client, originals: dict[str, list[Any]]) -> list[str]:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            for name in FLOWS:
                there = {entry["n"] for key in outputs(name) for entry in _read(client, key)}
                wanted = {entry["n"] for key in KEYS[name] for entry in originals[key]}
                if lost := [*map(str, wanted - there)]:
                    return [name, *lost]
            letters = {(each.topic, str(each.event_id)) for each in _letters(client)}
            return [
                f"{key}/{entry.id}"
                for key in KEYS["broken"] for entry in originals[key] if (key, str(entry.id)) not in letters
            ]  # fmt: skip
        return ["a leader"]


def _read(client: Client, key: str) -> list[Any]:
    return [entry for page in client.pages(key) for entry in page]


def _letters(client: Client) -> list[deadletters.DeadLetterRecord]:
    return [deadletters.read(entry) for entry in _read(client, "flow.broken.dead:0")]


def _owed(client: Client) -> list[str]:
    """The keys with pending entries."""
    raw: Any = client.redis.xpending
    owed = [key for key in KEYS["other"] if raw(key, "g")["pending"]]
    for name in ("plain", "logged", "broken"):
        owed += [key for key in KEYS[name] if any(each.pending for each in client.tgroup_list(key))]
    if client.tlen("flow:logged:wal:log"):
        owed.append("the WAL")
    return owed


def _copies(client: Client, name: str, originals: dict[str, list[Any]]) -> int:
    """Check the copies of a flow, and count those that are there again.

    What is there is what was sent. The first copies of entries that were delivered once are in order.
    """
    sent = {(key, str(entry.id)): entry.text()["n"] for key in KEYS[name] for entry in originals[key]}
    source = {number: key for (key, _), number in sent.items()}
    count = 0
    for key in outputs(name):
        entries = [entry.text() for entry in _read(client, key)]
        count += len(entries)
        latest: dict[str, int] = {}
        seen: set[str] = set()
        for entry in entries:
            number = entry["n"]
            assert sent.get((source[number], entry["id"])) == number, f"{key}: {entry} was never sent"
            if number in seen or entry["attempt"] != "1":
                continue
            seen.add(number)
            before = latest.get(source[number], -1)
            assert before < int(number), f"{key}: {number} is after {before}, and both were delivered once"
            latest[source[number]] = int(number)
    return count - len(sent)
