"""The coordinator `file:`: killed and stopped processes, restarts of the machine, and bad input."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator import filesystem, versions
from coordinator.connect import connect
from coordinator.directory import POLL, DirectoryCoordinator
from coordinator.interface import Coordinator, CoordinatorConfigError, CoordinatorError, Versioned
from coordinator.versions import Outcome
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
KEY = "leader"
MS = 2000


@contextmanager
def leader(path: Path, ms: int = MS) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("leader.py")), f"file://{path}", KEY, str(ms)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "leads\n"
            yield process
        finally:
            process.kill()


async def vanished(coordinator: Coordinator) -> None:
    """Wait as a member does."""
    watch = coordinator.watch(KEY)
    async for _ in watch:
        if await coordinator.get(KEY) is None:
            break
    watch.close()


async def how_long(path: Path, process: subprocess.Popen[str], number: signal.Signals) -> float:
    """Return the seconds from a signal to the leader's process until its key has vanished."""
    coordinator = DirectoryCoordinator(path, timeout=20)
    waiting = asyncio.create_task(vanished(coordinator))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    sent = time.monotonic()
    process.send_signal(number)
    await asyncio.wait_for(waiting, 30)
    seconds = time.monotonic() - sent
    assert await coordinator.swap(KEY, b"next", 0, await coordinator.grant(MS)) is not None
    await coordinator.close()
    return seconds


def test_a_killed_leader_is_replaced_at_once(tmp_path: Path) -> None:
    with leader(tmp_path, 60_000) as process:
        seconds = asyncio.run(how_long(tmp_path, process, signal.SIGKILL))
    print(f"{seconds * 1000:.0f} ms")
    assert seconds < 2  # measured: 0.02; the machine may be busy, and the lease lasts a minute


def test_a_stopped_leader_is_replaced_when_its_lease_expires(tmp_path: Path) -> None:
    with leader(tmp_path) as process:
        seconds = asyncio.run(how_long(tmp_path, process, signal.SIGSTOP))
        # A renewal is at most a fifth of the lease old, or older if the machine is busy.
        assert MS * 0.5 / 1000 < seconds < MS * 2 / 1000
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    # The thread that renews may have noticed the loss before the loop prints its first line.
    after = next((n for n, line in enumerate(lines) if int(line.split()[1]) > 1000), len(lines) - 1)
    assert lines[after - 1].startswith("valid ")
    assert {line.split()[0] for line in lines[after:]} <= {"invalid", "lost"}
    assert lines[-1] == "lost 0"


def test_a_leader_that_was_stopped_for_less_than_its_lease_continues(tmp_path: Path) -> None:
    with leader(tmp_path, 4000) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("valid")
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        lines = [process.stdout.readline() for _ in range(8)]
        assert any(int(line.split()[1]) >= 400 for line in lines)
        assert {line.split()[0] for line in lines} == {"valid"}


def test_leases_of_an_earlier_boot_have_expired(tmp_path: Path) -> None:
    async def story() -> None:
        before = DirectoryCoordinator(tmp_path, timeout=20, clock=lambda: 1e6, boot=lambda: "first")
        lease = await before.grant(60_000)
        version = await before.swap(KEY, b"1", 0, lease)
        await before.swap("state", b"kept", 0)
        assert version is not None
        after = DirectoryCoordinator(tmp_path, timeout=20, clock=lambda: 5.0, boot=lambda: "second")
        assert await after.get(KEY) is None
        assert await after.get("state") == Versioned(b"kept", 1)
        assert not await after.keep(lease)
        assert os.listdir(tmp_path / "leases") == ["second"]
        assert (await after.swap(KEY, b"2", 0) or 0) > version
        await before.close()
        await after.close()

    asyncio.run(story())


def test_an_expired_lease_is_dead_although_its_process_lives(tmp_path: Path) -> None:
    now = [100.0]

    async def story() -> None:
        one, other = (DirectoryCoordinator(tmp_path, timeout=20, clock=lambda: now[0]) for _ in range(2))
        lease = await one.grant(5000)
        await one.swap(KEY, b"1", 0, lease)
        now[0] = 104.9
        assert await one.keep(lease)
        now[0] = 109.8
        assert await other.get(KEY) is not None
        now[0] = 110.0
        assert await other.get(KEY) is None
        now[0] = 105.0  # a renewal that was under way all the time
        assert not await one.keep(lease)
        assert await one.get(KEY) is None
        await one.close()
        await other.close()

    asyncio.run(story())


def test_closing_ends_the_leases(tmp_path: Path) -> None:
    async def story() -> None:
        one, other = (DirectoryCoordinator(tmp_path, timeout=20) for _ in range(2))
        await one.swap(KEY, b"1", 0, await one.grant(60_000))
        await one.close()
        assert await other.get(KEY) is None
        await other.close()

    asyncio.run(story())


def test_few_files_remain(tmp_path: Path) -> None:
    async def story() -> None:
        one = DirectoryCoordinator(tmp_path, timeout=20)
        for _ in range(5):
            lease = await one.grant(60_000)
            version = await one.swap(KEY, b"1", 0, lease) or 0
            for _ in range(3):
                version = await one.swap(KEY, b"2", version, lease) or 0
                assert await one.keep(lease)
            await one.revoke(lease)
        left = await one.grant(60_000)
        assert await one.keep(left)
        files.extend(name for _, _, names in os.walk(tmp_path) for name in names)
        await one.close()

    files: list[str] = []
    asyncio.run(story())
    assert len(files) <= 6, files  # the mark, two versions of the key, two of a lease and its lock


def test_a_power_loss_after_a_key_was_deleted_with_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    async def story(boot: str, version: int) -> None:
        one = DirectoryCoordinator(tmp_path, timeout=20, boot=lambda: boot)
        assert await one.get(KEY) is None
        lease = await one.grant(60_000)
        assert await one.swap(KEY, b"1", 0, lease) == version
        await one.revoke(lease)
        assert await one.get(KEY) is None
        await one.close()

    monkeypatch.setattr(os, "fsync", noted)
    asyncio.run(story("first", 1))
    for path in (tmp_path / "keys" / KEY).iterdir():
        if path.stat().st_ino not in synced:
            os.truncate(path, 0)  # the name was written to disk, the contents were not
    asyncio.run(story("second", 3))


# -- versions --------------------------------------------------------------------------------------------------------
def test_only_one_process_creates_a_version(tmp_path: Path) -> None:
    assert versions.append(tmp_path, 0, b"a", tmp_path, sync=True) is Outcome.DONE
    assert versions.append(tmp_path, 0, b"b", tmp_path, sync=True) is Outcome.TAKEN
    assert versions.read(tmp_path) == (1, b"a")


def test_a_late_creation_of_a_removed_version_is_unknown_and_unseen(tmp_path: Path) -> None:
    for n in range(5):
        assert versions.append(tmp_path, n, b"%d" % n, tmp_path, sync=False) is Outcome.DONE
    assert versions.versions(tmp_path) == [4, 5]
    assert versions.append(tmp_path, 1, b"late", tmp_path, sync=False) is Outcome.UNKNOWN
    assert versions.read(tmp_path) == (5, b"4")
    assert versions.append(tmp_path, 5, b"5", tmp_path, sync=False) is Outcome.DONE
    assert versions.versions(tmp_path) == [5, 6]


@pytest.mark.parametrize("damage", [b"", b"tidelog 1 00000000\nx", b"tidelog 1 ", b"something else entirely"])
def test_damage_is_reported_with_the_file(tmp_path: Path, damage: bytes) -> None:
    async def story() -> None:
        one = DirectoryCoordinator(tmp_path, timeout=20)
        await one.swap("state", b"1", 0)
        other = DirectoryCoordinator(tmp_path, timeout=20)
        (tmp_path / "keys/state/1").write_bytes(damage)
        with pytest.raises(CoordinatorError, match=r"keys/state/1 is damaged: stop all members .* restore"):
            await other.get("state")
        with pytest.raises(CoordinatorError, match="damaged"):
            await other.swap("state", b"2", 1)
        await one.close()
        await other.close()

    asyncio.run(story())


# -- bad input -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("file:tide", "relative path: write file:///absolute/path"),
        ("file:./tide", "relative path"),
        ("file://tide/x", "relative path"),
        ("file:", "relative path"),
        ("/var/lib/tide", "begins with one of etcd:, file:"),
        ("zookeeper://a", "begins with one of etcd:, file:"),
        ("", "begins with one of etcd:, file:"),
        ("file:///etc", "has files that are not a coordinator's"),
        ("file:///etc/passwd", "is not a directory"),
        ("file:///etc/passwd/tide", "/etc/passwd is not a directory"),
    ],
)
def test_bad_urls(url: str, text: str) -> None:
    with pytest.raises(CoordinatorConfigError, match=text):
        connect(url)


def test_both_forms_of_the_url(tmp_path: Path) -> None:
    async def story() -> None:
        one, other = connect(f"file:{tmp_path}/a%20b"), connect(f"file://{tmp_path}/a b")
        await one.swap("k", b"1", 0)
        assert await other.get("k") == Versioned(b"1", 1)
        await one.close()
        await other.close()

    asyncio.run(story())
    assert (tmp_path / "a b").stat().st_mode & 0o777 == 0o700


def test_many_members_may_create_the_directory_at_once(tmp_path: Path) -> None:
    code = "import sys; from coordinator.connect import connect; connect(sys.argv[1])"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, f"file://{tmp_path}/new"]
    members = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [each.wait(60) for each in members] == [0] * 4
    assert sorted(os.listdir(tmp_path / "new")) == ["format", "keys", "leases"]


@pytest.mark.parametrize(
    ("mark", "text"), [("tidelog coordinator 2 " + "0" * 32, "format 2 of a newer version"), ("x", "is damaged")]
)
def test_another_mark(tmp_path: Path, mark: str, text: str) -> None:
    (tmp_path / "format").write_text(mark)
    with pytest.raises(CoordinatorConfigError, match=text):
        connect(f"file://{tmp_path}")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("file:///nowhere/at/all", "the directory /nowhere/at does not exist: create or mount it"),
        ("file:///proc/tide", "cannot be used"),
    ],
)
def test_a_directory_that_cannot_be_created(url: str, text: str) -> None:
    async def story() -> None:
        one = connect(url)
        for _ in range(2):
            with pytest.raises(CoordinatorError, match=text):
                await one.get("k")
        await one.close()

    asyncio.run(story())


def test_a_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = connect(f"file://{tmp_path}", timeout=20)
        with pytest.raises(CoordinatorError, match="run all members as one user that may write there"):
            await one.get("k")
        permit()
        assert await one.swap("k", b"1", 0) == 1
        await one.close()

    def permit() -> None:
        tmp_path.chmod(0o700)
        monkeypatch.undo()

    if os.geteuid() == 0:  # root may write anywhere: act as if not
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        tmp_path.chmod(0o500)
    asyncio.run(story())


@pytest.mark.parametrize("where", ["parent", "directory"])
def test_a_dangling_link_is_not_followed(tmp_path: Path, where: str) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)

    async def story() -> None:
        one = connect(f"file://{link}" + ("/tide" if where == "parent" else ""), timeout=20)
        with pytest.raises(CoordinatorError, match=f"link to {target}, which does not exist: create or mount it"):
            await one.get("k")
        assert not target.exists()
        target.mkdir()
        assert await one.swap("k", b"1", 0) == 1
        await one.close()

    asyncio.run(story())


@pytest.mark.parametrize("before", ["missing", "empty"])
def test_a_directory_that_must_exist(tmp_path: Path, before: str) -> None:
    """It is not created, since it may be on a file system that is not mounted."""
    path = tmp_path / "tide"
    if before == "empty":
        path.mkdir()

    async def story() -> None:
        one = connect(f"file://{path}", timeout=20, create=False)
        text = f"{path} is empty: mount" if before == "empty" else f"{path} does not exist: mount"
        with pytest.raises(CoordinatorError, match=text):
            await one.get("k")
        assert not (path / "format").exists()
        other = connect(f"file://{path}", timeout=20)
        assert await other.swap("k", b"1", 0) == 1
        assert await one.get("k") == Versioned(b"1", 1)
        await one.close()
        await other.close()

    asyncio.run(story())


def test_a_directory_that_appears_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = connect(f"file://{tmp_path}/late/tide", timeout=20)
        (tmp_path / "late").mkdir()
        monkeypatch.setattr(filesystem, "file_system", lambda directory: "nfs4")
        with pytest.raises(CoordinatorError, match=r"network file system \(nfs4\)"):
            await one.get("k")
        await one.close()

    asyncio.run(story())


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(f"21 1 0:99 / / rw - ext4 /dev/a rw\n36 35 {number} / /mnt rw master:1 - nfs4 host:/a rw\n")
    find = filesystem.file_system
    assert find(tmp_path, mounts) == "nfs4"
    assert find(tmp_path, tmp_path / "none") == ""
    monkeypatch.setattr(filesystem, "file_system", lambda directory: find(directory, mounts))
    with pytest.raises(CoordinatorConfigError, match=r"network file system \(nfs4\).*use a local directory or etcd://"):
        connect(f"file://{tmp_path}/tide")


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_directory_that_is_removed_while_in_use(tmp_path: Path, how: str) -> None:
    async def story() -> None:
        one = DirectoryCoordinator(tmp_path / "tide", timeout=20)
        await one.swap("state", b"1", 0)
        watch = one.watch("state")
        await anext(watch)
        back = asyncio.create_task(watch.__anext__())
        await asyncio.sleep(0)
        (tmp_path / "tide").rename(tmp_path / "old")
        if how == "replaced":
            await DirectoryCoordinator(tmp_path / "tide", timeout=20).close()
        with pytest.raises(CoordinatorError, match=f"was {how} while it was in use"):
            await one.get("state")
        with pytest.raises(CoordinatorError, match=f"was {how} while it was in use"):
            await one.swap("state", b"2", 0)
        await asyncio.sleep(5 * POLL)
        assert not back.done()
        if how == "replaced":
            (tmp_path / "tide").rename(tmp_path / "wrong")
        (tmp_path / "old").rename(tmp_path / "tide")
        await asyncio.wait_for(back, 20)
        assert await one.get("state") == Versioned(b"1", 1)
        await one.close()

    asyncio.run(story())


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_directory_that_is_removed_during_a_call(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        one = DirectoryCoordinator(tmp_path / "tide", timeout=20)
        await one.swap("state", b"1", 0)
        listed = versions.versions

        def late(directory: Path) -> list[int]:
            monkeypatch.setattr(versions, "versions", listed)
            (tmp_path / "tide").rename(tmp_path / "old")
            if how == "replaced":
                DirectoryCoordinator(tmp_path / "tide", timeout=20)
            return listed(directory)

        monkeypatch.setattr(versions, "versions", late)
        with pytest.raises(CoordinatorError, match=f"was {how} while it was in use"):
            await one.get("state")  # None would mean that the key does not exist
        await one.close()

    asyncio.run(story())


def test_a_watch_of_a_disk_that_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is the server's: it goes on, and can end the watch."""
    stalled, goes_on = threading.Event(), threading.Event()
    listdir = os.listdir

    def stall(path: Path) -> list[str]:
        stalled.set()
        assert goes_on.wait(5)  # the loop sets it
        return listdir(path)

    async def story() -> None:
        one = DirectoryCoordinator(tmp_path, timeout=20)
        await one.swap("state", b"1", 0)
        monkeypatch.setattr(os, "listdir", stall)
        watch = one.watch("state")
        waiting = asyncio.create_task(watch.__anext__())
        await asyncio.to_thread(stalled.wait, 20)
        assert not waiting.done()
        goes_on.set()
        await asyncio.wait_for(waiting, 20)
        await one.close()

    asyncio.run(story())


@pytest.mark.parametrize("how", ["a malformed file", "no memory"])
def test_watches_survive_an_unexpected_error(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One thread polls for all watches of a member. It polls again, and logs the error once per watch."""
    listdir, failed = os.listdir, [0]

    def fails(path: Path) -> list[str]:
        failed[0] += 1
        raise MemoryError

    async def story() -> None:
        one = DirectoryCoordinator(tmp_path, timeout=20)
        await one.swap("state", b"1", 0)
        watches = [one.watch("state"), one.watch("other")]
        for watch in watches:
            await anext(watch)
        if how == "no memory":
            monkeypatch.setattr(os, "listdir", fails)
            await until(lambda: failed[0] >= 6)
            monkeypatch.setattr(os, "listdir", listdir)
            for watch in watches:
                await anext(watch)  # something may have changed meanwhile
        else:
            versions.append(tmp_path / "keys/state", 1, b"value \xff\n1", tmp_path, sync=False)
            await until(lambda: caplog.records)
            versions.append(tmp_path / "keys/state", 2, b"value -\n1", tmp_path, sync=False)
            await anext(watches[0])
        for key, version, watch in zip(("state", "other"), (1 if how == "no memory" else 3, 0), watches, strict=True):
            await one.swap(key, b"2", version)
            await anext(watch)
        await one.close()

    async def limited() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(limited())
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == (2 if how == "no memory" else 1), logged
    assert all(text.startswith("Bug in the watch of a key; it is read again") for text in logged)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = DirectoryCoordinator(tmp_path, timeout=20)
        await one.swap("state", b"1", 0)

        def full(_fd: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(CoordinatorError, match="No space left on device"):
                await one.swap("state", b"2", 1)
        assert await one.get("state") == Versioned(b"1", 1)
        await one.close()

    asyncio.run(story())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_keys_that_cannot_be_files(tmp_path: Path) -> None:
    async def story() -> None:
        one = DirectoryCoordinator(tmp_path, timeout=20)
        for key in ("", "..", ".", "x" * 201):
            with pytest.raises(ValueError, match="cannot be the name of a file"):
                await one.get(key)
        await one.close()

    asyncio.run(story())
