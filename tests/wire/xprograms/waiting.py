"""Random scenes with clients that wait: who is woken by what, in which order, and with which reply.

Every step is over on a server before the next one begins, so a scene's replies depend on nothing but the scene.
"""

from __future__ import annotations

from random import Random

from tests.waiting import eventually
from tests.wire.rawclient import pack
from tests.wire.xprograms.compare import Difference, kind, quoted, shrunk
from tests.wire.xprograms.generate import CONSUMERS, Maker, probes, with_consumers
from tests.wire.xprograms.masks import counts, masked, reworded, unbounded
from tests.wire.xprograms.typed import Reply, Typed, Words, replies, shown

WAITERS = 4
OTHERWISE = {"MAXLEN", "MINID", "XDEL", "XTRIM", "XSETID", "RENAME", "RENAMENX", "DELCONSUMER"}  # in a Redis of 2022
Scene = list[tuple[int, Words]]  # who says what; 0 never waits


class Waiter(Typed):
    """A connection whose replies are looked at in the end."""

    def __init__(self, port: int, proto: int) -> None:
        super().__init__(port, proto)
        self.number = self("CLIENT", "ID").value

    def send(self, words: Words) -> None:
        self.sock.sendall(pack(*words))


class Stage:
    """A server's part of a scene."""

    def __init__(self, port: int, proto: int) -> None:
        self.main = Typed(port, proto)
        self.waiters = [Waiter(port, proto) for _ in range(WAITERS)]
        self.version, self.old = self.main.version, self.main.old
        self._tiered = b"tier_waiting_reads:" in self._info()

    def close(self) -> None:
        for each in (self.main, *self.waiters):
            each.close()

    def play(self, scene: Scene, version: tuple[int, int]) -> list[tuple[int, Words, Reply]]:
        """The replies, those of the main client first, made comparable (masks.py)."""
        said: list[list[Words]] = [[] for _ in range(WAITERS + 1)]
        self.main("FLUSHALL")
        woken: list[list[Reply]] = [[] for _ in self.waiters]
        found: list[Reply] = []
        for who, words in scene:
            said[who].append(words)
            if who:  # it waits for one thing at a time
                woken[who - 1].append(self.unblock(who))
                self.waiters[who - 1].send(words)
            else:
                found.append(self.main(*words))
            self.rest()
        asked = probes()
        whole = masked([*said[0], *asked], [*found, *self.main.run(asked)], version)
        result = [(0, *pair) for pair in zip([*said[0], *asked], whole, strict=True)]
        for who, waiter in enumerate(self.waiters, 1):
            woken[who - 1].append(self.unblock(who))
            found = replies(waiter.raw([]))[:-1]
            result.append((who, (b"CLIENT", b"UNBLOCK"), Reply("*", woken[who - 1])))
            result += [(who, *pair) for pair in zip(said[who], masked(said[who], found, version), strict=True)]
        return result

    def unblock(self, who: int) -> Reply:
        """Whether that client was still waiting."""
        reply = self.main("CLIENT", "UNBLOCK", self.waiters[who - 1].number)
        self.rest()
        return reply

    def rest(self) -> None:
        """Return when all that was sent has been executed, also what waits for entries in an object store."""
        self.main("PING")
        self.main("PING")
        if self._tiered:
            eventually(lambda: not self._reads() and not self._reads())  # a command that is repeated can wait again

    def _reads(self) -> bool:
        return b"tier_waiting_reads:0\r\n" not in self._info()

    def _info(self) -> bytes:
        found = self.main("INFO", "persistence").value
        assert isinstance(found, bytes)
        return found


def differences(ours: Stage, theirs: Stage, scene: Scene) -> list[Difference]:
    old = theirs.old
    if old:
        scene = [(who, made) for who, words in scene for made in with_consumers([words])]
    made: list[Difference] = []
    both = (each.play(scene, theirs.version) for each in (ours, theirs))
    for (who, words, mine), (_, _, wanted) in zip(*both, strict=True):
        if mine != wanted and not (old and mine == reworded(mine, wanted)):
            if not made and unbounded(mine, wanted) and counts([each for _, each in scene]):
                return []
            made.append(Difference(who, words, mine, wanted))
    return made


def report(ours: Stage, theirs: Stage, scene: Scene) -> str:
    """The shortest form of the scene, and what both say."""
    once = differences(ours, theirs, scene)
    if not once:
        return "it does not happen again"
    first = kind(once[0])

    def differs(shorter: Scene) -> bool:
        found = differences(ours, theirs, shorter)
        return bool(found) and kind(found[0]) == first

    short = shrunk(scene, differs) if differs(scene) else scene
    lines = [f"[{who}] {' '.join(map(quoted, words))}" for who, words in short]
    for who, words, mine, wanted in differences(ours, theirs, short):
        lines += [f"[{who}] {' '.join(map(quoted, words))}", f"    ours:   {shown(mine, '    ')}"]
        lines.append(f"    theirs: {shown(wanted, '    ')}")
    return "\n".join(lines)


def scene(seed: int, old: bool = False) -> Scene:
    """A scene of that seed.

    ``old``: without what Redis 7.0 does otherwise. Of the keys waited for it looked at one, not whether the entry was
    still there, nor whether the consumer.
    """
    chance = Random(seed)
    maker = Maker(chance)
    made: Scene = [(0, words) for words in maker.begun()]
    transactions = chance.random() < 0.5
    for _ in range(chance.randint(5, 30)):
        if chance.random() < 0.4:
            words = waiting(maker, several=not old or not transactions, alike=not old)
            made.append((chance.randint(1, WAITERS), words))
        elif transactions and chance.random() < 0.2:
            part = [changing(maker, old) for _ in range(chance.randint(1, 5))]
            made += [(0, (b"MULTI",)), *((0, words) for words in part), (0, (b"EXEC",))]
        else:
            made.append((0, changing(maker, old)))
    return made


def waiting(maker: Maker, several: bool, alike: bool) -> Words:
    """A command that waits for ever, for several keys, and maybe for one twice."""
    keys = [maker.key() for _ in range(maker.chance.choice((1, 1, 2, 3)) if several else 1)]
    keys = keys if alike else sorted(set(keys))
    count = maker.count(0.3)
    if maker.odds(0.4):
        places = ["$" if maker.odds(0.8) else "0" for _ in keys]
        return encoded(["XREAD", *count, "BLOCK", "0", "STREAMS", *keys, *places])
    noack = ["NOACK"] if maker.odds(0.1) else []
    who = ["GROUP", maker.group(), maker.one(CONSUMERS)]
    return encoded(["XREADGROUP", *who, *count, "BLOCK", "0", *noack, "STREAMS", *keys, *(">" * len(keys))])


def changing(maker: Maker, old: bool) -> Words:
    """A command that may wake somebody. Not XGROUP SETID: ours then serves who waits for what comes again."""
    kinds = (maker.xadd, maker.xgroup, maker.keys, maker.xreadgroup, maker.xdel, maker.xsetid, maker.xtrim)
    words = maker.chance.choices(kinds, (60, 10, 10, 5, 4, 3, 3))[0]()
    if "BLOCK" in words or "SETID" in words or (old and not OTHERWISE.isdisjoint(words)):
        return (b"PING",)
    return encoded(words)


def encoded(words: list[str]) -> Words:
    return tuple(word.encode("latin-1") for word in words)
