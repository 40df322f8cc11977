"""TWAIT against TREAD: it names a key exactly if a TREAD would get something there, at once and after a wait.

Each call runs in one EXEC with TREADs that say what there was. Clients that wait beside it must be woken by the first
step after which there is something, with these keys, and by no other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hiredis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from respserver.testing import nothing_waits
from tests.respserver.local import LocalServer, Peer

KEYS = ["a", "b", "c"]
KEY = st.sampled_from(KEYS)
SOME = st.lists(KEY, min_size=1, max_size=3, unique=True)
Words = tuple[Any, ...]


def parsed(data: bytes) -> list[Any]:
    """All replies in ``data``."""
    reader = hiredis.Reader()
    reader.feed(data)
    replies = []
    while (reply := reader.gets()) is not False:
        replies.append(reply)
    return replies


class Waits(RuleBasedStateMachine):
    """Three streams, a group on each, and clients that wait in TWAIT, or in TREAD for the group."""

    server: LocalServer

    @initialize()
    def begin(self) -> None:
        self.server = Waits.server
        self.writer = self.server.connect()
        assert self.ask("FLUSHALL") == b"OK"
        for key in KEYS:
            self.make_group(key)
        self.ids: dict[str, list[bytes]] = {key: [b"0"] for key in KEYS}
        self.delivered: dict[str, list[bytes]] = {key: [] for key in KEYS}
        self.waits: dict[Peer, Words] = {}
        self.others: list[Peer] = []
        self.moved = False  # whether time passed in the step: then something may have been and gone

    def teardown(self) -> None:
        for peer in [*getattr(self, "waits", ()), *getattr(self, "others", ())]:
            peer.conn.kill()
        self.server.settle()
        assert nothing_waits(self.server.server)

    def ask(self, *words: Any) -> Any:
        (reply,) = parsed(self.writer.ask(*words))
        return reply

    def make_group(self, key: str) -> None:
        self.ask("TREAD", key, "0", 0, "GROUP", "g", 0)

    # -- what there is -----------------------------------------------------------------------------------------------
    def news(self, key: str, last_id: bytes) -> bool:
        """Whether a TREAD has an entry after an ID (the null of evicted ones is none)."""
        return any(row is not None for row in self.ask("TREAD", key, last_id, 1))

    def expected(self, words: Words) -> list[bytes]:
        """The keys that a TWAIT with these words returns now. Of groups, it is TWAIT's word, held against TREAD's."""
        if words[0] != "GROUP":
            pairs = dict(zip(words[::2], words[1::2], strict=True))
            return [key.encode() for key, last_id in pairs.items() if self.news(key, last_id)]
        self.writer.pipeline(("MULTI",), ("TWAIT", 0, *words), ("EXEC",))
        self.server.settle()
        return parsed(self.writer.taken())[-1][0] or []

    # -- rules: what changes -----------------------------------------------------------------------------------------
    @rule(key=KEY, count=st.integers(1, 3))
    def append(self, key: str, count: int) -> None:
        self.ids[key].append(self.ask("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *range(count))[1])

    @rule(keys=SOME)
    def append_in_one_step(self, keys: list[str]) -> None:
        self.writer.pipeline(("MULTI",), *[("TAPPEND", key, "f", 1) for key in keys], ("EXEC",))
        self.server.settle()
        for key, made in zip(keys, parsed(self.writer.taken())[-1], strict=True):
            self.ids[key].append(made)

    @rule(keys=SOME, count=st.integers(1, 3), retry=st.sampled_from([0, 100, 300]), limit=st.integers(0, 2))
    def read(self, keys: list[str], count: int, retry: int, limit: int) -> None:
        """TWAIT and the TREADs of one EXEC agree. The TREADs deliver."""
        options = ("RETRY", retry, 700, *(("MAXDELIVERIES", limit) if limit else ())) if retry else ()
        reads = [("TREAD", key, "", count, "BLOCK", 1, "GROUP", "g", 0, *options) for key in keys]
        self.writer.pipeline(("MULTI",), ("TWAIT", 0, "GROUP", "g", *keys), *reads, ("EXEC",))
        self.server.settle()
        named, *batches = parsed(self.writer.taken())[-1]
        assert (named or []) == [key.encode() for key, batch in zip(keys, batches, strict=True) if batch is not None]
        for key, batch in zip(keys, batches, strict=True):
            self.delivered[key] += [row[0] for row in batch or () if row is not None]

    @rule(key=KEY, data=st.data(), delay=st.sampled_from([0, 0, 150]), how=st.sampled_from(["TACK", "TNACK", "TTOUCH"]))
    def settle_one(self, key: str, data: st.DataObject, delay: int, how: str) -> None:
        if self.delivered[key]:
            made = data.draw(st.sampled_from(self.delivered[key]))
            words: Words = {"TACK": (), "TNACK": ("DELAY", delay), "TTOUCH": (delay,)}[how]
            self.ask(how, key, "g", *words, made)

    @rule(key=KEY, data=st.data())
    def rewind(self, key: str, data: st.DataObject) -> None:
        self.ask("TGROUP", "SETID", key, "g", data.draw(st.sampled_from(self.ids[key])))

    @rule(key=KEY, keep=st.integers(0, 2))
    def evict(self, key: str, keep: int) -> None:
        self.ask("TAPPEV", key, "COUNT", keep)

    @rule(ms=st.sampled_from([50, 100, 400]))
    def time_passes(self, ms: int) -> None:
        self.moved = True
        self.server.advance(ms)

    # -- rules: who waits --------------------------------------------------------------------------------------------
    @rule(keys=SOME, data=st.data())
    def wait_for_entries(self, keys: list[str], data: st.DataObject) -> None:
        ids = {key: data.draw(st.sampled_from(self.ids[key])) for key in keys}
        self.wait(tuple(word for pair in ids.items() for word in pair))

    @rule(keys=SOME)
    def wait_for_the_group(self, keys: list[str]) -> None:
        self.wait(("GROUP", "g", *keys))

    def wait(self, words: Words) -> None:
        expected = self.expected(words)
        peer = self.server.connect()
        replies = parsed(peer.ask("TWAIT", 0, *words))
        assert replies == ([expected] if expected else [])
        if expected:
            peer.conn.kill()
        else:
            self.waits[peer] = words

    @rule(key=KEY)
    def read_blocking(self, key: str) -> None:
        """Beside a waiting client, this one is served first, and takes one message."""
        peer = self.server.connect()
        if not peer.ask("TREAD", key, "", 1, "BLOCK", 0, "GROUP", "g", 0, "RETRY", 200, 0):
            self.others.append(peer)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.waits:
            peer = data.draw(st.sampled_from(sorted(self.waits, key=lambda peer: peer.session.id)))
            del self.waits[peer]
            peer.wire.abort()
            self.server.settle()

    # -- what must hold ----------------------------------------------------------------------------------------------
    @invariant()
    def who_waits_has_nothing_and_who_was_woken_has_it(self) -> None:
        moved, self.moved = self.moved, False
        for peer, words in list(self.waits.items()):
            replies, expected = parsed(peer.taken()), self.expected(words)
            if not replies:
                assert expected == [], words
                continue
            del self.waits[peer]
            assert not peer.session.blocked
            peer.conn.kill()
            (woken,) = replies
            if moved:
                assert set(woken) <= {str(word).encode() for word in words}
                assert woken
            else:
                assert woken == expected, words
        self.server.settle()


def test_waits(tmp_path: Path) -> None:
    Waits.server = LocalServer(tmp_path)
    try:
        Waits.TestCase.settings = settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        )
        Waits.TestCase("runTest").runTest()
    finally:
        Waits.server.close()
