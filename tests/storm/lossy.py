"""A file system in memory that loses, at a power failure, what was not synced. It speaks the kernel's FUSE protocol.

Rule 1: fsync(), fdatasync() and O_DSYNC make the content of a file durable. They do not make its name durable.
Rule 2: fsync() of a directory makes the names of all directories durable. As on a journaling file system, changes of
        names reach the disk in their order.
Rule 3: At a power failure, durable data remains. Of the other data, the disk has nothing, everything, or a random part
        in blocks of 512 bytes; of the other names, it has the first few changes.

The data is in a process of its own, so it outlasts a killed server as the page cache does. The process serves one mount
and takes commands on its standard input: ``power SEED`` needs a file system that no process uses. It replies ``ok``.
Linux, /dev/fuse, and the right to mount are necessary.

    python -m tests.storm.lossy DIRECTORY
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

BLOCK: Final = 512
READ_SIZE: Final = (1 << 20) + 4096
MAX_WRITE: Final = 1 << 20
HEADER: Final = struct.Struct("<IIQQIIIHH")  # length, operation, unique, inode, uid, gid, pid, extensions, padding
REPLY: Final = struct.Struct("<IiQ")  # length, error, unique
ATTRIBUTES: Final = struct.Struct("<6Q10I")
ENTRY: Final = struct.Struct("<4Q2I")
FOREVER: Final = 1 << 20  # seconds that the kernel may cache names and attributes: nobody else changes them
SPACE: Final = 1 << 32  # bytes that the file system claims to have
DETACH: Final = 2  # MNT_DETACH
_libc = ctypes.CDLL(None, use_errno=True)


class File:
    """A file. ``data``: what processes see; ``synced``: what is on the disk; ``dirty``: blocks that differ."""

    def __init__(self, number: int, mode: int) -> None:
        self.number, self.mode = number, mode
        self.data, self.synced = bytearray(), bytearray()
        self.dirty: set[int] = set()
        self.links = 1
        self.changed = time.time_ns()

    def write(self, at: int, content: bytes | memoryview) -> None:
        if at > len(self.data):
            self.data.extend(bytes(at - len(self.data)))
        self.data[at : at + len(content)] = content
        self.dirty.update(range(at // BLOCK, (at + len(content) - 1) // BLOCK + 1))
        self.changed = time.time_ns()

    def truncate(self, size: int) -> None:
        old = len(self.data)
        if size < old:
            del self.data[size:]
        else:
            self.data.extend(bytes(size - old))
        self.dirty.update(range(min(size, old) // BLOCK, max(size, old) // BLOCK + 1))
        self.changed = time.time_ns()

    def sync(self) -> None:
        size = len(self.data)
        if len(self.synced) > size:
            del self.synced[size:]
        elif len(self.synced) < size:
            self.synced.extend(bytes(size - len(self.synced)))
        for block in self.dirty:
            self.synced[block * BLOCK : (block + 1) * BLOCK] = self.data[block * BLOCK : (block + 1) * BLOCK]
        self.dirty.clear()

    def lose(self, chance: random.Random, part: float) -> None:
        """Continue with what is on the disk: a ``part`` of the blocks that were not synced."""
        if self.dirty:
            found = bytearray(self.synced)
            if len(self.data) < len(found) and chance.random() < part:
                del found[len(self.data) :]
            for block in sorted(self.dirty):
                start = block * BLOCK
                content = self.data[start : start + BLOCK]
                if content and chance.random() < part:
                    if start > len(found):
                        found.extend(bytes(start - len(found)))
                    found[start : start + len(content)] = content
            self.data, self.synced = found, bytearray(found)
            self.dirty.clear()

    @property
    def size(self) -> int:
        return len(self.data)


class Folder:
    """A directory. ``names``: what processes see; ``synced``: what is on the disk."""

    size = 4096

    def __init__(self, number: int, mode: int) -> None:
        self.number, self.mode = number, mode
        self.names: dict[bytes, File | Folder] = {}
        self.synced: dict[bytes, File | Folder] = {}
        self.links = 1
        self.changed = time.time_ns()


Node = File | Folder
Change = tuple[tuple[Folder, bytes, Node | None], ...]  # names that change together; None: the name is removed


class Tree:
    """The files, as processes see them and as they are on the disk."""

    def __init__(self) -> None:
        self.root = Folder(1, stat.S_IFDIR | 0o755)
        self.nodes: dict[int, Node] = {1: self.root}
        self.changes: list[Change] = []  # not on the disk yet
        self._next = 2

    def make(self, mode: int) -> Node:
        node: Node = (Folder if stat.S_ISDIR(mode) else File)(self._next, mode)
        self.nodes[self._next] = node
        self._next += 1
        return node

    def change(self, *names: tuple[Folder, bytes, Node | None]) -> None:
        for folder, name, node in names:
            _set(folder.names, name, node)
            folder.changed = time.time_ns()
        self.changes.append(names)

    def sync_names(self, first: int | None = None) -> None:
        for change in self.changes[:first]:
            for folder, name, node in change:
                _set(folder.synced, name, node)
        self.changes.clear()

    def lose_power(self, chance: random.Random) -> None:
        """Continue with what is on the disk."""
        part = chance.choice((0.0, 1.0, 0.2, 0.5, 0.8))
        self.sync_names(0 if part == 0 else None if part == 1 else chance.randint(0, len(self.changes)))
        self.nodes.clear()
        self._recover(self.root, chance, part)

    def _recover(self, folder: Folder, chance: random.Random, part: float) -> None:
        self.nodes[folder.number] = folder
        folder.names = dict(folder.synced)
        for node in folder.names.values():
            if isinstance(node, Folder):
                self._recover(node, chance, part)
            elif node.number not in self.nodes:
                self.nodes[node.number] = node
                node.links = 1
                node.lose(chance, part)
            else:
                node.links += 1


def _set(names: dict[bytes, Node], name: bytes, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class RefusedError(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


class Mount:
    """Serves a tree at a directory."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.tree = Tree()
        self.fd = -1
        self._known: dict[int, int] = {}  # how often the kernel received an inode and has not forgotten it
        self._operations: dict[int, Callable[[Node, memoryview], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 8: self._mknod, 9: self._mkdir, 10: self._unlink,
            11: self._rmdir, 12: self._rename, 13: self._link, 14: self._open, 15: self._read, 16: self._write,
            17: self._statfs, 18: self._nothing, 20: self._fsync, 27: self._open, 28: self._readdir,
            29: self._nothing, 30: self._fsyncdir, 35: self._create, 45: self._rename2,
        }  # fmt: skip

    def mount(self) -> None:
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
        if _libc.mount(b"lossy", self.place.encode(), b"fuse", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(number, f"can't mount at {self.place}: {os.strerror(number)}")

    def unmount(self) -> None:
        os.close(self.fd)  # first: the kernel asks nothing more, not even to write what is in its cache
        _libc.umount2(self.place.encode(), DETACH)

    def serve(self) -> None:
        """Serve until the standard input ends."""
        commands = sys.stdin.buffer
        try:
            while True:
                ready, _, _ = select.select([self.fd, commands], [], [])
                if self.fd in ready:
                    self._request()
                elif not self._command(commands.readline().split()):
                    return
        finally:
            self.unmount()

    def _command(self, words: list[bytes]) -> bool:
        if not words:
            return False
        assert words[0] == b"power"
        self.unmount()
        self.tree.lose_power(random.Random(int(words[1])))
        self._known.clear()
        self.mount()
        print("ok", flush=True)
        return True

    def _request(self) -> None:
        try:
            request = os.read(self.fd, READ_SIZE)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the request was interrupted
                return
            raise
        _, operation, unique, number, *_ = HEADER.unpack_from(request)
        body = memoryview(request)[HEADER.size :]
        if operation in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET have no reply
            if operation == 2:
                self._forget(number, *struct.unpack_from("<Q", body))
            elif operation == 42:
                for at in range(struct.unpack_from("<I", body)[0]):
                    self._forget(*struct.unpack_from("<QQ", body, 8 + 16 * at))
            return
        code = 0
        try:
            if operation == 26:
                reply = self._init(body)
            elif operation not in self._operations:
                raise RefusedError(errno.ENOSYS)
            elif number not in self.tree.nodes:
                raise RefusedError(errno.ESTALE)
            else:
                reply = self._operations[operation](self.tree.nodes[number], body)
        except RefusedError as error:
            code, reply = error.number, b""
        try:
            os.write(self.fd, REPLY.pack(REPLY.size + len(reply), -code, unique) + reply)
        except OSError as error:
            if error.errno != errno.ENOENT:  # the request was interrupted
                raise

    # -- operations ------------------------------------------------------------------------------------------------
    def _init(self, body: memoryview) -> bytes:
        major, minor, readahead, flags = struct.unpack_from("<4I", body)
        assert major == 7
        assert minor >= 31, "this kernel is too old"
        wanted = flags & (1 | 1 << 3 | 1 << 5 | 1 << 22)  # ASYNC_READ, ATOMIC_O_TRUNC, BIG_WRITES, MAX_PAGES
        return struct.pack("<4IHHIIHHII24x", 7, 31, readahead, wanted, 16, 12, MAX_WRITE, 1, MAX_WRITE // 4096, 0, 0, 0)

    def _attributes(self, node: Node) -> bytes:
        seconds, nanos = divmod(node.changed, 10**9)
        times = (seconds, seconds, seconds, nanos, nanos, nanos)
        return ATTRIBUTES.pack(
            node.number, node.size, (node.size + 511) // 512, *times, node.mode, node.links, os.getuid(), os.getgid(),
            0, 4096, 0,
        )  # fmt: skip

    def _forget(self, number: int, times: int) -> None:
        self._known[number] = left = self._known.get(number, 0) - times
        node = self.tree.nodes.get(number)
        if left <= 0 and node is not None and node.links <= 0:
            del self.tree.nodes[number]

    def _entry(self, node: Node) -> bytes:
        self._known[node.number] = self._known.get(node.number, 0) + 1
        return ENTRY.pack(node.number, 0, FOREVER, FOREVER, 0, 0) + self._attributes(node)

    def _attr(self, node: Node) -> bytes:
        return struct.pack("<QII", FOREVER if isinstance(node, Folder) else 0, 0, 0) + self._attributes(node)

    def _nothing(self, node: Node, body: memoryview) -> bytes:
        return b""

    def _lookup(self, node: Node, body: memoryview) -> bytes:
        return self._entry(_named(node, _names(body)[0]))

    def _getattr(self, node: Node, body: memoryview) -> bytes:
        return self._attr(node)

    def _setattr(self, node: Node, body: memoryview) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & 8 and isinstance(node, File):
            node.truncate(size)
        if valid & 1:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(struct.unpack_from("<I", body, 68)[0])
        if valid & 32 and not valid & 256:  # utime() with a time
            node.changed = struct.unpack_from("<Q", body, 40)[0] * 10**9 + struct.unpack_from("<I", body, 60)[0]
        return self._attr(node)

    def _added(self, parent: Node, name: bytes, mode: int) -> Node:
        assert isinstance(parent, Folder)
        if name in parent.names:
            raise RefusedError(errno.EEXIST)
        node = self.tree.make(mode)
        self.tree.change((parent, name, node))
        return node

    def _mknod(self, node: Node, body: memoryview) -> bytes:
        (mode,) = struct.unpack_from("<I", body)
        return self._entry(self._added(node, _names(body[16:])[0], mode))

    def _mkdir(self, node: Node, body: memoryview) -> bytes:
        (mode,) = struct.unpack_from("<I", body)
        return self._entry(self._added(node, _names(body[8:])[0], stat.S_IFDIR | mode))

    def _create(self, node: Node, body: memoryview) -> bytes:
        _, mode = struct.unpack_from("<II", body)
        return self._entry(self._added(node, _names(body[16:])[0], stat.S_IFREG | mode)) + struct.pack("<QII", 0, 0, 0)

    def _unlink(self, node: Node, body: memoryview) -> bytes:
        (name,) = _names(body)
        found = _named(node, name)
        assert isinstance(node, Folder)
        found.links -= 1
        self.tree.change((node, name, None))
        return b""

    def _rmdir(self, node: Node, body: memoryview) -> bytes:
        found = _named(node, _names(body)[0])
        if isinstance(found, Folder) and found.names:
            raise RefusedError(errno.ENOTEMPTY)
        return self._unlink(node, body)

    def _rename(self, node: Node, body: memoryview, skip: int = 8) -> bytes:
        (number,) = struct.unpack_from("<Q", body)
        old, new = _names(body[skip:])
        moved, target = _named(node, old), self.tree.nodes[number]
        assert isinstance(node, Folder)
        assert isinstance(target, Folder)
        replaced = target.names.get(new)
        if isinstance(replaced, Folder) and replaced.names:
            raise RefusedError(errno.ENOTEMPTY)
        if replaced is not None:
            replaced.links -= 1
        self.tree.change((node, old, None), (target, new, moved))
        return b""

    def _rename2(self, node: Node, body: memoryview) -> bytes:
        _, flags = struct.unpack_from("<QI", body)
        if flags:
            raise RefusedError(errno.EINVAL)
        return self._rename(node, body, 16)

    def _link(self, node: Node, body: memoryview) -> bytes:
        (number,) = struct.unpack_from("<Q", body)
        (name,), linked = _names(body[8:]), self.tree.nodes[number]
        assert isinstance(node, Folder)
        if name in node.names:
            raise RefusedError(errno.EEXIST)
        linked.links += 1
        self.tree.change((node, name, linked))
        return self._entry(linked)

    def _open(self, node: Node, body: memoryview) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        if flags & os.O_TRUNC and isinstance(node, File):
            node.truncate(0)
        return struct.pack("<QII", 0, 2, 0)  # the kernel keeps its cache of the content

    def _read(self, node: Node, body: memoryview) -> bytes:
        _, at, size = struct.unpack_from("<QQI", body)
        assert isinstance(node, File)
        return bytes(node.data[at : at + size])

    def _write(self, node: Node, body: memoryview) -> bytes:
        _, at, size, _, _, flags = struct.unpack_from("<QQIIQI", body)
        assert isinstance(node, File)
        node.write(at, body[40 : 40 + size])
        if flags & os.O_DSYNC:
            node.sync()
        return struct.pack("<II", size, 0)

    def _statfs(self, node: Node, body: memoryview) -> bytes:
        blocks = SPACE // 4096
        return struct.pack("<5Q4I24x", blocks, blocks // 2, blocks // 2, 1 << 20, 1 << 19, 4096, 255, 4096, 0)

    def _fsync(self, node: Node, body: memoryview) -> bytes:
        assert isinstance(node, File)
        node.sync()
        return b""

    def _fsyncdir(self, node: Node, body: memoryview) -> bytes:
        self.tree.sync_names()
        return b""

    def _readdir(self, node: Node, body: memoryview) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        assert isinstance(node, Folder)
        reply = b""
        for at, (name, found) in enumerate(list(node.names.items())[offset:], offset + 1):
            entry = struct.pack("<QQII", found.number, at, len(name), found.mode >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(reply) + len(entry) > size:
                break
            reply += entry
        return reply


def _names(body: memoryview) -> list[bytes]:
    return bytes(body).split(b"\0")[:-1]


def _named(folder: Node, name: bytes) -> Node:
    assert isinstance(folder, Folder)
    found = folder.names.get(name)
    if found is None:
        raise RefusedError(errno.ENOENT)
    return found


class LossyDirectory:
    """The process that serves a directory. Raises OSError if nothing can be mounted here."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.storm.lossy", str(place)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        if not self._reply():
            raise OSError(self._process.communicate()[1].strip().splitlines()[-1])

    def lose_power(self, seed: int) -> None:
        """Lose what is not synced. No process may use the files."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"power {seed}\n")
        self._process.stdin.flush()
        assert self._reply(), "the file system has ended"

    def _reply(self) -> bool:
        assert self._process.stdout is not None
        return self._process.stdout.readline() == "ok\n"

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    mount = Mount(sys.argv[1])
    mount.mount()
    print("ok", flush=True)
    mount.serve()


if __name__ == "__main__":
    main()
