"""The network between members, clients and the coordinator: a TCP proxy in front of each of them.

Places are named: ``m1``, ``c2``, ``etcd``. A link is a pair of places. Its two directions can be silenced and delayed
separately; its connections can be closed or reset.

Rule 1: a silent direction passes nothing on and closes nothing, also no end of file; what it holds arrives later, as
        TCP would send it again.
Rule 2: a connection over a link that is cut is closed, and a new one is closed before a byte passes.
Rule 3: members connect to one address of each other member. The proxy looks up which process connects, in /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable

CHUNK = 1 << 16  # bytes read at once
Link = tuple[str, str]


class Direction:
    """What happens to the bytes of one direction of a link."""

    def __init__(self) -> None:
        self.passes = asyncio.Event()
        self.passes.set()
        self.delay = 0.0  # seconds that each chunk is late


class Network:
    """All proxies of a run."""

    def __init__(self, process_of: Callable[[str], int | None]) -> None:
        """``process_of``: the process of a member; None while it does not run."""
        self.directions: dict[Link, Direction] = {}
        self.cut: set[frozenset[str]] = set()
        self.passed = 0  # bytes
        self._process_of = process_of
        self._members: list[str] = []
        self._open: dict[frozenset[str], set[asyncio.StreamWriter]] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def direction(self, source: str, target: str) -> Direction:
        return self.directions.setdefault((source, target), Direction())

    async def listen(self, target: str, port: int, source: str | None = None) -> int:
        """Return a new port that leads to ``port`` of ``target``. ``source`` connects to it; None: any member."""
        if source is None:
            self._members.append(target)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                name = source or self._member_at(writer.get_extra_info("peername")[1])
                if name is None:
                    writer.close()
                else:
                    await self._connection(name, target, port, reader, writer)
            except (OSError, asyncio.CancelledError):  # the end of a run cancels
                pass
            finally:
                self._tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=CHUNK)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- faults ----------------------------------------------------------------------------------------------------
    def silence(self, source: str, target: str, silent: bool = True) -> None:
        direction = self.direction(source, target)
        if silent:
            direction.passes.clear()
        else:
            direction.passes.set()

    def close_link(self, one: str, other: str, reset: bool = False) -> None:
        """Close the link's connections."""
        for writer in list(self._open.get(frozenset((one, other)), ())):
            if reset:
                sock = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def heal(self) -> None:
        self.cut.clear()
        for direction in self.directions.values():
            direction.passes.set()
            direction.delay = 0.0

    # -- connections -----------------------------------------------------------------------------------------------
    def _member_at(self, port: int) -> str | None:
        """Return the member that has this local port."""
        inode = _inode_at(port)
        for name in self._members:
            process = self._process_of(name)
            if inode is not None and process is not None and _has_socket(process, inode):
                return name
        return None

    async def _connection(
        self, source: str, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        link = frozenset((source, target))
        if link in self.cut:
            return
        writers = self._open.setdefault(link, set())
        writers.add(writer)
        there, back = self.direction(source, target), self.direction(target, source)
        try:
            await there.passes.wait()  # a first packet that gets no answer
            await back.passes.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
            writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, far_writer, there))
                    group.create_task(self._pump(far_reader, writer, back))
            except* OSError:
                pass
            finally:
                writers.discard(far_writer)
                far_writer.close()
        finally:
            writers.discard(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        while data := await reader.read(CHUNK):
            if direction.delay:
                await asyncio.sleep(direction.delay)
            if not direction.passes.is_set():
                await direction.passes.wait()
            self.passed += len(data)
            writer.write(data)
            await writer.drain()
        await direction.passes.wait()
        raise ConnectionResetError  # both directions end


def _inode_at(port: int) -> str | None:
    """Return the inode of the socket with this local port of 127.0.0.1."""
    wanted = f"0100007F:{port:04X}"
    with open("/proc/net/tcp") as table:
        for line in table:
            words = line.split()
            if words[1] == wanted and words[9] != "0":
                return words[9]
    return None


def _has_socket(process: int, inode: str) -> bool:
    folder = f"/proc/{process}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{name}") == f"socket:[{inode}]":
                return True
    return False
