"""Random programs of Redis's stream commands over few keys, groups, consumers and IDs, so that they often meet.

Rule 1: a program's replies depend on nothing but the program. IDs are given, or lie where the clock is (masks.py hides
those); a time to be idle is nothing or an hour, which no message has waited for unless XCLAIM said so.
Rule 2: a seed always makes the same program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.wire.xprograms.typed import Words

HOUR = 3_600_000  # ms
FUTURE = 90_000_000_000_000  # ms: later than any clock
GROUPS = ("g", "h", "i")
CONSUMERS = ("ann", "bob", "cat")
FIELDS = ("f", "n", "pad")
VALUES = ("v", "1", "-5", "", "a b", "12345678901", "x" * 40, "\x00\xff\r\n")
BROKEN = (
    "", "x", "-1", "1-", "-1-1", "1-x", "1-1-1", "18446744073709551616-0", "(", "1e3", "0-0", "$", ">", "*",
    "1-*",
)  # fmt: skip
MOST = "18446744073709551615"
EDGES = ("0-1", f"0-{MOST}", f"1-{MOST}", MOST, f"{MOST}-0", f"{MOST}-{MOST}", f"{MOST}-{int(MOST) - 1}", f"{MOST}-*")
NUMBERS = ("0", "1", "2", "3", "5", "10", "-1", "x", "", "9223372036854775807", "9223372036854775808", "1e3")
WORDS = (
    "COUNT", "BLOCK", "STREAMS", "GROUP", "MAXLEN", "MINID", "LIMIT", "~", "=", "NOMKSTREAM", "NOACK", "JUSTID",
    "FORCE", "IDLE", "RETRYCOUNT", "LASTID", "ENTRIESREAD", "ENTRIESADDED", "MKSTREAM", "FULL", "foo", "0", "1",
)  # fmt: skip
MOVES = ("DEL", "UNLINK", "RENAME", "RENAMENX", "SET", "TYPE", "EXISTS", "OBJECT", "TOUCH")


@dataclass
class Maker:
    """Makes one program. ``prefix`` keeps its keys apart from those of others."""

    chance: Random
    prefix: str = ""
    approximate: bool = False  # trim by whole nodes, and delete nothing: what is left of a node differs
    newer: bool = False  # with what Redis 7.0 has not: the newest entry as a place to read from
    top: dict[str, tuple[int, int]] = field(default_factory=dict)  # key -> last ID, about
    given: dict[str, list[str]] = field(default_factory=dict)  # key -> IDs of its entries, about
    made: list[Words] = field(default_factory=list)

    # -- words -------------------------------------------------------------------------------------------------
    def odds(self, share: float) -> bool:
        return self.chance.random() < share

    def one(self, of: tuple[str, ...]) -> str:
        return self.chance.choice(of)

    def key(self) -> str:
        return self.prefix + self.chance.choices(("s", "t", "u", "str", "none"), (66, 23, 5, 2, 1))[0]

    def group(self) -> str:
        return self.chance.choices((*GROUPS, "nogroup"), (67, 25, 3, 2))[0]

    def consumer(self) -> str:
        return self.chance.choices(CONSUMERS, (50, 35, 15))[0]

    def number(self, usual: int = 5) -> str:
        return self.one(NUMBERS) if self.odds(0.06) else str(self.chance.randint(0 if self.odds(0.1) else 1, usual))

    def idle(self) -> str:
        return self.chance.choices(("0", str(HOUR), "-1", "x"), (70, 25, 3, 2))[0]

    def plain_id(self, key: str = "") -> str:
        """One that may well exist."""
        given = self.given.get(key)
        if given and self.odds(0.75):
            return self.chance.choice(given)
        ms, seq = self.top.get(key, (20, 0))
        if self.odds(0.3):
            return f"{ms}-{seq}"
        low = ms - 30 if ms > FUTURE else 1
        return f"{self.chance.randint(low, max(ms, low) + 1)}-{self.chance.choice((0, 0, 0, 1, 2, 3))}"

    def any_id(self, key: str = "") -> str:
        roll = self.chance.random()
        if roll < 0.05:
            return self.one(BROKEN)
        if roll < 0.06:
            return self.one(EDGES)
        made = self.plain_id(key)
        return made.split("-")[0] if roll < 0.2 else made

    def ids(self, key: str) -> list[str]:
        """Some, most of them good."""
        count = self.chance.choice((1, 1, 2, 3, 5))
        return [self.one(BROKEN) if self.odds(0.01) else self.plain_id(key) for _ in range(count)]

    def bound(self, key: str, end: str) -> str:
        if self.odds(0.45):
            return end
        made = self.any_id(key) if self.odds(0.9) else self.one(("-", "+"))
        return "(" + made if self.odds(0.25) else made

    def start(self, key: str) -> str:
        """Where a read goes on."""
        if self.newer and self.odds(0.08):
            return "+"
        return self.chance.choices(("0", "$", self.any_id(key), "0-0"), (40, 12, 40, 8))[0]

    def count(self, share: float = 0.4) -> list[str]:
        return ["COUNT", self.number()] if self.odds(share) else []

    # -- writing -----------------------------------------------------------------------------------------------
    def xadd(self) -> list[str]:
        key = self.key()
        words = ["XADD", key]
        if self.odds(0.08):
            words.append("NOMKSTREAM")
        if self.odds(0.1):
            words += self.limits(key)
        return [*words, self.new_id(key), *self.fields()]

    def new_id(self, key: str) -> str:
        ms, seq = self.top.get(key, (0, 0))
        roll = self.chance.random()
        if roll < 0.04:
            return self.any_id(key)
        if roll < 0.14:
            return f"{ms + self.chance.choice((0, 0, 0, 1))}-*"
        if roll < 0.2 and (ms > FUTURE or self.odds(0.15)):
            return "*"
        if roll < 0.205:
            ms = FUTURE
        new = (ms, seq + 1) if self.odds(0.25) else (ms + self.chance.choice((1, 1, 1, 2, 3)), 0)
        self.top[key] = new
        self.given.setdefault(key, []).append(f"{new[0]}-{new[1]}")
        return f"{new[0]}" if new[1] == 0 and self.odds(0.1) else f"{new[0]}-{new[1]}"

    def fields(self) -> list[str]:
        pairs = self.chance.choice((1, 1, 1, 2, 3))
        words = [word for _ in range(pairs) for word in (self.one(FIELDS), self.one(VALUES))]
        return words[:-1] if self.odds(0.01) else words

    def limits(self, key: str) -> list[str]:
        """MAXLEN or MINID with what belongs to them."""
        about = self.approximate and self.odds(0.4)
        words = [*(["~"] if about else ["="] if self.odds(0.3) else [])]
        words = ["MAXLEN", *words, self.number(8)] if self.odds(0.5) else ["MINID", *words, self.any_id(key)]
        return [*words, "LIMIT", self.number(8)] if self.odds(0.4 if about else 0.05) else words

    def xtrim(self) -> list[str]:
        key = self.key()
        return ["XTRIM", key, *self.limits(key)]

    def xdel(self) -> list[str]:
        key = self.key()
        return ["XDEL", key, *self.ids(key)]

    def xsetid(self) -> list[str]:
        key = self.key()
        last = self.any_id(key)
        if self.odds(0.15):
            last = f"{FUTURE + self.chance.randint(0, 5)}-{self.chance.randint(0, 2)}"
        words = ["XSETID", key, last]
        if self.odds(0.4):
            deleted = self.chance.choice((last, last, "0-0", self.one(BROKEN)))
            words += ["ENTRIESADDED", self.number(40), "MAXDELETEDID", deleted]
        head, _, tail = last.partition("-")
        if head.isdigit() and tail.isdigit():
            self.top[key] = max((int(head), int(tail)), self.top.get(key, (0, 0)))
        return words

    # -- reading -----------------------------------------------------------------------------------------------
    def xlen(self) -> list[str]:
        return ["XLEN", self.key()]

    def xrange(self) -> list[str]:
        key = self.key()
        return ["XRANGE", key, self.bound(key, "-"), self.bound(key, "+"), *self.count()]

    def xrevrange(self) -> list[str]:
        key = self.key()
        return ["XREVRANGE", key, self.bound(key, "+"), self.bound(key, "-"), *self.count()]

    def block(self) -> list[str]:
        return ["BLOCK", self.chance.choices(("1", "-1", "x"), (95, 3, 2))[0]] if self.odds(0.05) else []

    def mixed(self, *options: list[str]) -> list[str]:
        """Options in any order."""
        parts = list(options)
        self.chance.shuffle(parts)
        return [word for part in parts for word in part]

    def streams(self, place: Callable[[str], str]) -> list[str]:
        keys = [self.key() for _ in range(self.chance.choice((1, 1, 1, 2, 3)))]
        words = ["STREAMS", *keys, *(place(key) for key in keys)]
        return words[:-1] if self.odds(0.01) else words

    def xread(self) -> list[str]:
        return ["XREAD", *self.mixed(self.count(), self.block()), *self.streams(self.start)]

    # -- groups ------------------------------------------------------------------------------------------------
    def xreadgroup(self) -> list[str]:
        def place(key: str) -> str:
            return ">" if self.odds(0.75) else self.start(key)

        noack = ["NOACK"] if self.odds(0.12) else []
        words = self.mixed(["GROUP", self.group(), self.consumer()], self.count(0.6), self.block(), noack)
        return ["XREADGROUP", *words, *self.streams(place)]

    def xack(self) -> list[str]:
        key = self.key()
        return ["XACK", key, self.group(), *self.ids(key)]

    def xpending(self) -> list[str]:
        key = self.key()
        words = ["XPENDING", key, self.group()]
        if self.odds(0.3):
            return words
        if self.odds(0.3):
            words += ["IDLE", self.idle()]
        words += [self.bound(key, "-"), self.bound(key, "+"), self.number(10)]
        return [*words, self.consumer()] if self.odds(0.4) else words

    def xclaim(self) -> list[str]:
        key = self.key()
        words = ["XCLAIM", key, self.group(), self.consumer(), self.idle(), *self.ids(key)]
        options = [
            ["IDLE", self.chance.choice(("0", str(2 * HOUR), str(3 * HOUR), "-1", "x"))] if self.odds(0.2) else [],
            ["TIME", self.chance.choice(("0", "1", "99999999999999", "-1", "x"))] if self.odds(0.15) else [],
            ["RETRYCOUNT", self.number(9)] if self.odds(0.2) else [],
            ["FORCE"] if self.odds(0.3) else [],
            ["JUSTID"] if self.odds(0.3) else [],
            ["LASTID", self.any_id(key)] if self.odds(0.1) else [],
        ]
        return [*words, *self.mixed(*options)]

    def xautoclaim(self) -> list[str]:
        key = self.key()
        start = "0" if self.odds(0.5) else self.bound(key, "-")
        words = ["XAUTOCLAIM", key, self.group(), self.consumer(), self.idle(), start]
        return [*words, *self.mixed(self.count(), ["JUSTID"] if self.odds(0.3) else [])]

    def xgroup(self) -> list[str]:
        key, group = self.key(), self.group()
        what = self.chance.choices(("CREATE", "SETID", "DESTROY", "CREATECONSUMER", "DELCONSUMER"), (10, 5, 1, 3, 3))[0]
        words = ["XGROUP", what, key, group]
        if what in ("CREATE", "SETID"):
            words.append(self.start(key))
            make = ["MKSTREAM"] if what == "CREATE" and self.odds(0.5) else []
            words += self.mixed(make, ["ENTRIESREAD", self.number(20)] if self.odds(0.25) else [])
        elif what != "DESTROY":
            words.append(self.consumer())
        return words

    def xinfo(self) -> list[str]:
        key = self.key()
        what = self.chance.choice(("STREAM", "STREAM", "GROUPS", "CONSUMERS"))
        words = ["XINFO", what, key]
        if what == "STREAM" and self.odds(0.5):
            words += ["FULL", *self.count()]
        return [*words, self.group()] if what == "CONSUMERS" else words

    def keys(self) -> list[str]:
        what, key = self.chance.choices(MOVES, (3, 1, 3, 1, 1, 4, 3, 3, 1))[0], self.key()
        if what.startswith("RENAME"):
            other = self.key()
            self.top[other] = self.top.get(key, (0, 0))
            self.given[other] = self.given.get(key, [])
            return [what, key, other]
        if what == "OBJECT":
            return ["OBJECT", "ENCODING", key]
        if what == "SET":
            return ["SET", self.prefix + "str", "v"]
        if what in ("DEL", "UNLINK"):
            self.top.pop(key, None)
        return [what, key]

    # -- programs ----------------------------------------------------------------------------------------------
    def kinds(self) -> dict[Callable[[], list[str]], int]:
        """What makes the commands, and how often each is made."""
        return {
            self.xadd: 26, self.xdel: 0 if self.approximate else 6, self.xtrim: 4, self.xsetid: 2, self.xlen: 2,
            self.xrange: 5, self.xrevrange: 4, self.xread: 5, self.xreadgroup: 14, self.xack: 6, self.xpending: 6,
            self.xclaim: 6, self.xautoclaim: 5, self.xgroup: 7, self.xinfo: 5, self.keys: 3,
        }  # fmt: skip

    def command(self) -> list[str]:
        kinds = self.kinds()
        for _ in range(20):
            words = self.chance.choices(list(kinds), list(kinds.values()))[0]()
            if self.odds(0.05):
                words = self.mutated(words)
            if self.odds(0.1):
                words = [words[0].lower(), *(word.lower() if word in WORDS else word for word in words[1:])]
            if self.fits(words):
                return words
        return ["PING"]

    def fits(self, words: list[str]) -> bool:
        """Whether both servers answer it alike."""
        return repeatable(words) and (self.approximate or "~" not in words)

    def mutated(self, words: list[str]) -> list[str]:
        """A word too few, too many, or in another's place."""
        words, at = list(words), self.chance.randrange(1, len(words))
        what = self.chance.randrange(5)
        if what == 0:
            del words[at]
        elif what == 1:
            words.insert(at, words[at])
        elif what == 2:
            other = self.chance.randrange(1, len(words))
            words[at], words[other] = words[other], words[at]
        elif what == 3:
            words[at] = self.one((*WORDS, *BROKEN))
        else:
            words.insert(at, self.one(WORDS))
        return words

    def say(self, words: list[str]) -> None:
        self.made.append(tuple(word.encode("latin-1") for word in words))

    def program(self, length: int) -> list[Words]:
        """So many commands, about, and then all that the server knows of the keys."""
        self.begun()
        while len(self.made) < length:
            if self.odds(0.02):
                self.say(["MULTI"])
                for _ in range(self.chance.randint(1, 6)):
                    self.say(self.command())
                self.say(["EXEC"])
            else:
                self.say(self.command())
        return self.made + probes(self.prefix)

    def begun(self) -> list[Words]:
        """What a program begins with: a string, and some groups."""
        self.say(["SET", self.prefix + "str", "v"])
        for key in ("s", "t"):
            for group, share in (("g", 0.9), ("h", 0.5)):
                if self.odds(share):
                    self.say(["XGROUP", "CREATE", self.prefix + key, group, self.one(("0", "$")), "MKSTREAM"])
        for key in ("s", "t"):
            if self.odds(0.1):
                self.top[self.prefix + key] = (FUTURE + 30, 0)
        return self.made


def probes(prefix: str = "") -> list[Words]:
    """What shows all of a program's keys."""
    asked: list[list[str]] = []
    for key in (prefix + name for name in ("s", "t", "u", "none")):
        asked += [["TYPE", key], ["XLEN", key], ["XRANGE", key, "-", "+"], ["XREVRANGE", key, "+", "-"]]
        asked += [["XINFO", "STREAM", key, "FULL", "COUNT", "0"], ["XINFO", "STREAM", key], ["XINFO", "GROUPS", key]]
        for group in GROUPS:
            asked += [["XINFO", "CONSUMERS", key, group], ["XPENDING", key, group]]
            asked += [["XPENDING", key, group, "-", "+", "1000"]]
            asked += [["XPENDING", key, group, "-", "+", "1000", name] for name in CONSUMERS[:2]]
    return [tuple(word.encode() for word in words) for words in asked]


def repeatable(words: list[str]) -> bool:
    """Whether the reply depends on the program alone, and comes at once (Rule 1)."""
    name = words[0].upper()
    if name in ("XREAD", "XREADGROUP"):
        for at, word in enumerate(words[:-1]):
            wait = words[at + 1]
            if word.upper() == "BLOCK" and wait.isdigit() and not 0 < int(wait) < 5:
                return False
        return True
    for at, word in enumerate(words[:-1]):  # with one more it is negative in Redis
        if word.upper() in ("ENTRIESADDED", "RETRYCOUNT") and len(words[at + 1]) > 18:
            return False
    waits = words[4:5] if name in ("XCLAIM", "XAUTOCLAIM") else []
    if name in ("XPENDING", "XCLAIM"):
        waits = waits + [words[at + 1] for at, word in enumerate(words[:-1]) if word.upper() == "IDLE"]
    if name == "XSETID":  # ours never forgets the highest ID deleted
        for at, word in enumerate(words[:-1]):
            if word.upper() == "MAXDELETEDID" and words[at + 1] not in (words[2], "0-0", *BROKEN):
                return False
    return all(not wait.isdigit() or int(wait) == 0 or int(wait) >= HOUR for wait in waits) and "HELP" not in words


def with_consumers(program: list[Words]) -> list[Words]:
    """With consumers made before they are used. Redis makes them so since 7.2, and 7.0 not if they get nothing."""
    made: list[Words] = []
    for words in program:
        made += [(b"XGROUP", b"CREATECONSUMER", key, *whose) for key, whose in users(words)]
        made.append(words)
    return made


def users(words: Words) -> list[tuple[bytes, Words]]:
    """The keys that a command reads for a group, with the group and its consumer."""
    name = words[0].upper()
    if name in (b"XCLAIM", b"XAUTOCLAIM"):
        return [(words[1], words[2:4])] if len(words) > 3 else []
    whose, at = words[:0], 1
    while name == b"XREADGROUP" and at < len(words):
        option = words[at].upper()
        if option == b"STREAMS":
            keys = words[at + 1 : at + 1 + (len(words) - at - 1) // 2]
            return [(key, whose) for key in keys] if len(whose) == 2 else []
        whose = words[at + 1 : at + 3] if option == b"GROUP" else whose
        at += {b"GROUP": 3, b"COUNT": 2, b"BLOCK": 2}.get(option, 1)
    return []


def program(seed: int, prefix: str = "", newer: bool = False) -> list[Words]:
    """The program of that seed."""
    chance = Random(seed)
    return Maker(chance, prefix, chance.random() < 0.3, newer).program(chance.randint(10, 60))
