"""Random programs of what Redis's stream commands have since 8.2, for ``oracle``: well formed, over few keys and IDs.

A program is a list of commands; ``("#", ms)`` lets time pass. A seed always makes the same program.
"""

from __future__ import annotations

from random import Random

KEYS = ("s", "t")
GROUPS = ("g", "h")
CONSUMERS = ("ann", "bob")
IDLE = ("0", "5", "20", "100")
Program = list[list[str]]


class Maker:
    """``claim``: the shortest time that XREADGROUP may ask for with CLAIM."""

    def __init__(self, seed: int, claim: str = "0") -> None:
        self.chance = Random(seed)
        self.claim = claim
        self.given = 0  # the ms of the last ID that was given

    def odds(self, share: float) -> bool:
        return self.chance.random() < share

    def one(self, of: tuple[str, ...]) -> str:
        return self.chance.choice(of)

    def key(self) -> str:
        return self.chance.choices((*KEYS, "none"), (80, 18, 2))[0]

    def group(self) -> str:
        return self.chance.choices((*GROUPS, "nogroup"), (70, 29, 1))[0]

    def entry(self) -> str:
        return f"{self.chance.randint(max(1, self.given - 15), self.given + 1)}-0"

    def ids(self) -> list[str]:
        return [self.entry() for _ in range(self.chance.choice((1, 1, 2, 3, 6)))]

    def counted(self, ids: list[str]) -> list[str]:
        return ["IDS", str(len(ids)), *ids]

    def references(self) -> list[str]:
        return self.chance.choice(([], ["KEEPREF"], ["DELREF"], ["ACKED"], ["ACKED"]))

    def limit(self) -> list[str]:
        if self.odds(0.5):
            return ["MAXLEN", str(self.chance.randint(0, 10))]
        return ["MINID", self.entry()]

    def sometimes(self, share: float, *words: str) -> list[str]:
        return list(words) if self.odds(share) else []

    # -- commands ----------------------------------------------------------------------------------------------
    def xadd(self) -> list[str]:
        words = ["XADD", self.key(), *self.sometimes(0.05, "NOMKSTREAM")]
        limit = self.limit() if self.odds(0.2) else []
        if limit:
            words += self.references()
        pairs = [self.one(("a", "b", "1")) for _ in range(2 * self.chance.choice((1, 1, 2)))]
        if self.odds(0.1):
            return [*words, "IDMP", self.one(("p", "q")), self.one(("1", "2", "3", "4")), *limit, "*", *pairs]
        if self.odds(0.08):
            return [*words, "IDMPAUTO", self.one(("p", "q")), *limit, "*", *pairs]
        self.given += self.chance.choice((0, 1, 1, 1, 1, 1, 2))
        return [*words, *limit, f"{self.given}-0", *pairs]

    def xtrim(self) -> list[str]:
        return ["XTRIM", self.key(), *self.limit(), *self.references()]

    def xdel(self) -> list[str]:
        return ["XDEL", self.key(), *self.ids()]

    def xdelex(self) -> list[str]:
        return ["XDELEX", self.key(), *self.references(), *self.counted(self.ids())]

    def xackdel(self) -> list[str]:
        return ["XACKDEL", self.key(), self.group(), *self.references(), *self.counted(self.ids())]

    def xcfgset(self) -> list[str]:
        words = self.sometimes(0.5, "IDMP-DURATION", self.one(("1", "2"))) or ["IDMP-MAXSIZE", self.one(("1", "3"))]
        return ["XCFGSET", self.key(), *words]

    def xgroup(self) -> list[str]:
        what = self.chance.choices(("CREATE", "SETID", "DESTROY", "DELCONSUMER"), (5, 6, 1, 2))[0]
        words = ["XGROUP", what, self.key(), self.group()]
        if what == "DELCONSUMER":
            return [*words, self.one(CONSUMERS)]
        return words if what == "DESTROY" else [*words, self.chance.choice(("0", self.entry()))]

    def limits(self) -> list[str]:
        """Of a whole reply; an entry has about 40 bytes."""
        words = self.sometimes(0.25, "MAXCOUNT", str(self.chance.randint(1, 8)))
        return words + self.sometimes(0.3, "MAXSIZE", str(self.chance.choice((1, 60, 100, 150, 250, 400))))

    def xread(self) -> list[str]:
        words = ["XREAD", *self.sometimes(0.4, "COUNT", str(self.chance.randint(1, 6))), *self.limits()]
        keys = self.chance.choice(([self.key()], list(KEYS), [*KEYS, KEYS[0]]))
        return [*words, "STREAMS", *keys, *(self.chance.choice(("0", self.entry())) for _ in keys)]

    def xreadgroup(self) -> list[str]:
        words = ["XREADGROUP", "GROUP", self.group(), self.one(CONSUMERS)]
        words += self.sometimes(0.6, "COUNT", str(self.chance.randint(1, 6))) + self.limits()
        words += self.sometimes(0.45, "CLAIM", self.one((self.claim, *IDLE[1:]))) + self.sometimes(0.12, "NOACK")
        keys = self.chance.choice(([self.key()], [self.key()], list(KEYS)))
        return [*words, "STREAMS", *keys, *(self.chance.choice((">", ">", ">", "0", self.entry())) for _ in keys)]

    def xack(self) -> list[str]:
        return ["XACK", self.key(), self.group(), *self.ids()]

    def xclaim(self) -> list[str]:
        words = ["XCLAIM", self.key(), self.group(), self.one(CONSUMERS), self.one(IDLE), *self.ids()]
        words += self.sometimes(0.2, "IDLE", self.one(IDLE)) + self.sometimes(0.2, "RETRYCOUNT", "7")
        return [*words, *self.sometimes(0.3, "FORCE"), *self.sometimes(0.3, "JUSTID")]

    def xautoclaim(self) -> list[str]:
        words = ["XAUTOCLAIM", self.key(), self.group(), self.one(CONSUMERS), self.one(IDLE)]
        words.append(self.chance.choice(("0", "0", self.entry())))
        return [*words, *self.sometimes(0.6, "COUNT", str(self.chance.randint(1, 5))), *self.sometimes(0.3, "JUSTID")]

    def xnack(self) -> list[str]:
        ids = sorted(set(self.ids()), key=lambda text: int(text.split("-")[0]))
        force = self.sometimes(0.3, "FORCE")
        words = ["XNACK", self.key(), self.group(), self.one(("SILENT", "FAIL", "FATAL"))]
        words += self.counted(ids[:1] if force else ids)
        return [*words, *self.sometimes(0.2, "RETRYCOUNT", self.one(("0", "9"))), *force]

    def xpending(self) -> list[str]:
        words = ["XPENDING", self.key(), self.group()]
        if self.odds(0.3):
            return words
        words += self.sometimes(0.5, "IDLE", self.one(IDLE))
        return [*words, "-", "+", str(self.chance.randint(1, 9)), *self.sometimes(0.3, self.one(CONSUMERS))]

    def program(self) -> Program:
        made: Program = []
        for key in KEYS:
            self.given += 1
            made += [["XADD", key, f"{self.given}-0", "a", "b"]]
            made += [["XGROUP", "CREATE", key, group, "0"] for group in GROUPS if self.odds(0.8)]
        kinds = (
            self.xadd, self.xtrim, self.xdel, self.xdelex, self.xackdel, self.xcfgset, self.xgroup, self.xreadgroup,
            self.xread, self.xack, self.xclaim, self.xautoclaim, self.xnack, self.xpending,
        )  # fmt: skip
        weights = (34, 4, 3, 5, 7, 1, 3, 22, 6, 4, 5, 5, 8, 5)
        for _ in range(self.chance.randint(20, 120)):
            if self.odds(0.15):
                made.append(["#", str(self.chance.choice((1, 4, 15, 15, 90, 1000)))])
            made.append(self.chance.choices(kinds, weights)[0]())
        return made
