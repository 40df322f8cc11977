"""Entries that leave the store, with the real program: reads, writes, kills, an object store that is away, replicas."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from tests.persistence.tiering.kit import Entry
from tests.respserver.tiering.test_tiering import NODE, fields, helpers, tiered
from tests.tidelog.backup.kit import manifests, start
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.cli.program import main
from tidelog.testing import Server, running_server

COUNT = 205  # entries, in nodes of 10; the last node, and the one before it, stay in the store
FREED = 20  # nodes


@contextmanager
def freed(
    target: Path, count: int = COUNT, size: int = 60, **config: str | int
) -> Iterator[tuple[Server, list[Entry]]]:  # fmt: skip
    """A server whose stream "a" is, except for its end, only in the object store."""
    target.mkdir(exist_ok=True)
    options: dict[str, Any] = {"tier_free": "yes", "save": "", "node_cache_size": "0", **config}
    with tiered(target, **options) as server:
        with Raw(server.port) as client:
            entries = add(client, count, size)
            wait_until_freed(client, (count - 1) // 10)
        yield server, entries


def thread_options(target: Path) -> dict[str, Any]:
    """Create ``target``. Return options of a server in a thread that moves all full nodes there at once."""
    target.mkdir()
    return {
        "tier_url": str(target), "tier_after": "0", "tier_interval": "0", "tier_free": "yes", "save": "",
        "stream_node_max_entries": str(NODE), "node_cache_size": "0",
    }  # fmt: skip


def add(client: Raw, count: int, size: int = 60, first: int = 1, key: str = "a") -> list[Entry]:
    """Append entries that can't be compressed much, write a checkpoint, and return all entries."""
    random_ = random.Random(first)
    client.pipeline(*[
        ("XADD", key, f"{first + number}-0", "n", number, "text", random_.randbytes(size).hex())
        for number in range(count)
    ])  # fmt: skip
    entries = list(client("XRANGE", key, "-", "+"))
    eventually(lambda: client("SAVE") == b"OK", "no checkpoint")  # a pass can write one, too
    return entries


def wait_until_freed(client: Raw, nodes: int) -> None:
    eventually(lambda: int(fields(client)["tier_freed_nodes"]) >= nodes, "the store still has the entries")


def empty_cache(server: Server) -> None:
    for path in (Path(server.directory) / "tier-cache").glob("*"):
        path.unlink(missing_ok=True)


def test_the_cache_can_be_deleted_while_the_server_runs(tmp_path: Path) -> None:
    with freed(tmp_path / "target") as (server, entries), Raw(server.port) as client:
        cache = Path(server.directory) / "tier-cache"
        for _ in range(2):
            assert client("XRANGE", "a", "-", "+") == entries
            shutil.rmtree(cache)
        cache.write_text("not a directory")
        reply = str(client("XRANGE", "a", "-", "5-0"))
        assert reply.startswith("TRYAGAIN")
        assert "tier-cache" in reply
        cache.unlink()
        eventually(lambda: client("XRANGE", "a", "-", "+") == entries, "the entries can't be read")


def test_reads_of_all_kinds_wait_for_the_object_store(tmp_path: Path) -> None:
    with freed(tmp_path / "target") as (server, entries), Raw(server.port) as client:
        assert int(fields(client)["tier_freed_bytes"]) > 12_000
        reads: list[tuple[tuple[str | int, ...], Any]] = [
            (("XRANGE", "a", "-", "+"), entries),
            (("XREVRANGE", "a", "+", "-"), entries[::-1]),
            (("XRANGE", "a", "55-0", "76-0", "COUNT", 5), entries[54:59]),
            (("XREAD", "COUNT", 3, "STREAMS", "a", "120-0"), [[b"a", entries[120:123]]]),
            (("TCOUNT", "a", "31.0", "100.0"), 70),
            (("TSEEK", "a", "33.0", 2), b"35.0"),
            (("XLEN", "a"), COUNT),
        ]
        for command, expected in reads:
            empty_cache(server)
            assert client(*command) == expected, command
        empty_cache(server)
        assert client.pipeline(*[command for command, _ in reads]) == [expected for _, expected in reads]
        assert int(fields(client)["tier_fetched_nodes"]) >= 3 * FREED
        assert b"rejected_calls=0,failed_calls=0" in client("INFO", "commandstats")


def test_a_long_reply_waits_for_each_part(tmp_path: Path) -> None:
    with freed(tmp_path, 400, 1000) as (server, entries), Raw(server.port) as client:
        empty_cache(server)
        assert client("XRANGE", "a", "-", "+") == entries
        empty_cache(server)
        assert client("XREVRANGE", "a", "+", "-") == entries[::-1]
        empty_cache(server)
        assert client("XREAD", "STREAMS", "a", "0") == [[b"a", entries]]
        empty_cache(server)
        assert len(client("TREAD", "a", "0.0", 400, "MAXBYTES", 1_200_000)) > 300
        empty_cache(server)
        client("XGROUP", "CREATE", "a", "g", "0")
        assert client("XREADGROUP", "GROUP", "g", "new", "STREAMS", "a", ">") == [[b"a", entries]]
        empty_cache(server)
        full = client("XINFO", "STREAM", "a", "FULL", "COUNT", 0)
        assert full[full.index(b"entries") + 1] == entries


def test_a_long_read_of_a_group_waits_for_its_first_entries(tmp_path: Path) -> None:
    """It runs in slices. Nothing was delivered before the first one, so it waits like a short read."""
    with freed(tmp_path, 5500) as (server, entries), Raw(server.port) as client:
        ids = [entry[0].replace(b"-", b".") for entry in entries]
        empty_cache(server)
        read = ("TREAD", "a", "0", 5500, "GROUP", "g", 0, "RETRY", 1_000_000, 0)
        new = [entry[0] for entry in client(*read)]
        assert new == ids[: len(new)]
        assert len(new) >= 5000
        assert client("TNACK", "a", "g", *new) == len(new)
        empty_cache(server)
        due = [entry[0] for entry in client(*read)]
        assert due
        assert due == ids[: len(due)]


def test_a_long_reply_of_entries_that_are_evicted_meanwhile(tmp_path: Path) -> None:
    """It reads what the store had when it began, also what is not read ahead yet."""
    with freed(tmp_path, 1000, 1000) as (server, entries), Raw(server.port) as client, Raw(server.port) as other:
        (reader,) = eventually(lambda: readers(server))
        with stopped(reader):
            empty_cache(server)
            client.send("XRANGE", "a", "-", "+")
            eventually(lambda: b"cmd=xrange" in other("CLIENT", "LIST"))
            assert other("XTRIM", "a", "MINID", "991-0") == 990
            assert other("SAVE") == b"OK"
        assert client.read() == entries
        assert other("XLEN", "a") == 10


def test_writes_that_need_old_entries(tmp_path: Path) -> None:
    with freed(tmp_path) as (server, entries), Raw(server.port) as client:
        assert client("XADD", "a", "MAXLEN", "=", 198, "1000-0", "f", "v") == b"1000-0"
        assert client("XLEN", "a") == 198, "the append has waited for the entry that ends its eviction"
        empty_cache(server)
        assert client("TAPPEV", "a", "MINID", "14.0", "f", "v") != b"0"
        assert client("XRANGE", "a", "-", "+", "COUNT", 1) == entries[13:14]
        empty_cache(server)
        assert client("XTRIM", "a", "MAXLEN", "=", 180) == 14
        assert client("XTRIM", "a", "MINID", "~", "41-0") in (10, 13)
        empty_cache(server)
        assert client("XDEL", "a", "75-0", "76-0", "77-0") == 3
        assert client("XRANGE", "a", "70-0", "80-0") == [*entries[69:74], *entries[77:80]]
        assert client("SAVE") == b"OK"
        empty_cache(server)
        assert client("XRANGE", "a", "70-0", "80-0") == [*entries[69:74], *entries[77:80]]
        empty_cache(server)
        assert client("RENAME", "a", "b") == b"OK"
        assert client("XRANGE", "b", "60-0", "62-0") == entries[59:62]


def test_an_append_evicts_all_that_its_limit_excludes(tmp_path: Path) -> None:
    with freed(tmp_path / "target") as (server, entries), Raw(server.port) as client:
        # the last evicted entry: the last one of its node, the first one of the first node, or in between
        for added, name, left in ((1, "XADD", 196), (2, "XADD", 196), (3, "TAPPEV", 188), (4, "TAPPEV", 188),
                                  (5, "XADD", 184)):  # fmt: skip
            empty_cache(server)
            words = ("XADD", "a", "MAXLEN", "=", left, "*") if name == "XADD" else ("TAPPEV", "a", "COUNT", left)
            assert client(*words, "n", "v")
            assert client("XLEN", "a") == left, added
            assert client("XRANGE", "a", "-", "+", "COUNT", 1) == [entries[COUNT + added - left]]


def test_the_first_read_of_a_group_waits_for_old_entries(tmp_path: Path) -> None:
    """It creates the group, or changes its time to live, and is repeated."""
    with freed(tmp_path / "target") as (server, entries), Raw(server.port) as client:
        expected = [[entry[0].replace(b"-", b"."), *entry[1]] for entry in entries]
        for at, ttl in enumerate((0, 60_000, 0)):
            empty_cache(server)
            found = client("TREAD", "a", "0", 50, "GROUP", "g", ttl)
            assert found == expected[50 * at : 50 * at + 50]
            assert len(client("TGROUP", "LIST", "a")) == 1
        empty_cache(server)
        assert client("TREAD", "a", "0", 1, "GROUP", "h", 0, "RETRY", 10_000, 0) == expected[:1]
        empty_cache(server)
        assert client("XREADGROUP", "GROUP", "h", "new", "COUNT", 1, "STREAMS", "a", ">") == [[b"a", entries[1:2]]]


def test_similar_appends_wait_for_the_end_of_their_eviction(tmp_path: Path) -> None:
    """They are executed as one call, which has changed nothing when it finds that an entry is not in the cache."""
    with freed(tmp_path / "target") as (server, _), Raw(server.port) as client:
        for left, words in (
            (202, ("TAPPEV", "a", "MINID", "14.0")), (170, ("TAPPEV", "a", "COUNT", "170")),
            (155, ("XADD", "a", "MAXLEN", "=", "155", "*")), (152, ("XADD", "a", "MINID", "=", "94-0", "*")),
        ):  # fmt: skip
            empty_cache(server)
            replies = client.pipeline(*[(*words, "n", str(number)) for number in range(10)])
            assert all(isinstance(reply, bytes) for reply in replies), replies
            assert client("XLEN", "a") == left


def test_blocked_clients_wait_for_old_entries(tmp_path: Path) -> None:
    with freed(tmp_path / "target") as (server, entries), Raw(server.port) as client, Raw(server.port) as blocked:

        def woken(command: tuple[str | int, ...], by: tuple[str | int, ...]) -> Any:
            """Send a command that blocks, then another one, and return the reply to the first one."""
            empty_cache(server)
            blocked.send(*command)
            eventually(lambda: b"blocked_clients:1" in client("INFO", "clients"), "the client does not block")
            assert not str(client(*by)).startswith("ERR")
            return blocked.read()

        assert client("XGROUP", "CREATE", "a", "g", "$") == b"OK"
        read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "BLOCK", 0, "STREAMS", "a", ">")
        assert woken(read, ("XGROUP", "SETID", "a", "g", "0")) == [[b"a", entries[:2]]]
        share = ("GROUP", "t", 60_000, "RETRY", 400, 60_000)
        given = client("TREAD", "a", "0.0", 1000, *share)
        redelivered = woken(("TREAD", "a", "0.0", 2, "BLOCK", 0, *share), ("PING",))
        assert redelivered == given[:2]
        assert woken(("XREAD", "BLOCK", 0, "STREAMS", "b", "$"), ("RENAME", "a", "b")) == [[b"b", entries]]


def test_a_blocked_client_waits_for_a_due_message_without_spinning(tmp_path: Path) -> None:
    """The message remains due while its entry is read, which takes as long as the object store does."""
    with freed(tmp_path / "target") as (server, _), Raw(server.port) as client, Raw(server.port) as blocked:
        share = ("GROUP", "g", 0, "RETRY", 1000, 60_000)
        (reader,) = eventually(lambda: readers(server))
        given = client("TREAD", "a", "0", COUNT, *share)
        assert len(given) == COUNT
        with stopped(reader):
            empty_cache(server)
            blocked.send("TREAD", "a", "0", 1, "BLOCK", 0, *share)
            eventually(lambda: b"blocked_clients:1" in client("INFO", "clients"), "the client does not block")
            eventually(lambda: fields(client)["tier_waiting_reads"] != "0")
            for _ in range(50):
                assert client("PING") == b"PONG"
            assert fields(client)["tier_waiting_reads"] == "1"
        assert blocked.read() == given[:1]


def test_transactions(tmp_path: Path) -> None:
    """EXEC waits if nothing was written before. WATCH holds meanwhile."""
    with freed(tmp_path) as (server, entries), Raw(server.port) as client, Raw(server.port) as other:
        client("WATCH", "w")
        client.pipeline(("MULTI",), ("XRANGE", "a", "5-0", "5-0"), ("SET", "s", "1"), ("XRANGE", "a", "150-0", "150-0"))
        assert client("EXEC") == [entries[4:5], b"OK", entries[149:150]], "one section has both"
        empty_cache(server)
        client.pipeline(("MULTI",), ("SET", "s", "2"), ("XRANGE", "a", "5-0", "5-0"))
        done, error = client("EXEC")
        assert done == b"OK"
        assert str(error).startswith("TRYAGAIN the entries 1.0 to 10.0 of stream 1 (key 'a') are only in the object")
        assert eventually(lambda: _found(client, 5)) == entries[4:5]
        empty_cache(server)
        (reader,) = readers(server)
        with stopped(reader):
            client.pipeline(("WATCH", "w"), ("MULTI",), ("XRANGE", "a", "5-0", "5-0"))
            client.send("EXEC")
            eventually(lambda: b"cmd=exec" in other("CLIENT", "LIST"))
            assert other("SET", "w", "changed") == b"OK"
        assert client.read() is None


def _found(client: Raw, number: int) -> Any:
    found = client("XRANGE", "a", f"{number}-0", f"{number}-0")
    return found if isinstance(found, list) else None


def readers(server: Server) -> list[int]:
    """Return the process IDs of the readers."""
    return helpers(server, b"tiering.reader")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process until the end of the block, also if the test fails: it would outlive a server that is killed."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_kills_of_the_reader_and_the_server(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with freed(target) as (server, entries):
        with Raw(server.port) as client, Raw(server.port) as other:
            (reader,) = eventually(lambda: readers(server))
            with stopped(reader):
                client.send("XRANGE", "a", "-", "+")
                assert other("PING") == b"PONG"
                os.kill(reader, signal.SIGKILL)
            assert client.read() == entries, "another process has read them"
        server.kill()
        server.start()
        with Raw(server.port) as client:
            assert client("XRANGE", "a", "-", "+") == entries, "from the disk cache"
            assert fields(client)["tier_fetched_nodes"] == "0"
            eventually(lambda: fields(client)["tier_cache_bytes"] != "0")
            path = next((Path(server.directory) / "tier-cache").glob("*"))
            path.write_bytes(path.read_bytes()[:-1])
            assert client("XRANGE", "a", "-", "+") == entries, "a damaged file is read again"
            assert fields(client)["tier_fetched_nodes"] == "1"
            added = add(client, 30, first=1001)
            wait_until_freed(client, 3)
        server.kill()
        server.start()
        empty_cache(server)
        with Raw(server.port) as client:
            assert client("XRANGE", "a", "-", "+") == added


def test_an_object_store_that_is_away_or_damaged(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with freed(target) as (server, entries), Raw(server.port) as client:
        target.rename(tmp_path / "away")
        error = client("XRANGE", "a", "5-0", "25-0")
        assert error.startswith("TRYAGAIN the entries 1.0 to 10.0 of stream 1 (key 'a') are only in the object store (")
        assert "which can't be read: can't read objects/" in error
        assert error.endswith(f"{target} is no directory: mount it, or create it. Repeat the command later.")
        assert client("XRANGE", "a", "201-0", "+") == entries[200:]
        assert not isinstance(client("XADD", "a", "*", "f", "v"), str)
        assert client("XLEN", "a") == COUNT + 1
        assert int(fields(client)["tier_fetch_errors"]) > 0
        assert client("INFO", "persistence").count(b"scrub_damaged:0") == 1
        (tmp_path / "away").rename(target)
        (path,) = (target / "objects").iterdir()
        content = path.read_bytes()
        path.write_bytes(content[:200] + b"damage" + content[206:])
        eventually(lambda: "is damaged at offset 16" in str(client("XRANGE", "a", "5-0", "25-0")))
        path.write_bytes(content)
        assert eventually(lambda: _found(client, 5)) == entries[4:5]


def test_replicas_have_the_references(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with freed(target) as (server, entries):
        follow: dict[str, Any] = {
            "replicaof": f"{server.host} {server.port}", "node_cache_size": "0", "save": "", "tier_free": "yes",
        }  # fmt: skip
        with tiered(target, **follow) as replica, Raw(replica.port) as reader:
            eventually(lambda: reader("XLEN", "a") == COUNT)
            assert reader("XRANGE", "a", "-", "+") == entries
            assert int(fields(reader)["tier_fetched_nodes"]) == FREED
            with Raw(server.port) as client:
                assert client("XTRIM", "a", "MAXLEN", 150) == COUNT - 150
            eventually(lambda: reader("XLEN", "a") == 150)
            assert reader("XRANGE", "a", "-", "+") == entries[-150:]


def test_a_backup_protects_its_objects(tmp_path: Path) -> None:
    """It refers to them. They remain until it is removed, and then until the restored server no longer needs them."""
    backup, data, target = str(tmp_path / "backup"), str(tmp_path / "data"), tmp_path / "target"

    def objects() -> int:
        return len(list((target / "objects").iterdir()))

    with freed(target, tier_grace=0) as (server, entries), Raw(server.port) as client:
        command = ["backup", backup, "--url", f"redis://127.0.0.1:{server.port}", "--keep", "1"]
        wrong = CliRunner().invoke(main, [*command, "--reference-history", str(tmp_path)])
        assert "contains no history: use the tier-url of the server" in wrong.output
        command += ["--reference-history", str(target)]
        done = CliRunner().invoke(main, command)
        assert f"it refers to objects in {target}, which pins/backup-" in done.output
        restored = CliRunner().invoke(main, ["restore", backup, data])
        assert f"tidelog-server --dir {data} --tier-url {target}, which has a part" in restored.output
        client("DEL", "a")
        client("SAVE")
        eventually(lambda: int(fields(client)["tier_waiting_objects"]) == objects())
        passes = int(fields(client)["tier_passes"])
        eventually(lambda: int(fields(client)["tier_passes"]) > passes + 1)
        assert objects() == 1
        assert CliRunner().invoke(main, command).exit_code == 0
        assert list((target / "pins").iterdir()) == []
    with running_server(dir=data, node_cache_size="0") as server, Raw(server.port) as client:
        assert "tier-url is not set: set it to the prefix that has the object" in client("XRANGE", "a", "-", "+")
        assert client("XRANGE", "a", "204-0", "+") == entries[203:]
    with tiered(target, dir=data, node_cache_size="0") as server, Raw(server.port) as client:
        eventually(lambda: "belongs to another server" in fields(client)["tier_last_error"])
        (pin,) = (target / "pins").iterdir()
        assert pin.name.startswith("server-")
        assert client("XRANGE", "a", "-", "+") == entries


@pytest.mark.parametrize("continuous", [False, True])
def test_a_backup_has_all_entries(tmp_path: Path, continuous: bool) -> None:
    """Those in the object store are read from there. A server that is restored from it needs no object store."""
    backup, data, target = str(tmp_path / "backup"), str(tmp_path / "data"), tmp_path / "target"
    with freed(target) as (server, entries), Raw(server.port) as client:
        empty_cache(server)
        client("SET", "s", "v")
        command = ["backup", backup, "--url", f"redis://127.0.0.1:{server.port}"]
        if continuous:
            with start(*command, "--continuous") as process:
                eventually(lambda: manifests(Path(backup)), "a base backup")
                process.terminate()
            assert process.returncode == 0
        else:
            done = CliRunner().invoke(main, command)
            assert done.exit_code == 0, done.output
            assert "it refers to objects" not in done.output
        assert not (target / "pins").exists()
        assert int(fields(client)["tier_fetched_nodes"]) >= FREED
        assert CliRunner().invoke(main, ["verify", backup]).exit_code == 0
    shutil.rmtree(target)
    restored = CliRunner().invoke(main, ["restore", backup, data])
    assert restored.exit_code == 0
    assert "--tier-url" not in restored.output
    with running_server(dir=data, node_cache_size="0") as server, Raw(server.port) as client:
        assert client("XRANGE", "a", "-", "+") == entries
        assert client("GET", "s") == b"v"
        with running_server(replicaof=f"{server.host} {server.port}") as replica, Raw(replica.port) as reader:
            eventually(lambda: reader("XLEN", "a") == COUNT)
            assert reader("XRANGE", "a", "-", "+") == entries


def test_a_backup_without_an_object_fails(tmp_path: Path) -> None:
    """The log of the server names the object. There is no backup then."""
    backup, target = str(tmp_path / "backup"), tmp_path / "target"
    with freed(target) as (server, _):
        empty_cache(server)
        (path,) = (target / "objects").iterdir()
        path.unlink()
        failed = CliRunner().invoke(main, ["backup", backup, "--url", f"redis://127.0.0.1:{server.port}"])
        assert failed.exit_code == 1
        eventually(lambda: any(path.name in line and "can't be read" in line for line in server.output))
        assert CliRunner().invoke(main, ["verify", backup]).exit_code == 1


def test_a_server_that_begins_to_free_space_later(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with tiered(target, save="", node_cache_size="0") as server, Raw(server.port) as client:
        entries = add(client, COUNT)
        eventually(lambda: int(fields(client)["tier_entries"]) >= 200)
        assert fields(client)["tier_freed_nodes"] == "0"
        assert client("XDEL", "a", "55-0") == 1
        assert client("CONFIG", "SET", "tier-free", "yes") == b"OK"
        wait_until_freed(client, FREED - 1)
        shutil.rmtree(Path(server.directory) / "tier-cache", ignore_errors=True)
        assert client("XRANGE", "a", "-", "+") == entries[:54] + entries[55:]


def test_what_needs_tier_url() -> None:
    with pytest.raises(ConfigError, match="tier-free yes needs tier-url"):
        Config.load(["--tier-free", "yes"])
