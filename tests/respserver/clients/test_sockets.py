"""Sockets that the server reads itself: turns, their ends, and what goes wrong in them."""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from resp.decode import Call
from respserver.clients.connection import Connection
from respserver.clients.sockets import AVAILABLE, SocketReader, Sockets
from respserver.runtime.ticks import Ticks
from tests.respserver.local import LocalServer, Peer, pack

pytestmark = [
    pytest.mark.skipif(not AVAILABLE, reason="nothing is compiled here: transports read all sockets"),
    pytest.mark.interpreted,  # readers of the tests derive from that of the server
]


class Turns:
    """Stands for the ticks: notes when turns begin and end."""

    def __init__(self) -> None:
        self.noted: list[object] = []

    def begin_turn(self) -> None:
        self.noted.append("begin")

    def end_turn(self) -> None:
        self.noted.append("end")


class Ear(SocketReader):
    """Notes what it is told, then does what the test says."""

    def __init__(self, turns: Turns, sockets: Sockets, pair: tuple[socket.socket, socket.socket]) -> None:
        super().__init__()
        self.here, self.there = pair
        self.here.setblocking(False)
        self.fd = self.here.fileno()
        self.then: Callable[[], None] = lambda: None
        self._noted = turns.noted
        self._sockets = sockets
        sockets.start(self.fd, self)

    def received(self, data: bytes) -> None:
        self._noted.append(data)
        self.then()

    def ended(self, error: int) -> None:
        self._noted.append(error)
        self._sockets.stop(self.fd, self)

    def failed(self, error: Exception) -> None:
        self._noted.append(error)


Make = Callable[..., Ear]


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def sockets(turns: Turns) -> Iterator[Sockets]:
    loop = asyncio.new_event_loop()
    made = Sockets(loop, cast(Ticks, turns))
    yield made
    made.close()
    loop.close()


@pytest.fixture
def ear(turns: Turns, sockets: Sockets) -> Iterator[Make]:
    """Makes one, on a socket pair or the given one."""
    made: list[Ear] = []

    def make(pair: tuple[socket.socket, socket.socket] | None = None) -> Ear:
        made.append(Ear(turns, sockets, pair or socket.socketpair()))
        return made[-1]

    yield make
    for one in made:
        sockets.stop(one.fd, one)
        one.here.close()
        one.there.close()


def heard(turns: Turns, sockets: Sockets) -> list[object]:
    """What is noted in one turn."""
    turns.noted.clear()
    sockets.turn()
    assert (turns.noted[0], turns.noted[-1]) == ("begin", "end")
    return turns.noted[1:-1]


def test_a_turn_reads_what_has_arrived_on_all_sockets(turns: Turns, sockets: Sockets, ear: Make) -> None:
    ears = [ear() for _ in range(3)]
    assert heard(turns, sockets) == []
    ears[0].there.send(b"a")
    ears[2].there.send(b"c")
    assert sorted(cast(list[bytes], heard(turns, sockets))) == [b"a", b"c"]
    assert heard(turns, sockets) == []


def test_a_turn_ends_after_some_time_and_the_next_one_goes_on(turns: Turns, sockets: Sockets, ear: Make) -> None:
    ears = [ear() for _ in range(3)]
    for one in ears:
        one.there.send(b"x")
        one.then = lambda: time.sleep(0.03)
    for left in (2, 1, 0):
        assert sockets.turn()
        assert turns.noted.count(b"x") == 3 - left
    assert not sockets.turn()


def test_what_does_not_fit_into_a_chunk_is_read_in_the_same_turn(turns: Turns, sockets: Sockets, ear: Make) -> None:
    one = ear()
    one.there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    one.there.setblocking(False)
    sent = bytes(range(256)) * 1200  # 300 KB
    if one.there.send(sent) < len(sent):
        pytest.skip("the system's buffers are too small here")
    chunks = cast(list[bytes], heard(turns, sockets))
    assert len(chunks) == 2
    assert b"".join(chunks) == sent


def test_a_client_that_was_alone_for_long_does_not_overtake(turns: Turns, sockets: Sockets, ear: Make) -> None:
    one, other = ear(), ear()
    for data in (b"1", b"1" * 20_000):
        for _ in range(50):
            one.there.send(data)
            assert heard(turns, sockets) == [data]
        one.there.send(data)
        other.there.send(b"2")
        assert sorted(cast(list[bytes], heard(turns, sockets))) == [data, b"2"]


def test_the_end_and_an_error_are_told_once(turns: Turns, sockets: Sockets, ear: Make) -> None:
    one = ear()
    one.there.send(b"last")
    one.there.close()
    assert heard(turns, sockets) == [b"last"]
    assert heard(turns, sockets) == [0]
    assert heard(turns, sockets) == []
    listener = socket.create_server(("127.0.0.1", 0))
    there = socket.create_connection(listener.getsockname())
    one = ear((listener.accept()[0], there))
    one.there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.there.close()  # resets the connection
    assert heard(turns, sockets) == [104]
    assert heard(turns, sockets) == []
    listener.close()


def test_a_reader_that_another_one_stops_is_not_called_any_more(turns: Turns, sockets: Sockets, ear: Make) -> None:
    def end(one: Ear) -> None:
        sockets.stop(one.fd, one)
        one.here.close()

    ears = [ear(), ear()]
    for one, other in zip(ears, reversed(ears), strict=True):
        one.then = functools.partial(end, other)
        one.there.send(b"x")
    assert heard(turns, sockets) == [b"x"]
    assert heard(turns, sockets) == []


def test_stopped_sockets_keep_what_arrives(turns: Turns, sockets: Sockets, ear: Make) -> None:
    one = ear()
    sockets.stop(one.fd, one)
    sockets.stop(one.fd, one)
    one.there.send(b"x")
    assert heard(turns, sockets) == []
    sockets.start(one.fd, one)
    sockets.start(one.fd, one)
    assert heard(turns, sockets) == [b"x"]
    sockets.stop(one.fd, ear())  # not the one that reads it
    one.there.send(b"y")
    assert heard(turns, sockets) == [b"y"]


def test_a_bug_is_told_to_its_reader_and_others_are_read(turns: Turns, sockets: Sockets, ear: Make) -> None:
    def bug() -> None:
        raise KeyError(1)

    ears = [ear(), ear()]
    for one in ears:
        one.then = bug
        one.there.send(b"x")
    noted = heard(turns, sockets)
    assert [str(what) if isinstance(what, KeyError) else what for what in noted] == [b"x", "1", b"x", "1"]


def test_what_ends_the_program_ends_the_turn(turns: Turns, sockets: Sockets, ear: Make) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    one = ear()
    one.then = stop
    one.there.send(b"x")
    with pytest.raises(KeyboardInterrupt):
        sockets.turn()
    assert turns.noted == ["begin", b"x", "end"]


def test_after_the_end_nothing_is_read_and_stopping_is_harmless(turns: Turns, ear: Make) -> None:
    loop = asyncio.new_event_loop()
    made = Sockets(loop, cast(Ticks, turns))
    one = ear()
    made.start(one.fd, one)
    made.close()
    made.stop(one.fd, one)
    with pytest.raises(OSError, match="has ended"):
        made.start(one.fd, one)
    loop.close()


def test_a_send_says_how_much_the_socket_has_taken(turns: Turns, sockets: Sockets, ear: Make) -> None:
    one = ear()
    assert sockets.send(one.fd, b"abc") == 3
    assert one.there.recv(10) == b"abc"
    data = b"x" * (16 << 20)
    assert 0 < sockets.send(one.fd, data) < len(data)
    assert sockets.send(one.fd, b"more") == -1
    one.there.close()
    assert sockets.send(one.fd, b"more") == -1


# -- connections --------------------------------------------------------------------------------------------------
@pytest.fixture
def pair(local: LocalServer) -> Iterator[tuple[Peer, socket.socket]]:
    """A connection with a socket, and the client's end of that."""
    here, there = socket.socketpair()
    here.setblocking(False)
    peer = local.connect()
    peer.wire.info["socket"] = here
    yield peer, there
    here.close()
    there.close()


def test_a_connection_leaves_its_transport_with_the_first_chunk(
    local: LocalServer, pair: tuple[Peer, socket.socket]
) -> None:
    peer, there = pair
    assert peer.wire.reading
    peer.send("PING")
    assert not peer.wire.reading
    local.settle()
    assert there.recv(100) == b"+PONG\r\n"
    there.send(pack("SET", "k", "v") + pack("GET", "k"))
    local.settle()
    assert there.recv(100) == b"+OK\r\n$1\r\nv\r\n"
    assert peer.taken() == b""


def test_what_the_socket_does_not_take_is_left_to_the_transport(
    local: LocalServer, pair: tuple[Peer, socket.socket]
) -> None:
    peer, there = pair
    peer.wire.full = True
    value = bytes(range(256)) * 40_000
    peer.ask("SET", "k", value)
    there.recv(100)
    there.send(pack("GET", "k"))
    local.settle()
    left = peer.taken()
    assert left
    got = b""
    there.setblocking(False)
    for _ in range(10_000):
        try:
            got += there.recv(1 << 20)
        except BlockingIOError:
            break
    assert got + left == b"$%d\r\n%b\r\n" % (len(value), value)
    there.send(pack("PING"))  # the socket has room, but the transport comes first
    local.settle()
    assert peer.taken() == b""
    peer.wire.drain()
    local.settle()
    assert peer.taken() + there.recv(100) == b"+PONG\r\n"
    there.send(pack("PING"))
    local.settle()
    assert there.recv(100) == b"+PONG\r\n"


def test_a_connection_that_is_closed_or_handed_over_is_read_no_more(
    local: LocalServer, pair: tuple[Peer, socket.socket]
) -> None:
    peer, there = pair
    peer.ask("PING")
    there.recv(100)
    peer.conn.hand_over()
    there.send(pack("SET", "k", "v"))
    local.settle()
    assert local.connect().ask("EXISTS", "k") == b":0\r\n"
    assert not peer.wire.reading


def test_a_system_that_watches_no_more_sockets_leaves_them_to_transports(
    local: LocalServer, pair: tuple[Peer, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(fd: int, reader: Connection) -> None:
        raise OSError(28, "No space left on device")

    peer, _ = pair
    monkeypatch.setattr(peer.conn.socket._sockets, "start", refused)
    assert peer.ask("PING") == b"+PONG\r\n"
    assert peer.wire.reading, "it goes on there"
    assert peer.ask("PING") == b"+PONG\r\n"


def test_a_bug_in_a_turn_closes_that_client_alone(local: LocalServer, pair: tuple[Peer, socket.socket]) -> None:
    peer, there = pair
    peer.ask("PING")
    told: list[object] = []
    local.loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    error = ValueError("the test says so")

    def broken(data: bytes) -> list[Call]:
        raise error

    peer.conn.input.decoder.calls = broken  # type: ignore[method-assign]
    there.send(pack("PING"))
    local.settle()
    assert told == [error]
    assert peer.wire.aborted
    assert local.connect().ask("PING") == b"+PONG\r\n"


def test_a_server_that_can_not_start_reads_no_sockets(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = LocalServer(tmp_path, port=str(taken.getsockname()[1]), bind="127.0.0.1")
        with pytest.raises(OSError, match="in use"):
            local.loop.run_until_complete(local.server.start())
        sockets = local.server._sockets
        assert sockets is not None
        with pytest.raises(OSError, match="has ended"):
            sockets.start(taken.fileno(), cast(SocketReader, None))
        local.loop.close()
