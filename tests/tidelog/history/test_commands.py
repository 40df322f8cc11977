"""``tidelog history``: with a server that runs, and with a prefix."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from persistence.tiering.objectstore import BucketFiles, HistoryStore
from persistence.tiering.ownership import claim
from respserver.testing import start_in_thread
from tests.persistence.tiering.kit import CLOCK, GRACE, SERVER, TieredServer
from tests.persistence.tiering.test_deleting import evict, listed, objects, three
from tests.tidelog.jobs.s3kit import s3_bucket
from tidelog.cli.program import main
from tidelog.history.survey import signed


@pytest.fixture
def data(tmp_path: Path) -> Iterator[TieredServer]:
    """A server with nodes of ten entries, and a target that it owns."""
    target = tmp_path / "target"
    target.mkdir()
    claim(HistoryStore(str(target), 30, lambda: None), SERVER)
    with start_in_thread(tmp_path / "data", stream_node_max_entries="10", tier_url=str(target), save="") as running:
        server = TieredServer(running.port, tmp_path / "data", target)
        yield server
        server.client.close()


def run(*words: str | Path, code: int = 0, text: str | None = None) -> str:
    result = CliRunner().invoke(main, ["history", *map(str, words)], input=text)
    assert result.exit_code == code, result.output
    return result.output


def test_list_and_verify(data: TieredServer) -> None:
    copier, names = three(data)
    data.add("b\xff", 25)
    copier.run()
    assert "2 streams, 4 objects" in run("verify", data.target)
    evict(data, 60)
    evict(data, 30)
    copier.delete()
    found = json.loads(run("list", data.target, "--json"))
    streams = {stream["name"]: stream for stream in found["streams"]}
    assert (streams["a"]["objects"], streams["a"]["entries"], streams["a"]["problem"]) == (1, 20, None)
    assert [file["name"] for file in found["waiting"]] == [f"objects/{name}" for name in names[:2]]
    text = run("list", data.target)
    assert "2 files with" in text
    assert "will be deleted after tier-grace (60 min)" in text
    assert run("list", "--url", f"redis://127.0.0.1:{data.port}") == text, "the server is asked for its tier-url"


def test_damage(data: TieredServer) -> None:
    _, names = three(data)
    path = data.target / "objects" / names[1]
    content = path.read_bytes()
    for damaged in (content[:60] + b"#" + content[61:], content[:-1]):
        path.write_bytes(damaged)
        output = run("verify", data.target, code=1)
        assert f"{names[1]} is damaged: it has other bytes than were written (entries" in output
        assert "1 problem." in output
    path.unlink()
    assert "does not exist" in run("verify", data.target, code=1)
    output = run("repair", data.target, code=1, text="n\n")
    assert f"run tidelog history forget --object {names[1]}" in output
    assert not (data.target / "repairs").exists()
    assert "nothing was changed" in run("forget", data.target, "--object", names[1], code=1, text="n\n")
    assert "1 change made" in run("forget", data.target, "--object", names[1], text="y\n")
    assert listed(data) == names[2:]
    waiting = json.loads(run("list", data.target, "--json"))["waiting"]
    assert [file["name"] for file in waiting] == [f"objects/{names[0]}"]
    assert "all intact" in run("verify", data.target)
    data.add("a", 20)
    copier = data.copier()
    copier.run()
    copier.delete()
    assert (copier.problems, copier.deleting.problems) == ([], [])
    assert names[0] in objects(data), "the store has its entries, which no other object has"


@pytest.mark.parametrize("left", [True, False])
def test_a_damaged_manifest(data: TieredServer, left: bool) -> None:
    _, names = three(data)
    folder = data.target / "streams" / "a"
    versions = sorted(folder.iterdir())
    for version in versions[1 if left else 0 :]:
        version.write_bytes(b"damaged")
    assert "00000000000000000003.json is damaged" in run("verify", data.target, code=1)
    if not left:
        assert "give the server of the history with --url" in run("repair", data.target, code=1)
        assert "no answer from" in run("repair", data.target, "--url", "redis://127.0.0.1:1", code=1)
    url = f"redis://127.0.0.1:{data.port}"
    output = run("repair", data.target, "--url", url, "--yes")
    assert "with 3 parts" in output
    assert listed(data) == names
    data.check("a", 10)
    data.add("a", 20)
    copier = data.copier()
    copier.run()
    assert (copier.problems, copier.warnings) == ([], [])
    data.check("a", 10)
    assert "nothing to repair" in run("repair", data.target)


def test_forget(data: TieredServer) -> None:
    _, names = three(data)
    run("forget", data.target, "--stream", "a", "--yes")
    assert listed(data) == []
    data.add("a", 20)
    copier = data.copier()
    copier.run()
    data.check("a", 10)
    copier.delete()
    copier.now = CLOCK + 2 * GRACE
    copier.delete()
    assert objects(data) == {*names, *listed(data)}, "a replica can have references to them"
    data.client("DEL", "a")
    data.save()
    for _ in range(2):
        copier = data.copier(now=copier.now + 2 * GRACE)
        copier.delete()
    assert objects(data) == set()
    pin = data.target / "pins" / "x.json"
    pin.parent.mkdir()
    pin.write_bytes(signed({"format": "tidelog history pin", "version": 1, "owner": "me", "objects": None}))
    assert "pin x.json: all objects, owner: me" in run("list", data.target)
    run("forget", data.target, "--pin", "x", "--yes")
    assert not pin.exists()
    for words, error in (
        (("--stream", "none"), "there is no history of a stream 'none': see tidelog history list"),
        (("--object", names[0]), "no manifest lists an object"),
        (("--pin", "none"), "there is no pin none"),
        ((), "name what to drop"),
    ):
        assert error in run("forget", data.target, *words, code=2 if not words else 1)


@pytest.mark.parametrize("version", [3, 1])
def test_forget_a_stream_with_a_damaged_manifest(data: TieredServer, version: int) -> None:
    """An older version of the manifest has the number of its stream. Without it, the objects are retained."""
    _, names = three(data)
    for path in (data.target / "streams" / "a").iterdir():
        if int(path.name[:20]) >= version:
            path.write_bytes(b"damaged")
    run("forget", data.target, "--stream", "a", "--yes")
    data.copier().run()
    data.check("a", 10)
    data.client("DEL", "a")
    data.save()
    now = CLOCK
    for _ in range(4):
        copier = data.copier(now=now)
        copier.delete()
        now += 2 * GRACE
    assert objects(data) == (set() if version > 1 else set(names))
    if version == 1:
        assert "3 objects with" in run("list", data.target)


def test_repair_retains_objects_for_replicas(data: TieredServer) -> None:
    """A manifest without the objects before a lost one."""
    _, names = three(data)
    for path in (data.target / "streams" / "a").iterdir():
        path.write_bytes(b"damaged")
    (data.target / "objects" / names[1]).unlink()
    run("repair", data.target, "--url", f"redis://127.0.0.1:{data.port}", "--yes")
    assert listed(data) == names[2:]
    copier = data.copier()
    (file,) = copier.deletions.current.files
    assert (file.name, file.why, [end for _, end in file.holders]) == (f"objects/{names[0]}", "removed", [10])


def test_forget_more_than_one(data: TieredServer) -> None:
    """The list of deletions gets a version for each change. It keeps what it had."""
    copier, _ = three(data)
    data.add("b", 25)
    copier.run()
    evict(data, 50)
    copier.delete()
    before = copier.deletions.current
    run("forget", data.target, "--stream", "a", "--stream", "b", "--yes")
    after = data.copier().deletions.current
    assert after.number == before.number + 2
    assert {file.name for file in after.files} == {f"objects/{name}" for name in objects(data)}
    assert set(before.files) <= set(after.files)


def test_an_older_copy_of_the_data_directory(data: TieredServer) -> None:
    three(data)
    data.client("FLUSHALL")
    data.save()
    copier = data.copier()
    copier.deleting._load(0)
    for known in copier.manifests.listing.streams.values():
        known.offset = 1 << 62
    copier.delete()
    assert "Then run tidelog history repair" in copier.deleting.problems[0]
    assert "nothing is deleted, because" in run("list", data.target)
    assert "permit deletions again" in run("repair", data.target, "--yes")
    copier = data.copier()
    copier.delete()
    copier.now = CLOCK + 2 * GRACE
    copier.delete()
    assert copier.deleting.problems == []
    assert objects(data) == set()


def test_errors(tmp_path: Path) -> None:
    assert "contains no history: it has no owner.json" in run("list", tmp_path, code=1)
    assert "does not exist on this machine: mount the directory" in run("list", tmp_path / "none", code=1)
    assert "no answer from" in run("list", "--url", "redis://127.0.0.1:1", code=1)


def test_s3(tmp_path: Path, data: TieredServer) -> None:
    with s3_bucket() as bucket:
        url = f"{bucket}/{tmp_path.name}"
        data.add("a", 25)
        copier = data.copier(BucketFiles(url))
        claim(copier.objects, SERVER)
        copier.run()
        assert "1 stream, 1 object" in run("verify", url)
        run("forget", url, "--stream", "a", "--yes")
        assert json.loads(run("list", url, "--json"))["streams"][0]["objects"] == 0


def test_an_object_that_differs(data: TieredServer) -> None:
    """It is retained until the user forgets it. A helper that runs notices the new list."""
    copier, names = three(data)
    found = copier.manifests.load(b"a", copier.manifests.listing.streams[b"a"].number)
    copier.manifests.drop(found, "differs")
    data.client("DEL", "a")
    data.save()
    copier.delete()
    copier.now += 2 * GRACE
    copier.delete()
    assert objects(data) == set(names)
    assert "3 objects with" in run("list", data.target)
    for name in names:
        assert "It has entries that the server has lost" in run("forget", data.target, "--object", name, "--yes")
    copier.now = int(time.time() * 1000)
    copier.delete()
    assert objects(data) == set(names), "the grace begins again"
    copier.now += 2 * GRACE
    copier.delete()
    assert (copier.deleting.problems, objects(data)) == ([], set())
