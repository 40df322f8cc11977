"""Makes the data directories of tests/persistence/test_golden.py with the server of another checkout.

    python -m tests.persistence.golden.make /path/to/checkout format1 [--module respserver.program]

runs ``python -m MODULE`` in that checkout (``_tidelog_server`` unless given), fills it over the wire, and writes beside
this file, for NAME in ``store`` (stopped with SIGTERM, so all is in the store) and ``killed`` (SIGKILL: store, journal
and WAL each hold a part):

    format1-NAME.tar.xz   the data directory
    format1-NAME.json     what that server said: {"now": ms, "info": {field: value}, "reads": [[words, reply], ...],
                          "then": [[words, reply], ...]}

"reads" are the whole content while the server still ran; "then" are commands that change it, answered by the same
server after a restart from a copy. Bytes are strings in latin-1, error replies {"error": text}. What new IDs depend on
is left out of "then".

Run it before a change of a format, and keep what it made before: the tests open every directory that is there.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.wire.rawclient import Raw

HERE = Path(__file__).parent
FAR = 100 * 365 * 86_400_000  # ms: a hundred years
SETTINGS = {
    "wal-size": "1mb", "stream-node-max-entries": 8, "enable-debug-command": "yes", "save": "",
    "checkpoint-size": "1gb", "repl-backlog-ttl": 1,
}  # fmt: skip

Words = tuple[bytes | str | int, ...]
# fields of TINFO that another version may answer differently, or not have
LAYOUT = (b"nodes", b"memory-bytes", b"disk-bytes", b"deleted", b"deleted-to")
INFO = (
    "master_replid", "master_replid2", "master_repl_offset", "second_repl_offset", "log_store_offset",
    "log_journal_offset", "log_offset",
)  # fmt: skip


def plain(reply: Any) -> Any:
    """A reply as JSON holds it."""
    if isinstance(reply, bytes):
        return reply.decode("latin-1")
    if isinstance(reply, str):
        return {"error": reply}
    return [plain(item) for item in reply] if isinstance(reply, list) else reply


def comparable(words: Sequence[object], reply: Any) -> Any:
    """What another version must answer as well."""
    if words[0] == "TINFO" and isinstance(reply, list):
        return [part for name, value in zip(reply[::2], reply[1::2], strict=True) if name not in LAYOUT
                for part in (name, value)]  # fmt: skip
    if words[0] == "KEYS":
        return sorted(reply)
    if words[0] == "XINFO":
        return without_seen(reply)
    return reply


class Process:
    """A server of another checkout, as a process."""

    def __init__(self, checkout: Path, module: str, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", module, "--port", str(port), "--dir", str(directory), *words]
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open for as long as the process
        self.process = subprocess.Popen(command, cwd=checkout, stdout=self.output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.raw = Raw(port)
                break
            except OSError:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.02)

    def __call__(self, *words: bytes | str | int) -> Any:
        reply = self.raw(*words)
        assert not isinstance(reply, str), (words, reply)
        return reply

    def log(self) -> str:
        self.output.seek(0)
        return self.output.read()

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(20)
        self.raw.close()


def until(true: Any) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def info(c: Process) -> dict[str, str]:
    lines = (c("INFO", "replication") + c("INFO", "persistence")).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


# -- content -----------------------------------------------------------------------------------------------------
def first_part(c: Process) -> None:
    """What the first checkpoint stores."""
    c("TMAPPEND", "plain", "FIELDS", 2, "n", "text", "VALUES", *[w for n in range(45) for w in (n, "some text " * 5)])
    c("TMAPPEND", "evicted", "FIELDS", 1, "n", "VALUES", *range(60))
    c("TREAD", "evicted", "0", 5, "GROUP", "overtaken", 0)
    c("TAPPEND", "gone", "f", "v")
    c("TAPPEND", "emptied", "f", "v")
    c("TREAD", "never", "0", 0, "GROUP", "waits", 0)
    c("TAPPEND", b"bin\0\xff\r\n", b"\0", b"\xff" * 300)
    c("TAPPEND", "k" * 500, "long key", "")
    c("SET", "string", "value")
    c("SET", "number", 41)
    c("SET", "replaced", "before")
    c("SET", "later", "v", "PXAT", 9_999_999_999_999)
    c("SET", b"\0\xff", bytes(range(256)))
    c("SET", "large", "y" * 40_000)
    c("SET", "dies", "v")
    c("TSTAGE", "two keys", 0, "staged:a", "FIELDS", 1, "n", "VALUES", *range(30))
    c("TSTAGE", "dropped", FAR, "staged:a", "FIELDS", 1, "n", "VALUES", "never seen")
    c("TSTAGE", "early", FAR, "published", "FIELDS", 1, "n", "VALUES", *range(12))
    c("TPUBLISH", "fence", 6, "early")
    c("SET", "patched", "0123456789" * 30)
    c("SET", "string's old name", "v", "PXAT", 9_999_999_999_997)
    c("SET", "overwritten by a name", "v")
    c("TMAPPEND", "old name", "FIELDS", 1, "n", "VALUES", *range(25))
    c("TREAD", "old name", "0", 9, "GROUP", "moves along", 0, "RETRY", FAR, 0)
    c("TSTAGE", "checked", FAR, "published with check", "FIELDS", 1, "n", "VALUES", *range(9))


def second_part(c: Process) -> None:
    """What changes it."""
    c("TAPPEND", "plain", "n", 45, "text", "one more")
    c("TAPPEV", "evicted", "COUNT", 21)
    c("TAPPEV", "emptied", "COUNT", 0)
    c("DEL", "gone", "dies")
    c("SET", "replaced", "after", "KEEPTTL")
    c("INCR", "number")
    c("PEXPIREAT", "published", 9_999_999_999_998)
    c("TDROP", "dropped")
    c("TSTAGE", "two keys", 0, "staged:b", "FIELDS", 2, "a", "b", "VALUES", "1", "2", "3", "4")
    c("TSTAGE", "again", FAR, "staged:a", "FIELDS", 1, "n", "VALUES", "after the others")
    c("TMAPPEND", "jobs", "FIELDS", 1, "n", "VALUES", *range(40))
    c("SETRANGE", "patched", 7, "in the middle")
    c("APPEND", "patched", " and behind")
    c("RENAME", "string's old name", "overwritten by a name")
    c("PEXPIREAT", "old name", 9_999_999_999_996)
    c("RENAME", "old name", "new name")
    c("TMAPPEND", "new name", "FIELDS", 1, "n", "VALUES", *range(25, 30))
    c("TPUBLISH", "checked fence", 3, "CHECK", "what was checked", "checked")
    groups(c)


def groups(c: Process) -> None:
    """Groups of one stream with messages in every state."""
    c("TREAD", "jobs", "0", 0, "GROUP", "mortal", FAR)
    c("TREAD", "jobs", "0", 7, "GROUP", "without retry", 0)
    pending = [row[0] for row in c("TREAD", "jobs", "0", 12, "GROUP", "pending", 0, "RETRY", FAR, 0)]
    c("TACK", "jobs", "pending", pending[0], pending[5])
    c("TNACK", "jobs", "pending", "DELAY", FAR // 2, pending[1])
    c("TTOUCH", "jobs", "pending", FAR // 3, pending[2])
    c("TREAD", "jobs", "0", 4, "GROUP", "pending", 0, "RETRY", FAR, FAR, "MAXDELIVERIES", 9, "DEADLETTER", "dead")
    for _ in range(3):  # the same messages again and again
        c("TREAD", "jobs", "0", 6, "GROUP", "due", 0, "RETRY", 1, 0)
        time.sleep(0.005)
    c("TREAD", "jobs", "0", 3, "GROUP", "given up", 0, "RETRY", 5, 0, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    c("TREAD", "jobs", "0", 2, "GROUP", "expired", 0, "RETRY", 5, 5, "DEADLETTER", "dead")
    until(lambda: c("TREAD", "jobs", "0", 0, "GROUP", "given up", 0) == [] and c("TLEN", "dead") == 5)
    evicted = c("TREAD", "evicted", "", 3, "GROUP", "of evicted", 0)
    assert evicted == []
    c("TREAD", "evicted", "0", 0, "GROUP", "pending and evicted", 0)
    c("TREAD", "evicted", "0", 4, "GROUP", "pending and evicted", 0, "RETRY", 1, 0)
    c("TAPPEV", "evicted", "COUNT", 19)


def x_first_part(c: Process) -> None:
    """Redis's stream commands, where the server has them: what the first checkpoint stores."""
    for number in range(1, 61):
        c("XADD", "x", f"{number}-1", "n", number)
    c("XDEL", "x", *[f"{number}-1" for number in (1, 9, 10, 11, 12, 13, 14, 15, 16, 30, 45)])
    c("XGROUP", "CREATE", "x", "g", 0, "ENTRIESREAD", 0)
    c("XGROUP", "CREATE", "lone", "nobody", "$", "MKSTREAM")
    c("XREADGROUP", "GROUP", "g", "ann", "COUNT", 20, "STREAMS", "x", ">")
    c("XREADGROUP", "GROUP", "g", "bob", "COUNT", 10, "STREAMS", "x", ">")
    c("XCFGSET", "x", "IDMP-DURATION", 86_400, "IDMP-MAXSIZE", 5)
    for number in range(7):
        c("XADD", "producers", "IDMP", f"p{number % 2}", number, "*", "n", number)


def x_second_part(c: Process) -> None:
    """What changes it."""
    c("XDEL", "x", *[f"{number}-1" for number in (17, 18, 25, 60)])
    c("XACK", "x", "g", "2-1", "3-1", "31-1")
    c("XCLAIM", "x", "g", "cid", 0, "4-1", "32-1", "TIME", 1_700_000_000_000, "RETRYCOUNT", 5)
    c("XGROUP", "CREATECONSUMER", "x", "g", "idle")
    c("XGROUP", "DELCONSUMER", "x", "g", "bob")
    c("XTRIM", "x", "MAXLEN", 40)
    c("XSETID", "x", "70-0", "ENTRIESADDED", 99, "MAXDELETEDID", "65-0")
    c("XADD", "x", "70-*", "n", "after")
    c("XADD", "producers", "IDMP", "p0", "another", "*", "n", "another")
    c("XGROUP", "SETID", "lone", "nobody", "0-0")


def coded_first_part(c: Process) -> None:
    """Streams whose nodes are coded, where the server does that: what the first checkpoint stores."""
    c("CONFIG", "SET", "stream-node-max-entries", 32)
    for number in range(100):
        entry_id = f"{1_700_000_000_000 + 250 * number + number % 3}-{number % 2}"
        c("XADD", "readings", entry_id, "sensor", f"{number * 7 % 10:02}", "t", f"{number * 37 % 400 / 10 - 9:.1f}")
    for number in range(80):
        words = ("level", ("info", "warn", "error")[number % 7 % 3], "host", f"h{number % 4}", "code", 200 + number % 5)
        c("XADD", "returning texts", f"{number // 4 + 1}-{number % 4}", *words)
    for number in range(1, 101):
        c("XADD", "thinned", f"{number}-1", "sensor", f"{number % 5}", "n", number)


def coded_second_part(c: Process) -> None:
    """What changes it: more than half of two nodes goes; batches that wait in files of their own."""
    c("XDEL", "thinned", *[f"{number}-1" for number in range(1, 65) if number % 3])
    c("XDEL", "readings", "1700000000251-1")
    c("TAPPEV", "returning texts", "COUNT", 60)
    c("SAVE")
    c("CONFIG", "SET", "appendfsync", "everysec")
    for number in range(1, 61):  # batches that the journal keeps in segments
        c("XADD", "in files", f"{number}-1", "n", number, "payload", f"{number}" * 9000)
    until(lambda: info(c)["log_tail_waiting_bytes"] == "0")
    for number in range(61, 65):
        c("XADD", "in files", f"{number}-1", "n", number, "payload", f"{number}" * 4500)
    c("XTRIM", "in files", "MAXLEN", 2)
    for number in range(30):
        c("XADD", "readings", f"{1_700_000_060_000 + number}-0", "sensor", f"{number % 10:02}", "t", f"{number}.5")


CODED_LAST: tuple[Words, ...] = (
    ("XADD", "in files", "90-1", "n", 90, "payload", "9" * 9000), ("XADD", "readings", "1700000070000-0", "t", "1.5"),
    ("XDEL", "thinned", "90-1"),
)  # fmt: skip
CODED_THEN: tuple[Words, ...] = (
    ("XRANGE", "readings", "1700000010000", "1700000020000"),
    ("XREVRANGE", "readings", "+", "-", "COUNT", 70),
    ("XREAD", "COUNT", 5, "STREAMS", "thinned", "50-0"),
    ("TRANGE", "thinned", "-", "+", "COUNT", 20),
    ("XDEL", "readings", "1700000015000-0"),
    ("XADD", "returning texts", "900-0", "level", "info", "host", "h1", "code", 200),
    ("XLEN", "returning texts"),
)  # fmt: skip


X_LAST: tuple[Words, ...] = (
    ("XDEL", "x", "50-1", "70-1"), ("XREADGROUP", "GROUP", "g", "ann", "COUNT", 3, "STREAMS", "x", ">"),
    ("XADD", "x", "71-0", "n", "in the WAL"), ("XACK", "x", "g", "5-1"),
)  # fmt: skip
X_THEN: tuple[Words, ...] = (
    ("XREADGROUP", "GROUP", "g", "ann", "COUNT", 2, "STREAMS", "x", ">"),
    ("XPENDING", "x", "g"),
    ("XACK", "x", "g", "4-1", "6-1"),
    ("XDEL", "x", "58-1", "59-1"),
    ("XRANGE", "x", "-", "+"),
    ("XADD", "x", "72-0", "n", "more"),
    ("XLEN", "x"),
)  # fmt: skip


LAST: tuple[Words, ...] = (  # what only the WAL has
    ("MULTI",), ("SET", "in the WAL", "v"), ("TAPPEND", "plain", "n", "last", "text", "in a transaction"), ("EXEC",),
    ("TMAPPEND", "only in the WAL", "FIELDS", 1, "n", "VALUES", *range(20)),
    ("TREAD", "only in the WAL", "0", 4, "GROUP", "g", 0, "RETRY", FAR, 0),
    ("TSTAGE", "again", FAR, "staged:a", "FIELDS", 1, "n", "VALUES", "from the WAL"),
    ("SETRANGE", "patched", 2, "from the WAL"), ("RENAME", "new name", "newest name"),
    ("TSTAGE", "last", FAR, "newest name", "FIELDS", 1, "n", "VALUES", 30, 31),
    ("TPUBLISH", "checked fence", 4, "CHECK", "checked again", "last"),
    ("TAPPEV", "newest name", "COUNT", 20),
)  # fmt: skip


def reads(c: Process) -> Iterator[Words]:
    """Commands that show everything."""
    yield ("DBSIZE",)
    yield ("KEYS", "*")
    for key in sorted(c("KEYS", "*")):
        kind = c("TYPE", key)
        yield "TYPE", key
        yield "PEXPIRETIME", key
        if kind == b"string":
            yield "GET", key
            continue
        yield "TRANGE", key, "-", "+"
        yield "TINFO", key
        yield "TGROUP", "LIST", key
        for group in c("TGROUP", "LIST", key):
            yield "TPENDING", key, group[1]
            yield "TPENDING", key, group[1], "-", "+", 1000
        if knows_xadd(c):
            yield "XRANGE", key, "-", "+"
            yield "XINFO", "STREAM", key, "FULL", "COUNT", 0
    for fence in ("fence", "checked fence", "no fence"):
        yield "TFENCE", fence


THEN: tuple[Words, ...] = (
    ("TREAD", "jobs", "", 10, "GROUP", "due", 0, "RETRY", FAR, 0),  # due messages first, then new ones
    ("TREAD", "jobs", "", 3, "GROUP", "pending", 0),
    ("TREAD", "jobs", "", 1, "GROUP", "without retry", 0),
    ("TREAD", "evicted", "", 2, "GROUP", "overtaken", 0),  # one null for what is gone
    ("TREAD", "evicted", "", 9, "GROUP", "pending and evicted", 0),  # a null for each
    ("TPUBLISH", "fence", 5, "two keys"),
    ("TPUBLISH", "fence", 6, "early"),
    ("TPUBLISH", "fence", 7, "dropped"),
    ("TPUBLISH", "fence", 7, "two keys", "again"),
    ("TPUBLISH", "fence", 7, "two keys", "again"),
    ("VALUES", "staged:a"),
    ("VALUES", "staged:b"),
    ("TAPPEV", "plain", "COUNT", 30),
    ("TMAPPEND", "never", "FIELDS", 1, "n", "VALUES", *range(10)),
    ("VALUES", "never"),
    ("INCR", "number"),
)


def codes_nodes(c: Process) -> bool:
    return b"tidelog_coded_nodes:1" in c("INFO", "server")


def knows_xadd(c: Process) -> bool:
    return bool(c("COMMAND", "INFO", "XADD")[0])


def without_seen(reply: Any) -> Any:
    """XINFO's reply without the times at which consumers were seen, which a kill sets back, and without nodes."""
    if not isinstance(reply, list):
        return reply
    kept: list[Any] = []
    at = 0
    while at < len(reply):
        if reply[at] in (b"seen-time", b"radix-tree-keys", b"radix-tree-nodes"):
            at += 2
        else:
            kept.append(without_seen(reply[at]))
            at += 1
    return kept


def answer(c: Any, words: Words) -> Any:
    """The reply to a command of THEN; IDs, which depend on the clock, are left out."""
    if words[0] == "VALUES":
        return [row[1:] for row in c("TRANGE", words[1], "-", "+")]
    reply = c(*words)
    return None if words[0] == "TMAPPEND" else reply


# -- directories -------------------------------------------------------------------------------------------------
def pack(directory: Path, target: Path) -> None:
    def neutral(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if member.name == "data/lock" else member

    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(directory, "data", filter=neutral)


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place, tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
        yield Path(place) / "data"


def make(checkout: Path, module: str, name: str, kill: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        c = Process(checkout, module, directory)
        first_part(c)
        x = knows_xadd(c)
        if x:
            x_first_part(c)
        coded = codes_nodes(c)
        if coded:
            coded_first_part(c)
        c("SAVE")
        if not kill:  # a replication history: a replica of nobody, then a leader again, twice
            for _ in range(2):
                c("REPLICAOF", "127.0.0.1", 1)
                c("REPLICAOF", "NO", "ONE")
                c("INCR", "number")
        second_part(c)
        if x:
            x_second_part(c)
        if coded:
            coded_second_part(c)
        until(lambda: info(c)["log_tail_waiting_bytes"] == "0")
        commands = list(reads(c))
        if kill:
            c.raw.pipeline(*LAST, *(X_LAST if x else ()), *(CODED_LAST if coded else ()))
            commands = list(reads(c))
        said = [[words, c(*words)] for words in commands]
        if kill:
            c("SET", "in the WAL", "v")  # once more: the journal may have taken all of LAST meanwhile
        facts = info(c)
        seconds, micros = map(int, c("TIME"))  # all that falls due soon has fallen due
        c.end(signal.SIGKILL if kill else signal.SIGTERM)
        if kill:
            assert int(facts["log_tail_waiting_bytes"]) > 0, "too slow: the journal has it all. Run this again"
            assert int(facts["log_journal_offset"]) > int(facts["log_store_offset"]) > 0
        pack(directory, HERE / f"{name}.tar.xz")
    with unpacked(HERE / f"{name}.tar.xz") as directory:
        c = Process(checkout, module, directory)
        for words, reply in said:
            assert comparable(words, c(*words)) == comparable(words, reply), words
        commands = [*THEN, *(X_THEN if x else ()), *(CODED_THEN if coded else ())]
        then = [[words, answer(c.raw, words)] for words in commands]
        c.end(signal.SIGTERM)
    kept = {
        "now": seconds * 1000 + micros // 1000,
        "info": {field: facts[field] for field in INFO},
        "reads": [written(words, reply) for words, reply in said],
        "then": [written(words, reply) for words, reply in then],
    }
    (HERE / f"{name}.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    for file in (HERE / f"{name}.tar.xz", HERE / f"{name}.json"):
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} KB")


def written(words: Words, reply: Any) -> list[Any]:
    return [[plain(word) if isinstance(word, bytes) else word for word in words], plain(comparable(words, reply))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("name", help="what the files' names begin with, such as format1")
    parser.add_argument("--module", default="_tidelog_server")
    options = parser.parse_args()
    for kind in ("store", "killed"):
        make(options.checkout, options.module, f"{options.name}-{kind}", kill=kind == "killed")


if __name__ == "__main__":
    main()
