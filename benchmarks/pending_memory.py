"""Memory and time a pending message takes, at 600,000 of them: ``python benchmarks/pending_memory.py [messages]``.

Each case runs in two processes of its own: one reads what the operating system counts (RSS), the other what Python
allocated (tracemalloc). Freed memory is used again but not returned to the system, so RSS is divided by the largest
number of messages that there were. Fails if either is above 150 bytes a message.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import measured

measured.import_from(measured.PARTS)

from storage.groups import pendingformat  # noqa: E402
from storage.groups.pending import PendingTable  # noqa: E402

NOW = 1_700_000_000_000
LIMIT = 150  # bytes a message
HOUR = 3_600_000


def entry_id(i: int) -> int:
    """As a stream gives them: three in each millisecond."""
    return NOW + i // 3 << 64 | i % 3


def raws(*ids: int) -> list[bytes]:
    return [i.to_bytes(16, "big") for i in ids]


def deliver(table: PendingTable, start: int, stop: int, retries: tuple[int, ...], rng: random.Random) -> None:
    for i in range(start, stop, 100):
        now, retry = NOW + i // 3, rng.choice(retries)
        ids = [entry_id(j) for j in range(i, min(i + 100, stop))]
        table.add(raws(*ids), now, now + retry, now + HOUR, retry, 9, b"dead")


def sequential(table: PendingTable, n: int, rng: random.Random) -> None:
    deliver(table, 0, n, (30_000,), rng)


def one_by_one(table: PendingTable, n: int, rng: random.Random) -> None:  # noqa: ARG001  # a case like the others
    for i in range(n):
        now = NOW + i // 3
        table.add(raws(entry_id(i)), now, now + 30_000, now + HOUR, 30_000, 9, b"dead")


def random_acks(table: PendingTable, n: int, rng: random.Random) -> None:
    """A random third of the messages is acknowledged, one by one."""
    deliver(table, 0, n, (30_000,), rng)
    for _ in range(n // 3):
        while not table.remove(raws(entry_id(rng.randrange(n)))):
            pass


def steady_state(table: PendingTable, n: int, rng: random.Random) -> None:
    """Acknowledgements in random order keep up with deliveries, until each message has been replaced once."""
    deliver(table, 0, n, (30_000,), rng)
    alive = array("I", range(n))
    for i in range(n, 2 * n, 100):
        batch = []
        for _ in range(100):
            at = rng.randrange(len(alive))
            alive[at], alive[-1] = alive[-1], alive[at]
            batch.append(entry_id(alive.pop()))
        table.remove(raws(*batch))
        deliver(table, i, i + 100, (30_000,), rng)
        alive.extend(range(i, i + 100))


def mixed_retries(table: PendingTable, n: int, rng: random.Random) -> None:
    for i in range(n):
        now, retry = NOW + i // 3, rng.choice((1_000, 5_000, 60_000, 600_000))
        table.add(raws(entry_id(i)), now, now + retry, now + HOUR, retry, 9, b"dead")


def redelivered(table: PendingTable, n: int, rng: random.Random) -> None:
    mixed_retries(table, n, rng)
    for _ in range(n // 2):
        table.set_due([entry_id(rng.randrange(n)).to_bytes(16, "big")], NOW + rng.randrange(HOUR))


CASES: dict[str, Callable[[PendingTable, int, random.Random], None]] = {
    case.__name__: case for case in (sequential, one_by_one, random_acks, steady_state, mixed_retries, redelivered)
}


def rss() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS in /proc/self/status")


def measure(case: str, how: str, n: int) -> None:
    """Print bytes a message, as the operating system (`rss`) or Python (`traced`) counts them, and the estimate."""
    table, rng = PendingTable(), random.Random(1)
    CASES[case](PendingTable(), 1000, rng)  # whatever is allocated once
    gc.collect()
    if how == "traced":
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] if how == "traced" else rss()
    CASES[case](table, n, rng)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0] if how == "traced" else rss()
    messages = n if how == "rss" else len(table)
    print((after - before) / messages, table.memory_bytes() / len(table))


def timings(n: int) -> None:
    """Print microseconds a message."""
    rng = random.Random(1)
    some = min(n // 6, 100_000)

    def clocked(label: str, count: int, run: Callable[[], object]) -> None:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        print(f"  {label:<34}{took / count * 1e6:8.2f} us a message{took * 1000:10.1f} ms")

    table = PendingTable()
    clocked("add", n, lambda: one_by_one(table, n, rng))
    clocked("dump", n, lambda: pendingformat.assemble(table.parts()))
    clocked("dump, parts only", n, table.parts)
    dump = bytes(pendingformat.assemble(table.parts()))
    clocked("load", n, lambda: PendingTable.load(dump))
    ids = [row.id for row in table.rows(0, (1 << 128) - 1, n)]
    clocked("remove, in order", some, lambda: [table.remove(raws(i)) for i in ids[:some]])
    rest = ids[some:]
    rng.shuffle(rest)
    clocked("remove, all over the list", some, lambda: [table.remove(raws(i)) for i in rest[:some]])

    def redeliver() -> None:
        for step in range(some // 100):
            for i in table.due(NOW + HOUR // 2, 100):
                table.redeliver([i.to_bytes(16, "big")], NOW + HOUR // 2 + 30_000 + step)

    clocked("due 100, redeliver each", some, redeliver)
    table = PendingTable()
    clocked("add, 100 each", n, lambda: sequential(table, n, rng))
    clocked("remove, 100 each", n, lambda: [table.remove(raws(*ids[i : i + 100])) for i in range(0, n, 100)])
    assert not len(table)


def main() -> None:
    if len(sys.argv) == 4:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        return
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 600_000
    failed = False
    print(f"{measured.described()}, {'compiled' if pendingformat.__file__.endswith('.so') else 'interpreted'}")
    print(f"{n} pending messages, bytes a message" + " " * 11 + "RSS   Python   estimate")
    for case in CASES:
        figures = []
        for how in ("rss", "traced"):
            command = [sys.executable, __file__, case, how, str(n)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            figures.append(float(out[0]))
        failed |= max(figures) > LIMIT
        print(f"  {case:<38}{figures[0]:8.1f} {figures[1]:8.1f} {float(out[1]):8.1f}")
    timings(n)
    if failed:
        sys.exit(f"more than {LIMIT} bytes a message")


if __name__ == "__main__":
    main()
