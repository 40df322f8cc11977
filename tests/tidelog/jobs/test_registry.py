"""The registry: folding, changes one after another, compaction."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tidelog.jobs.enginekit import add, change, fold
from tidelog import Client
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import run
from tidelog.jobs import JobError, keys
from tidelog.jobs.commits import CLOSED
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobRegistry, JobSpec
from tidelog.transport.errors import StaleEpochError


def spec(name: str = "count", **fields: Any) -> JobSpec:
    return JobSpec(name, f"module:{name}", **fields)


def test_a_job_is_added_changed_and_removed(client: Client) -> None:
    add(client, "count")
    assert fold(client).specs == {"count": spec()}
    change(client, registry.add(spec(version="b")))
    assert fold(client).specs == {"count": spec(version="b", revision=2)}
    change(client, registry.remove("count"))
    assert fold(client).specs == {}
    kinds = [entry["kind"].decode() for entry in client.trange(keys.REGISTRY)]
    assert kinds == ["added", "changed", "removed"]


def test_what_changes_nothing_is_no_entry(client: Client) -> None:
    add(client, "count", "count")
    change(client, registry.pause("count"))
    change(client, registry.pause("count"))
    change(client, registry.add(spec()))
    assert client.tlen(keys.REGISTRY) == 2
    assert fold(client).specs["count"].paused


def test_a_job_of_the_same_name_with_other_inputs_is_refused(client: Client) -> None:
    change(client, registry.add(spec(inputs=("clicks",), state="int")))
    with pytest.raises(JobError, match=r"inputs was clicks and is now orders.*state was int and is now nothing.*reset"):
        change(client, registry.add(spec(inputs=("orders",))))
    change(client, registry.reset(spec(inputs=("orders",), start="latest")))
    assert fold(client).specs["count"] == spec(inputs=("orders",), start="latest", generation=2, revision=2)


def test_an_unknown_job(client: Client) -> None:
    add(client, "count")
    for decide in (registry.remove("c"), registry.pause("c"), registry.resume("c"), registry.reset(spec("c"))):
        with pytest.raises(JobError, match=r"there is no job 'c'; jobs: count. Add one"):
            change(client, decide)
    assert client.tlen(keys.REGISTRY) == 1


@pytest.mark.parametrize("decide", [registry.remove("count"), registry.reset(spec())])
def test_nothing_of_a_generation_that_has_ended_can_be_published(client: Client, decide: registry.Decide) -> None:
    add(client, "count")
    fence = keys.fence("count", 1)
    client.tstage("mine", 0, "out", ["a"], [["1"]])
    change(client, decide)
    assert client.tfence(fence) == CLOSED
    with pytest.raises(StaleEpochError):
        client.tpublish(fence, 5, "mine")
    assert client.tlen("out") == 0
    assert client.tlen(keys.events("count")) == 1
    change(client, registry.add(spec()) if not fold(client).specs else registry.resume("count"))
    assert fold(client).specs["count"].generation == 2
    assert client.tfence(keys.fence("count", 2)) is None


def test_compaction_is_right_for_readers_at_any_place(client: Client) -> None:
    readers = [JobRegistry()]  # each stops reading at another place
    for at in range(30):
        name = f"j{at % 7}"
        there = fold(client).specs
        decide = registry.remove(name) if name in there and at % 3 else registry.add(spec(name, version=str(at)))
        change(client, decide, long=5)
        readers.append(fold(client))
        assert client.tlen(keys.REGISTRY) <= 6
    (newest,) = client.trevrange(keys.REGISTRY, count=1)
    for reader in readers:
        run(client, registry.read(reader))
        assert (reader.specs, reader.gone, reader.last) == (readers[-1].specs, readers[-1].gone, newest.id)
    assert len(readers[-1].specs) > 2


def test_writers_at_the_same_time_lose_nothing(client: Client) -> None:
    def write(at: int) -> None:
        for turn in range(8):
            change(client, registry.add(spec(f"j{at}-{turn}")), long=10)
            change(client, registry.resume(f"j{at}-0"), long=10)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = fold(client).specs
    assert sorted(found) == sorted(f"j{at}-{turn}" for at in range(4) for turn in range(8))
    assert [found[f"j{at}-0"].revision for at in range(4)] == [9] * 4


FORGED: list[dict[str, str | bytes]] = [
    {"a": "b"},
    {"kind": "added", "name": "x"},
    {"kind": "added", "name": "x", "spec": b"\xff"},
    {"kind": b"\xff", "name": "x", "spec": "{}"},
    {"kind": "added", "name": "x", "spec": "[" * 100_000},
    {"kind": "added", "name": "x", "spec": '{"name": "j", "target": "m:j"}'},
    {"kind": "other", "name": "x", "spec": '{"name": "x", "target": "m:x"}'},
    {"kind": "removed", "name": "x", "spec": "{}"},
    {"kind": "all", "name": "", "spec": "7"},
]


@pytest.mark.parametrize("fields", FORGED)
def test_what_is_no_entry_is_reported_and_ignored(
    client: Client, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    change(client, registry.add(spec("j")))
    client.tappend(keys.REGISTRY, fields)
    change(client, registry.add(spec("k")))
    assert sorted(fold(client).specs) == ["j", "k"]
    assert "jobs:registry" in caplog.text
    assert "is ignored" in caplog.text
    change(client, registry.remove("k"))
    found = run(client, registry.removed("k"))
    assert found is not None
    assert found.name == "k"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, {}) for name in ("/etc/x", "../x", "..", ".", "", "a/b", "a\0b", "x\x1b[2J", "-x", "a" * 101)),
        *(
            ("count", {"target": target})
            for target in ("os", "os:", ":x", "a/b:c", "..a:b", "a:b c", "a:b;c", "a:b\n", "http://x:y")
        ),
        ("count", {"name": "other"}), ("count", {"kind": "shell"}), ("count", {"generation": 0}),
        ("count", {"partitions": -1}), ("count", {"inputs": ("a b",)}), ("count", {"outputs": ("topic:x",)}),
        ("count", {"store": "s3://x\x1b[2J"}), ("count", {"version": "\r"}), ("count", {"options": {"a": "\x9b"}}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["added", "all"])
def test_forged_entries_are_refused_before_anything_uses_them(kind: str, name: str, fields: dict[str, Any]) -> None:
    forged = msgspec.structs.replace(spec("count"), **{"name": name, **fields})
    text = msgspec.json.encode(forged)
    if kind == "all":
        text = msgspec.json.encode({"specs": {name: forged}, "gone": {} if fields else {name: 1}})
    found = JobRegistry()
    found.apply(entry_of(1, kind, name, text.decode()))
    assert (found.specs, found.gone, found.length) == ({}, {}, 1)


# -- a model ---------------------------------------------------------------------------------------------------
names = st.sampled_from(["a", "b", "c"])
whats = st.sampled_from(["add", "remove", "pause", "resume", "reset", "compact"])
steps = st.lists(st.tuples(whats, names), max_size=30)


@settings(max_examples=200)
@given(steps, st.integers(0, 30))
def test_fold_is_what_was_done(done: list[tuple[str, str]], begin: int) -> None:
    """The entries that changes make, read by one that reads all, and one that begins somewhere and misses what was
    evicted."""
    model: dict[str, tuple[int, bool]] = {}  # generation, paused
    last: dict[str, int] = {}  # generation
    writer, reader = JobRegistry(), JobRegistry()
    stream: list[Entry] = []
    for at, (what, name) in enumerate(done, 1):
        decide = {"add": registry.add(spec(name, version=str(at))), "remove": registry.remove(name),
                  "pause": registry.pause(name), "resume": registry.resume(name), "reset": registry.reset(spec(name)),
                  "compact": None}[what]  # fmt: skip
        if decide is None:
            entry = entry_of(at, "all", "", writer.everything())
            stream.clear()
        else:
            try:
                changed = decide(writer)
            except JobError:
                assert name not in model
                continue
            if changed is None:
                assert what == "pause"
                assert model[name][1]
                continue
            entry = entry_of(at, changed.kind, name, msgspec.json.encode(changed.spec).decode())
            if what == "remove":
                del model[name]
            elif what in ("add", "reset"):
                begun = name not in model or what == "reset"
                last[name] = last.get(name, 0) + begun
                model[name] = (last[name], name in model and model[name][1])
            else:
                model[name] = (last[name], what == "pause")
        stream.append(entry)
        writer.apply(entry)
        if at <= begin:
            reader.apply(entry)
    for entry in stream:
        if entry.id > reader.last:
            reader.apply(entry)
    assert {name: (each.generation, each.paused) for name, each in writer.specs.items()} == model
    assert reader.specs == writer.specs
    assert reader.gone == writer.gone


def entry_of(at: int, kind: str, name: str, text: str) -> Entry:
    return Entry(StreamId(at), [b"kind", kind.encode(), b"name", name.encode(), b"spec", text.encode(), b"by", b""])
