"""``tidelog backup`` and ``tidelog restore`` with real servers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replication.cluster import Cluster, Node, assert_same, cluster, connect, wait_until
from tests.replication.test_passwords_and_tls import Certificates
from tests.replication.test_restoring import fill
from tests.replication.workloads import Load, Stages, Transactions
from tests.tidelog.backup.kit import chunks, failed, manifests, restored, start, tidelog, url
from tidelog.backup.manifest import find

pytestmark = pytest.mark.slow


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def noise(node: Node, megabytes: int, key: str = "big") -> None:
    """Entries that compress badly."""
    for _ in range(megabytes):
        node("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *[os.urandom(1000) for _ in range(1000)])


def everything(node: Node) -> dict[bytes, object]:
    """What clients can read of each key."""
    found: dict[bytes, object] = {}
    for key in node("KEYS", "*"):
        if node("TYPE", key) == b"string":
            found[key] = node("GET", key), node("PEXPIRETIME", key)
        else:
            groups = [group[b"name"] for group in node("TGROUP", "LIST", key)]
            pending = [[row[:1] for row in node("TPENDING", key, name, "-", "+", 1000)] for name in groups]
            found[key] = node("TRANGE", key, "-", "+"), node("PEXPIRETIME", key), groups, pending, node("TCFG", key)
    return found


# -- what is in it -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("source", ["leader", "replica"])
def test_every_key_is_there_again(servers: Cluster, target: Path, source: str) -> None:
    leader = servers.node(stream_node_max_entries=16)
    fill(leader)
    leader("TCFG", "k", "RETAIN", "COUNT", 150, "GROUPS", "LIMIT", 200, "EXACT")
    leader("TCFG", "k", "TIER", "AGE", 3_600_000)
    node = leader
    if source == "replica":
        node = servers.node(of=leader.port)
        assert_same(leader, node)
    with leader.still():  # otherwise, a stall of the machine adds records of served time
        output = tidelog("backup", target, "--url", url(node))
        assert f"up to log offset {leader.offset:,} of a {source}, about 4 keys and 150 entries\n" in output
        again = restored(servers, target)
        assert again.digest() == leader.digest()
        assert everything(again) == everything(leader)
    assert again.role == "master"
    again("TMAPPEND", "k", "FIELDS", 1, "f", "VALUES", *range(100))
    wait_until(lambda: again("TLEN", "k") == 200, "an eviction by the restored policy")


def test_what_restore_says(servers: Cluster, target: Path, tmp_path: Path) -> None:
    leader = servers.node()
    fill(leader)
    with leader.still():  # otherwise, a stall of the machine adds records of served time (13 bytes each)
        tidelog("backup", target, "--url", url(leader))
        offset = leader.offset
    output = tidelog("restore", target, tmp_path / "new")
    assert f"{tmp_path}/new: the data of 127.0.0.1:{leader.port} at log offset {offset:,}, from\n" in output
    assert "4 keys, 1 of them streams with 150 entries, the newest 20" in output
    assert "1 group with 20 pending entries\n" in output
    assert f"start the server: tidelog-server --dir {tmp_path}/new\n" in output


def test_an_empty_server(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    tidelog("backup", target, "--url", url(leader))
    assert restored(servers, target)("DBSIZE") == 0


@pytest.mark.parametrize("source", ["leader", "replica"])
@pytest.mark.parametrize("workload", [Transactions, Stages])
def test_a_copy_under_load_is_consistent(
    servers: Cluster, target: Path, source: str, workload: type[Transactions | Stages]
) -> None:
    """No transaction is there in part, and what was acknowledged before is there."""
    leader, replica = servers.pair(checkpoint_size="1mb")
    work = workload()
    with Load(work, leader, replicas=1) as load:
        for _ in range(2):
            load.more(100)
            promised = set(work.promised)
            tidelog("backup", target, "--url", url(replica if source == "replica" else leader))
            load.more(10)
            node = restored(servers, target)
            work.check(node.redis, promised)
            node.kill()


def test_the_digest_at_that_offset(servers: Cluster, target: Path) -> None:
    """The server's own, taken at the very log offset at which the backup ended, while writes go on before and after."""
    leader = servers.node()
    stop, digests = threading.Event(), dict[int, str]()

    def write() -> None:
        with connect(leader.port) as client:
            number = 0
            while not stop.is_set():
                number += 1
                client.execute_command("TAPPEND", f"k{number % 3}", "n", number)
                pipe = client.pipeline(transaction=True)
                pipe.execute_command("DEBUG", "DIGEST")
                pipe.info("replication")
                digest, info = pipe.execute()
                digests[info["master_repl_offset"]] = digest.decode()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: len(digests) > 50, "some writes")
        tidelog("backup", target, "--url", url(leader))
        ended = find(str(target))[1].log_offset
        wait_until(lambda: max(digests) > ended, "writes after it")
    finally:
        stop.set()
        writer.join()
    assert restored(servers, target).digest() == digests[ended]


def test_two_backups_share_what_did_not_change(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    noise(leader, 24)
    leader("SAVE")
    tidelog("backup", target, "--url", url(leader))
    before = leader.digest()
    noise(leader, 1)
    leader("SET", "k", "v")
    leader("SAVE")
    size = sum(path.stat().st_size for path in chunks(target))
    tidelog("backup", target, "--url", url(leader))
    new = sum(path.stat().st_size for path in chunks(target)) - size
    assert new < size / 2  # a megabyte, and the chunk that it begins in
    lines = tidelog("backups", target).splitlines()
    names = manifests(target)
    assert [line.split()[0] for line in lines] == ["name", *names]
    assert lines[1].split()[5:8] == ["0", "bytes", "24,000"]
    assert restored(servers, target / names[0]).digest() == before
    assert restored(servers, target / names[1]).digest() == leader.digest()
    size = sum(path.stat().st_size for path in chunks(target))
    tidelog("backup", target, "--url", url(leader))
    assert sum(path.stat().st_size for path in chunks(target)) == size


def test_it_is_no_replica_and_the_journal_is_let_go(servers: Cluster, target: Path) -> None:
    leader, replica = servers.pair(repl_backlog_size="100kb")
    noise(leader, 3)
    leader("SAVE")
    replica.kill()
    wait_until(lambda: leader.info()["connected_slaves"] == 0, "it is away")
    process = start("backup", target, "--url", url(leader))
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0
    assert leader.info()["connected_slaves"] == 0
    wait_until(lambda: leader.logged("Connection with copying client"), "its end is noticed")
    leader("SET", "k", "v")
    leader("SAVE")
    assert leader.offset - int(leader.info()["repl_backlog_first_byte_offset"]) < 2_000_000


# -- history -----------------------------------------------------------------------------------------------------
def test_what_was_restored_has_a_history_of_its_own(servers: Cluster, target: Path) -> None:
    leader, replica = servers.pair()
    leader("SET", "k", "1")
    tidelog("backup", target, "--url", url(leader))
    leader("SET", "k", "2")
    assert_same(leader, replica)
    leader.kill()
    node = restored(servers, target)
    node("SET", "k", "another 2")  # as long as what it lacks
    replica.follow(node.port)
    assert_same(node, replica)
    assert node.syncs == (0, 1)  # the replica deletes what the backup lacks, instead of going on at the same offset
    assert replica.info("stats")["sync_truncated"] == 1
    fresh = servers.node(of=node.port)
    assert_same(node, fresh)
    assert fresh("GET", "k") == b"another 2"


def test_a_new_replica_from_a_backup(servers: Cluster, target: Path) -> None:
    leader, _ = servers.pair()
    noise(leader, 1)
    tidelog("backup", target, "--url", url(leader))
    leader("SET", "k", "v")
    node = servers.node(start=False)
    tidelog("restore", target, node.directory)
    node.config["replicaof"] = f"127.0.0.1 {leader.port}"
    node.start()
    assert_same(leader, node)
    assert leader.syncs == (2, 1)  # full copies for the first replica and the backup only


# -- where from and where to -------------------------------------------------------------------------------------
def test_password_tls_and_unix_socket(servers: Cluster, target: Path, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    leader = servers.node(
        requirepass="se/cret", unixsocket=f"{tmp_path}/s", **certificates.settings(), start=False
    )
    leader.redis.connection_pool.connection_kwargs["password"] = "se/cret"
    leader.start()
    leader("SET", "k", "v")
    query = f"ssl_ca_certs={certificates.ca}&ssl_certfile={certificates.cert}&ssl_keyfile={certificates.key}"
    tls = f"127.0.0.1:{leader.config['tls-port']}?{query}"
    for place in (f"127.0.0.1:{leader.port}", f"default:se%2Fcret@127.0.0.1:{leader.port}"):
        assert tidelog("backup", target, "--url", f"redis://{place}", ok="@" in place)
    tidelog("backup", target, "--url", f"rediss://:se%2Fcret@{tls}")
    tidelog("backup", target, "--url", f"unix://{tmp_path}/s?password=se%2Fcret")
    assert len(manifests(target)) == 3
    assert b"cret" not in b"".join(path.read_bytes() for path in target.glob("*.json"))
    said = tidelog("backup", target, "--url", f"unix://{tmp_path}/no?password=se%2Fcret", ok=False)
    assert said.startswith(f"Error: no answer from unix://{tmp_path}/no: ")
    said = tidelog("backup", target, "--url", f"redis://:no@127.0.0.1:{leader.port}", ok=False)
    assert "invalid username-password" in said
    said = tidelog("backup", target, "--url", f"rediss://:se%2Fcret@{tls.partition('?')[0]}", ok=False)
    assert "certificate" in said
    assert restored(servers, target)("GET", "k") == b"v"


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_fsspec(servers: Cluster, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install -e '.[test]'")
    leader = servers.node()
    fill(leader)
    target = f"{kind}://{tmp_path}/bucket/tide"
    for _ in range(3):
        output = tidelog("backup", target, "--url", url(leader), "--keep", 2)
    assert "1 older backup removed" in output
    assert len(tidelog("backups", target).splitlines()) == 3
    assert "all intact" in tidelog("verify", target)
    name = tidelog("backups", target).splitlines()[1].split()[0]
    assert restored(servers, f"{target}/{name}").digest() == leader.digest()


def test_only_the_newest_are_kept(servers: Cluster, target: Path) -> None:
    leader = servers.node()
    for number in range(4):
        leader("SET", f"k{number}", "v")
        leader("SAVE")
        tidelog("backup", target, "--url", url(leader))
    (target / "chunks/ab").mkdir(exist_ok=True)
    (target / "chunks/ab" / ("ab" * 32 + ".half")).write_text("left by an interrupted backup")
    names = manifests(target)
    assert "3 older backups removed" in tidelog("backup", target, "--url", url(leader), "--keep", 2)
    assert manifests(target)[0] == names[3]
    needed = {digest for name in manifests(target) for digest, _ in find(f"{target}/{name}")[1].chunks}
    assert {path.name for path in chunks(target)} == needed
    for name in manifests(target):
        tidelog("verify", target / name)
    # nothing is removed while it is not known what is needed
    (target / f"{manifests(target)[1]}.json").write_text("{")
    before = chunks(target)
    output = tidelog("backup", target, "--url", url(leader), "--keep", 2, ok=False)
    assert "the backup is complete, but nothing can be removed" in output
    assert set(before) <= set(chunks(target))
    assert "is damaged" in tidelog("backups", target)


def test_modes(servers: Cluster, target: Path, tmp_path: Path) -> None:
    leader = servers.node()
    leader("SET", "k", "v")
    tidelog("backup", target, "--url", url(leader))
    tidelog("restore", target, tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    for path in target.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


# -- what goes wrong ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def large() -> Iterator[Node]:
    with cluster() as made:
        leader = made.node(repl_timeout=2)
        noise(leader, 10)
        leader("SAVE")
        noise(leader, 2)
        yield leader


@pytest.mark.parametrize("after", [3_000, 1_000_000, 11_000_000])
def test_a_connection_that_is_cut(servers: Cluster, large: Node, target: Path, after: int) -> None:
    proxy = servers.proxy(large)
    proxy.down.cut(after=after)
    place = f"redis://127.0.0.1:{proxy.port}"
    assert "onnection" in tidelog("backup", target, "--url", place, ok=False)
    assert manifests(target) == []
    assert not list(target.glob("locks/*"))
    assert "there is no backup at" in tidelog("restore", target, target / "new", ok=False)
    tidelog("backup", target, "--url", place)
    tidelog("verify", target)


def test_a_byte_damaged_on_the_way(servers: Cluster, large: Node, target: Path) -> None:
    proxy = servers.proxy(large)
    proxy.down.corrupt(after=5_000_000)
    assert "damaged on the way" in tidelog("backup", target, "--url", f"redis://127.0.0.1:{proxy.port}", ok=False)
    assert manifests(target) == []


def test_a_killed_backup_is_in_nobodys_way(servers: Cluster, large: Node, target: Path) -> None:
    proxy = servers.proxy(large)
    proxy.down.rate = 4_000_000
    process = start("backup", target, "--url", f"redis://127.0.0.1:{proxy.port}")
    wait_until(lambda: len(chunks(target)) >= 2, "something is written")
    assert "is being written there by process" in tidelog("backup", target, "--url", url(large), ok=False)
    process.kill()
    process.communicate()
    assert manifests(target) == []
    there = {path: path.stat().st_mtime_ns for path in chunks(target) if not path.name.endswith(".half")}
    assert there
    tidelog("backup", target, "--url", url(large), "--keep", 1)
    assert {path: path.stat().st_mtime_ns for path in there} == there  # what the killed one wrote is used
    tidelog("verify", target)


def test_a_backup_that_stands_still_is_cut(servers: Cluster, large: Node, target: Path) -> None:
    proxy = servers.proxy(large)
    proxy.down.rate = 4_000_000
    process = start("backup", target, "--url", f"redis://127.0.0.1:{proxy.port}")
    wait_until(lambda: len(chunks(target)) >= 1, "something is written")
    process.send_signal(signal.SIGSTOP)
    before = sum("it sent nothing for" in line for line in large.output)
    wait_until(lambda: sum("it sent nothing for" in line for line in large.output) > before, "it is cut")
    process.send_signal(signal.SIGCONT)
    assert "connection" in failed(process)
    assert manifests(target) == []


def test_a_slow_backup_is_not_cut(servers: Cluster, large: Node, target: Path) -> None:
    """Slower than repl-timeout: it says that it is alive."""
    proxy = servers.proxy(large)
    proxy.down.rate = 3_000_000
    began = time.monotonic()
    tidelog("backup", target, "--url", f"redis://127.0.0.1:{proxy.port}")
    assert time.monotonic() - began > 3
    tidelog("verify", target)


def test_a_full_target(large: Node, target: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    output = failed(start("backup", target, "--url", url(large), preexec=small_files))
    assert f"can't write {target}/chunks/" in output
    assert "File too large" in output
    assert manifests(target) == []
    assert not list(target.rglob("*.half"))


def test_servers_that_are_none(servers: Cluster, target: Path) -> None:
    leader = servers.node(start=False)
    assert "no answer from redis://127.0.0.1" in tidelog("backup", target, "--url", url(leader), ok=False)
    replica = servers.node(of=leader.port)
    assert "NOMASTERLINK" in tidelog("backup", target, "--url", url(replica), ok=False)
    assert "urls must be redis://" in tidelog("backup", target, "--url", "http://localhost", ok=False)
    assert not list(target.glob("locks/*"))
    if shutil.which("redis-server"):
        with cluster("redis") as others:
            other = others.node()
            assert "no tidelog-server" in tidelog("backup", target, "--url", url(other), ok=False)


def test_a_damaged_store_is_not_backed_up(servers: Cluster, target: Path) -> None:
    """It would be noticed no earlier than at a restore."""
    leader = servers.node()
    leader("SET", "k", "a value that is easy to find")
    leader.stop()  # a checkpoint
    file = leader.directory / "store/data.mdb"
    data = file.read_bytes()
    assert b"easy to find" in data
    leader.start()
    with file.open("r+b") as raw:
        raw.seek(data.index(b"easy to find"))
        raw.write(b"hard")
    assert "the server's store is damaged: the entry" in tidelog("backup", target, "--url", url(leader), ok=False)
    assert manifests(target) == []


# -- a backup that is damaged ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def stored(large: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stored") / "target"
    tidelog("backup", target, "--url", url(large))
    return target


@pytest.fixture
def damaged(stored: Path, target: Path) -> Path:
    """A backup for a test to damage."""
    shutil.copytree(stored, target)
    return target


def test_a_byte_of_any_file(damaged: Path, tmp_path: Path) -> None:
    files = chunks(damaged)
    assert len(files) > 4
    for path in files:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
        for command in (("verify", damaged), ("restore", damaged, tmp_path / "new")):
            output = tidelog(*command, ok=False)
            assert f"{path} is damaged: its SHA-256 is not its name" in output
        assert not any(tmp_path.glob("new*"))
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    tidelog("verify", damaged)


def test_a_file_that_was_cut_or_is_missing(damaged: Path, tmp_path: Path) -> None:
    path = chunks(damaged)[0]
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    for command in (("verify", damaged), ("restore", damaged, tmp_path / "new")):
        assert f"{path} is damaged: it has {len(raw) - 1:,} bytes instead" in tidelog(*command, ok=False)
    path.unlink()
    for command in (("verify", damaged), ("restore", damaged, tmp_path / "new")):
        assert f"{path} is missing" in tidelog(*command, ok=False)
    assert not any(tmp_path.glob("new*"))


def test_what_was_damaged_is_written_again_once_it_is_removed(large: Node, damaged: Path) -> None:
    path = chunks(damaged)[0]
    path.unlink()
    tidelog("backup", damaged, "--url", url(large))
    tidelog("verify", damaged / manifests(damaged)[0])


def test_a_truncated_manifest(damaged: Path, tmp_path: Path) -> None:
    (path,) = damaged.glob("*.json")
    path.write_bytes(path.read_bytes()[:-10])
    for command in (("verify", damaged), ("restore", damaged, tmp_path / "new")):
        assert f"{path} is damaged or incomplete" in tidelog(*command, ok=False)
    assert not any(tmp_path.glob("new*"))


def test_a_manifest_whose_log_lacks_a_part(damaged: Path, tmp_path: Path) -> None:
    """Every file is right, but together they are no log: tidelog-server refuses it, and says why."""
    _, made = find(str(damaged))
    assert len(made.log) == 1
    (path,) = damaged.glob("*.json")
    path.write_bytes(type(made)(**{field: getattr(made, field) for field in made.__slots__} | {"log": ()}).dumped())
    assert "the log ends at" in tidelog("restore", damaged, tmp_path / "new", ok=False)
    assert not any(tmp_path.glob("new*"))


def test_directories_that_are_not_touched(stored: Path, large: Node, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    assert f"{full} is there and not empty" in tidelog("restore", stored, full, ok=False)
    assert "is there and not empty" in tidelog("restore", stored, large.directory, ok=False)
    assert "is there and not empty" in tidelog("restore", stored, full / "mine", ok=False)
    (tmp_path / "new.restoring").mkdir()
    assert "a restore is running, or one was interrupted" in tidelog("restore", stored, tmp_path / "new", ok=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    tidelog("restore", stored, empty)
    assert (empty / "tidelog.format").exists()


def test_a_mount_point(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda self: True)
    (tmp_path / "volume").mkdir()
    assert "restore into a folder in it" in tidelog("restore", stored, tmp_path / "volume", ok=False)


def test_a_killed_restore_leaves_no_directory(servers: Cluster, stored: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    process = start("restore", stored, new)
    wait_until(lambda: (tmp_path / "new.restoring").exists(), "it has begun")
    process.kill()
    process.communicate()
    wait_until(lambda: not (tmp_path / "new.restoring").exists(), "the server that it ran has noticed, and cleaned up")
    assert not new.exists()
    tidelog("restore", stored, new)


def test_a_full_disk_at_a_restore(stored: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    output = failed(start("restore", stored, tmp_path / "new", preexec=small_files))
    assert "too large" in output.lower()
    assert not any(tmp_path.glob("new*"))


def test_the_manifest_says_what_it_is(stored: Path, large: Node) -> None:
    (path,) = stored.glob("*.json")
    content = json.loads(path.read_bytes())
    assert content["format"] == "tidelog backup, format 1"
    assert content["log_offset"] == large.offset
    assert content["replid"] == large.info()["master_replid"]
    assert content["server"] == f"127.0.0.1:{large.port}"
