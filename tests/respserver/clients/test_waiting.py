"""A loop of uvloop waits in _sockets.c: the sockets are read, and the loop's own work is not late."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from respserver.clients.sockets import AVAILABLE, SocketReader, Sockets
from respserver.runtime.ticks import Ticks
from tests.respserver.clients.test_sockets import Ear, Turns

uvloop = pytest.importorskip("uvloop")
pytestmark = [
    pytest.mark.skipif(not AVAILABLE, reason="nothing is compiled here: transports read all sockets"),
    pytest.mark.interpreted,  # readers of the tests derive from that of the server
]
LATE = 10  # seconds, much more than anything here takes


class Stage:
    """A loop with an ear, which hears whatever is sent to it. While nothing is sent, the loop has nothing to do."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.turns = Turns()
        self.sockets = Sockets(self.loop, cast(Ticks, self.turns))
        self.ear = Ear(self.turns, self.sockets, socket.socketpair())

    def run(self, then: Callable[[], object]) -> None:
        """Send a byte to the ear, call ``then`` when it is received, and wait for the loop's stop()."""
        self.ear.then = lambda: cast(None, then())
        late = self.loop.call_later(LATE, self._late)
        sender = threading.Timer(0.02, self.ear.there.send, (b"x",))  # when the loop has nothing else to do
        sender.start()
        self.loop.run_forever()
        sender.join()
        late.cancel()
        assert not self.is_late

    is_late = False

    def _late(self) -> None:
        self.is_late = True
        self.loop.stop()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    assert made.sockets._waiting is not None, "the loop waits in C"
    yield made
    made.sockets.close()
    made.sockets.close()
    made.loop.close()
    made.ear.here.close()
    made.ear.there.close()


def test_a_turn_is_taken_when_bytes_arrive(stage: Stage) -> None:
    stage.run(stage.loop.stop)
    assert stage.turns.noted == ["begin", b"x", "end"]


def test_a_call_of_a_turn_runs_soon(stage: Stage) -> None:
    stage.run(lambda: stage.loop.call_soon(stage.loop.stop))


def test_a_call_from_another_thread_runs_soon(stage: Stage) -> None:
    thread = threading.Thread(target=lambda: stage.loop.call_soon_threadsafe(stage.loop.stop))
    stage.run(thread.start)
    thread.join()


def test_timers_are_on_time_while_bytes_keep_arriving(stage: Stage) -> None:
    began = stage.loop.time()
    called: list[float] = []

    def on_time() -> None:
        called.append(stage.loop.time() - began)
        stage.loop.stop()

    stage.loop.call_later(0.05, on_time)
    stage.run(lambda: stage.ear.there.send(b"x"))
    assert called[0] >= 0.049


def test_a_timer_of_a_turn_does_not_end_early(stage: Stage) -> None:
    """The loop compares its timers with a time that it has read before."""
    delays: list[float] = []

    def begin() -> None:
        began = stage.loop.time()
        stage.loop.call_later(0.05, end, began)

    def end(began: float) -> None:
        delays.append(stage.loop.time() - began)
        stage.loop.stop()

    threading.Timer(0.1, lambda: stage.ear.there.send(b"x")).start()
    stage.ear.then = begin
    stage.loop.call_later(LATE, stage.loop.stop)
    stage.loop.run_forever()
    assert len(delays) == 1
    assert delays[0] >= 0.049


def test_descriptors_that_a_turn_adds_are_watched(stage: Stage) -> None:
    here, there = socket.socketpair()
    there.send(b"x")
    stage.run(lambda: stage.loop.add_reader(here, stage.loop.stop))
    stage.loop.remove_reader(here)
    here.close()
    there.close()


def test_what_a_turn_writes_to_a_transport_is_sent(stage: Stage) -> None:
    here, there = socket.socketpair()
    got: list[bytes] = []

    def read() -> None:
        got.append(there.recv(10))
        stage.loop.stop()

    stage.loop.add_reader(there, read)

    async def connect() -> asyncio.WriteTransport:
        transport, _ = await stage.loop.create_connection(asyncio.Protocol, sock=here)
        return transport

    transport = stage.loop.run_until_complete(connect())
    stage.run(lambda: transport.write(b"abc"))
    assert got == [b"abc"]
    stage.loop.remove_reader(there)
    transport.close()
    there.close()
    stage.loop.run_until_complete(asyncio.sleep(0))


def test_events_of_the_loop_are_handled_while_bytes_keep_arriving(stage: Stage) -> None:
    here, there = socket.socketpair()
    there.send(b"x")
    stage.loop.add_reader(here, stage.loop.stop)
    stage.run(lambda: stage.ear.there.send(b"x"))
    stage.loop.remove_reader(here)
    here.close()
    there.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_the_loop(stage: Stage, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        stage.run(fail)
    assert stage.turns.noted == ["begin", b"x", "end"]


def test_sockets_that_a_turn_closes_are_read_no_more(stage: Stage) -> None:
    def close() -> None:
        stage.sockets.close()
        stage.ear.there.send(b"y")
        stage.loop.call_later(0.01, stage.loop.stop)

    stage.run(close)
    assert stage.turns.noted == ["begin", b"x", "end"]


def test_other_loops_watch_the_set() -> None:
    loop = asyncio.new_event_loop()
    turns = Turns()
    sockets = Sockets(loop, cast(Ticks, turns))
    assert sockets._waiting is None
    ear = Ear(turns, sockets, socket.socketpair())
    ear.then = loop.stop
    ear.there.send(b"x")
    loop.run_forever()
    assert turns.noted == ["begin", b"x", "end"]
    sockets.stop(ear.fd, cast(SocketReader, ear))
    sockets.close()
    loop.close()
    ear.here.close()
    ear.there.close()
