"""Every deadline of one server, against every disturbance of its time: clock steps, a suspended machine, a stall, a
refusal of writes. The clock of a deadline decides its effect, as the table of docs/internals/time.md states."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from respserver.runtime.confirmation import Confirmation
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.waiting import eventually
from tests.wire.rawclient import Raw

SPAN, BEFORE = 3000, 1000  # ms: of each deadline, and those that pass before the disturbance
LEFT = SPAN - BEFORE
HOUR = 3_600_000
WITHIN = 300  # ms by which a deadline may be seen too late
WALL, MONOTONIC, SERVED = "wall", "monotonic", "served"

Check = Callable[[], bool]


class Scene:
    """A server with its deadlines. Each of ``over`` returns whether the deadline has passed."""

    def __init__(self, hand: RunningServer) -> None:
        self.hand = hand
        self.opened: list[Raw] = []
        self._raw = self.connect()
        self.over: dict[str, tuple[str, Check]] = {}

    def connect(self) -> Raw:
        self.opened.append(Raw(self.hand.port))
        return self.opened[-1]

    def c(self, *words: Any) -> Any:
        """Call the server, through a new connection if the server has closed the last one (``timeout``)."""
        try:
            return self._raw(*words)
        except (EOFError, ConnectionError):
            self._raw = self.connect()
            return self._raw(*words)

    def answered(self, *call: Any) -> Check:
        """Send a call that waits. The result returns whether the reply has arrived, or the connection was closed."""
        waiter = self.connect()
        waiter.send(*call)
        return lambda: bool(select.select([waiter.sock], [], [], 0)[0])

    def arm(self) -> None:
        c = self.c
        for key in ("jobs", "late", "expiring", "retried", "returned", "touched", "idle", "claimed"):
            c("XADD", key, "1-1", "f", "v")
        self._wall(c)
        self._monotonic(c)
        self._served(c)

    def _wall(self, c: Callable[..., Any]) -> None:
        c("SET", "key", "v", "PX", SPAN)
        for key in ("idle", "claimed"):
            c("XGROUP", "CREATE", key, "g", "0")
            c("XREADGROUP", "GROUP", "g", "me", "STREAMS", key, ">")
        produce = ("XADD", "produced", "IDMP", "p", "1", "*", "f", "v")
        c("XADD", "produced", "*", "f", "v")
        c("XCFGSET", "produced", "IDMP-DURATION", SPAN // 1000)
        first = c(*produce)
        c("TDELAY", "at", "AT", self.hand.call(self.hand.server.clock.now) + SPAN, "f", "v")
        self.over.update({
            "TDELAY AT": (WALL, lambda: bool(c("TLEN", "at"))),
            "expiry of a key": (WALL, lambda: not c("EXISTS", "key")),
            "PTTL": (WALL, lambda: c("PTTL", "key") == -2),
            "XPENDING IDLE": (WALL, lambda: bool(c("XPENDING", "idle", "g", "IDLE", SPAN, "-", "+", 1))),
            "XREADGROUP CLAIM": (WALL, self.answered(
                "XREADGROUP", "GROUP", "g", "you", "BLOCK", 0, "CLAIM", SPAN, "STREAMS", "claimed", ">")),
            "IDMP": (WALL, lambda: c(*produce) != first),
        })  # fmt: skip

    def _monotonic(self, c: Callable[..., Any]) -> None:
        c("XGROUP", "CREATE", "empty", "g", "$", "MKSTREAM")
        checkpoints = self.hand.server.checkpoints
        c("CONFIG", "SET", "save", f"{SPAN // 1000} 1")
        c("CONFIG", "SET", "timeout", SPAN // 1000)
        silent = self.answered("PING")
        self.opened[-1].read()
        self.over.update({
            "XREAD BLOCK": (MONOTONIC, self.answered("XREAD", "BLOCK", SPAN, "STREAMS", "empty", "$")),
            "XREADGROUP BLOCK": (MONOTONIC, self.answered(
                "XREADGROUP", "GROUP", "g", "me", "BLOCK", SPAN, "STREAMS", "empty", ">")),
            "TREAD BLOCK": (MONOTONIC, self.answered("TREAD", "empty", "", 1, "BLOCK", SPAN)),
            "TREAD GROUP BLOCK": (MONOTONIC, self.answered("TREAD", "empty", "", 1, "BLOCK", SPAN, "GROUP", "t", 0)),
            "TWAIT": (MONOTONIC, self.answered("TWAIT", SPAN, "empty", "0")),
            "WAIT": (MONOTONIC, self.answered("WAIT", 1, SPAN)),
            "WAITAOF": (MONOTONIC, self.answered("WAITAOF", 0, 1, SPAN)),
            "timeout": (MONOTONIC, silent),
            "save": (MONOTONIC, lambda: bool(checkpoints.running or checkpoints.saves.count)),
        })  # fmt: skip

    def _served(self, c: Callable[..., Any]) -> None:
        def lent(key: str, retry: int, expire: int, *more: Any) -> Check:
            c("TREAD", key, "0", 1, "GROUP", "g", 0, "RETRY", retry, expire, "DEADLETTER", f"dead:{key}", *more)
            return lambda: bool(c("TLEN", f"dead:{key}"))

        def due_again(key: str) -> Check:
            return self.answered("TREAD", key, "", 1, "BLOCK", 0, "GROUP", "g", 0)

        c("TREAD", "jobs", "", 1, "GROUP", "ttl", SPAN)
        c("TSTAGE", "stage", SPAN, "out", "FIELDS", 1, "f", "VALUES", "a")
        c("TDELAY", "in", "IN", SPAN, "f", "v")
        late = lent("late", SPAN, 0, "MAXDELIVERIES", 1)
        expiring = lent("expiring", HOUR, SPAN)
        for key in ("retried", "returned", "touched"):
            lent(key, HOUR if key != "retried" else SPAN, 0)
        c("TNACK", "returned", "g", "DELAY", SPAN, "1.1")
        c("TTOUCH", "touched", "g", SPAN, "1.1")
        self.over.update({
            "time to live of a group": (SERVED, lambda: str(c("TPENDING", "jobs", "ttl")).startswith("NOGROUP")),
            "time to live of a stage": (SERVED, lambda: b"stages:0" in c("INFO", "streams")),
            "TDELAY IN": (SERVED, lambda: bool(c("TLEN", "in"))),
            "retry-ms": (SERVED, due_again("retried")),
            "MAXDELIVERIES": (SERVED, late),
            "expire-ms": (SERVED, expiring),
            "TNACK DELAY": (SERVED, due_again("returned")),
            "TTOUCH": (SERVED, due_again("touched")),
        })  # fmt: skip

    def settle(self) -> None:
        """Wait for the work that follows a stall, which takes another turn of the event loop."""
        eventually(lambda: self.hand.call(lambda: self.hand.server._after_stall is None))

    def observe(self, ms: int) -> dict[str, int | None]:
        """Return after how many ms each deadline passed; 0: at once; None: not within ``ms``."""
        seen: dict[str, int | None] = dict.fromkeys(self.over)
        for passed in range(0, ms + 1, 100):
            if passed:
                self.hand.advance(100)
            self.settle()
            self.c("PING")
            for name, (_, over) in self.over.items():
                if seen[name] is None and over():
                    seen[name] = passed
        return seen


@pytest.fixture
def scene() -> Iterator[Scene]:
    with start_in_thread(clock=HandClock(), enable_debug_command="yes") as hand:
        made = Scene(hand)
        yield made
        for raw in made.opened:
            raw.close()


def nothing(_: Scene) -> None:
    pass


def set_forward(scene: Scene) -> None:
    scene.hand.call(lambda: scene.hand.server.clock.set(HOUR))  # type: ignore[attr-defined]
    scene.hand.advance(100)


def set_back(scene: Scene) -> None:
    scene.hand.call(lambda: scene.hand.server.clock.set(-HOUR))  # type: ignore[attr-defined]
    scene.hand.advance(100)


def stop(scene: Scene) -> None:
    """SIGSTOP, a long step of the event loop."""
    scene.hand.stall(SPAN + 1000)
    scene.hand.advance(100)


def refuse(scene: Scene) -> None:
    scene.c("CONFIG", "SET", "min-replicas-to-write", 1)
    scene.hand.advance(SPAN + 1000)
    scene.c("CONFIG", "SET", "min-replicas-to-write", 0)


def out_of_memory(scene: Scene) -> None:
    """Beyond maxmemory, commands that delete entries and acknowledge messages are accepted."""
    scene.c("CONFIG", "SET", "maxmemory", 1)
    scene.hand.advance(SPAN + 1000)
    scene.c("CONFIG", "SET", "maxmemory", 0)


class Silent(Confirmation):
    """As the confirmation of a leader of a server group without a valid lease."""

    def confirmed(self) -> int:
        return -1


def lose_lease(scene: Scene) -> None:
    """The server executes commands, but releases no reply. (Here it does: the test could not observe it otherwise.)"""
    ticks = scene.hand.server.ticks
    confirmation, ticks.confirmation = ticks.confirmation, Silent()
    scene.hand.advance(SPAN + 1000)
    ticks.confirmation = confirmation


def pause(scene: Scene) -> None:
    scene.c("CLIENT", "PAUSE", SPAN + 1000, "WRITE")
    scene.hand.advance(SPAN + 1000)


DISTURBANCES: dict[str, tuple[Callable[[Scene], None], dict[str, int | None]]] = {
    "nothing": (nothing, {WALL: LEFT, MONOTONIC: LEFT, SERVED: LEFT}),
    # the same happens if the machine was suspended, since CLOCK_MONOTONIC stops meanwhile
    "forward": (set_forward, {WALL: 0, MONOTONIC: LEFT, SERVED: LEFT}),
    "back": (set_back, {WALL: None, MONOTONIC: LEFT, SERVED: LEFT}),
    "stop": (stop, {WALL: 0, MONOTONIC: 0, SERVED: LEFT}),
    "NOREPLICAS": (refuse, {WALL: 0, MONOTONIC: 0, SERVED: LEFT}),
    "CLIENT PAUSE": (pause, {WALL: 0, MONOTONIC: 0, SERVED: LEFT}),
    "no lease": (lose_lease, {WALL: 0, MONOTONIC: 0, SERVED: LEFT}),
    "OOM": (out_of_memory, {WALL: 0, MONOTONIC: 0, SERVED: 0}),
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_the_clock_of_each_deadline(scene: Scene, name: str) -> None:
    disturb, expected = DISTURBANCES[name]
    scene.arm()
    scene.hand.advance(BEFORE)
    assert not [each for each, (_, over) in scene.over.items() if over()]
    disturb(scene)
    wrong = dict[str, tuple[int | None, int | None]]()
    for each, passed in scene.observe(LEFT + WITHIN).items():
        after = expected[scene.over[each][0]]
        if passed is not after and (passed is None or after is None or abs(passed - after) > WITHIN):
            wrong[each] = passed, after
    assert not wrong, "observed and expected ms until each deadline passed"


@pytest.mark.parametrize(("by", "mode"), [(HOUR, "ALL"), (-HOUR, "ALL"), (-HOUR, "WRITE"), (0, "WRITE")])
def test_a_pause_lasts_as_long_as_asked(scene: Scene, by: int, mode: str) -> None:
    waiting = scene.connect()
    scene.c("CLIENT", "PAUSE", SPAN, mode)
    waiting.send("SET", "k", "v")
    scene.hand.advance(BEFORE)
    scene.hand.call(lambda: scene.hand.server.clock.set(by))  # type: ignore[attr-defined]
    scene.hand.advance(LEFT - WITHIN)
    assert waiting.nothing_yet()
    scene.hand.advance(WITHIN)
    assert waiting.read() == b"OK"


def test_ids_never_decrease_and_tappev_time_follows_the_wall_clock(scene: Scene) -> None:
    clock, c = scene.hand.server.clock, scene.c
    ids = list[list[int]]()
    for step in (0, HOUR, -2 * HOUR, HOUR):
        scene.hand.call(lambda by=step: clock.set(by))  # type: ignore[misc,attr-defined]
        for call in (("TAPPEND", "s"), ("XADD", "s", "*")):
            ids.append([int(part) for part in c(*call, "f", "v").replace(b"-", b".").split(b".")])
    assert ids == sorted(ids)
    assert len({tuple(each) for each in ids}) == len(ids)
    scene.hand.call(lambda: clock.set(-HOUR))  # type: ignore[attr-defined]
    c("TAPPEV", "s", "TIME", 1, "f", "v")  # retains entries of the last ms, and of the future
    assert c("TLEN", "s") == 9
    scene.hand.call(lambda: clock.set(3 * HOUR))  # type: ignore[attr-defined]
    c("TAPPEV", "s", "TIME", 1, "f", "v")
    assert c("TLEN", "s") == 1


def test_times_of_the_past_are_not_negative(scene: Scene) -> None:
    """After the wall clock was set back, what happened before is in the future."""
    c = scene.c
    c("XADD", "s", "*", "f", "v")
    c("XGROUP", "CREATE", "s", "g", "0")
    c("XREADGROUP", "GROUP", "g", "me", "STREAMS", "s", ">")
    c("AUTH", "nobody", "wrong")
    set_back(scene)
    fields = c("XINFO", "CONSUMERS", "s", "g")[0]
    seen = dict(zip(fields[::2], fields[1::2], strict=True))
    assert (seen[b"idle"], seen[b"inactive"]) == (0, 0)
    assert c("XPENDING", "s", "g", "-", "+", 1)[0][2] == 0
    assert c("OBJECT", "IDLETIME", "s") == 0
    denial = c("ACL", "LOG")[0]
    assert float(denial[denial.index(b"age-seconds") + 1]) == 0
    line = dict(part.split(b"=", 1) for part in c("CLIENT", "LIST").split())
    assert (line[b"age"], line[b"idle"]) == (b"0", b"0")
    assert b"uptime_in_seconds:0\r" in c("INFO", "server")


@pytest.mark.parametrize("waits", ["blocked", "served", "paused"])
def test_a_client_that_waited_is_not_idle(scene: Scene, waits: str) -> None:
    """``timeout`` counts from the reply, as in Redis: the client could not send anything before."""
    c, waiter = scene.c, scene.connect()
    c("CONFIG", "SET", "timeout", 1)
    if waits == "paused":
        c("CLIENT", "PAUSE", SPAN, "WRITE")
        waiter.send("SET", "k", "v")
    else:
        waiter.send("XREAD", "BLOCK", SPAN if waits == "blocked" else 0, "STREAMS", "s", "$")
    c("PING")
    scene.hand.advance(SPAN)
    if waits == "served":
        c("XADD", "s", "1-1", "f", "v")
    expected = {"paused": b"OK", "blocked": None, "served": [[b"s", [[b"1-1", [b"f", b"v"]]]]]}
    assert waiter.read() == expected[waits]
    scene.hand.advance(900)
    assert waiter("PING") == b"PONG"
    scene.hand.advance(1300)
    with pytest.raises((EOFError, ConnectionError)):
        waiter("PING")
