"""Random programs as of ``generate``, with the stream commands and options of Redis 8.2 among them.

Rule: no program depends on what is a fault of Redis 8.2. There trimming with DELREF leaves IDs pending whose entries
were gone before, so a program either trims with DELREF, and nothing in it leaves such IDs behind, or deletes in all
other ways. ``~`` with DELREF or ACKED trims nothing, and ACKED looks at one node: there is no ``~``, and Redis has one
node.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.wire.xprograms.generate import Maker
from tests.wire.xprograms.typed import Words

REFERENCES = ("KEEPREF", "DELREF", "ACKED")
REMOVING = ("XADD", "XTRIM", "XDEL", "XDELEX", "XACKDEL")


class Later(Maker):
    """Makes one program. ``clean``: nothing leaves IDs pending whose entries are gone."""

    clean = False

    def references(self) -> list[str]:
        if self.clean:
            return [self.one(REFERENCES[1:])]
        return [self.one(REFERENCES)] if self.odds(0.6) else []

    def limits(self, key: str) -> list[str]:
        return self.mixed(super().limits(key), self.references())

    def counted(self, key: str) -> list[str]:
        ids = self.ids(key)
        count = self.number() if self.odds(0.03) else str(len(ids))
        return ["IDS", count, *ids]

    def xdelex(self) -> list[str]:
        key = self.key()
        return ["XDELEX", key, *self.mixed(self.references(), self.counted(key))]

    def xackdel(self) -> list[str]:
        key = self.key()
        return ["XACKDEL", key, self.group(), *self.mixed(self.references(), self.counted(key))]

    def xsetid(self) -> list[str]:
        words = super().xsetid()[:3]
        if self.odds(0.5):
            words += ["ENTRIESADDED", self.number(40)]
        if self.odds(0.25):
            words += ["MAXDELETEDID", self.any_id(words[1])]
        return words

    def kinds(self) -> dict[Callable[[], list[str]], int]:
        return super().kinds() | {self.xdelex: 6, self.xackdel: 6, self.xtrim: 8, self.xsetid: 3}

    def fits(self, words: list[str]) -> bool:
        name, options = words[0].upper(), {word.upper() for word in words}
        if not super().fits(words) or name not in REMOVING:
            return super().fits(words)
        if self.clean:
            removes = name != "XADD" or not options.isdisjoint(("MAXLEN", "MINID"))
            return not removes or not options.isdisjoint(REFERENCES[1:])
        return "DELREF" not in options or name not in REMOVING[:2]


def program(seed: int, prefix: str = "") -> list[Words]:
    """The program of that seed."""
    chance = Random(seed)
    maker = Later(chance, prefix, newer=True)
    maker.clean = chance.random() < 0.4
    return maker.program(chance.randint(10, 60))
