"""A move of slots with keys under load: ``python -m benchmarks.slotmoves [--entries N] [--rate R] [--writers W]``.

Two groups of one server share the slots. Writers append numbers to streams in the slots of group 1, in batches at a
fixed rate, and follow MOVED. Meanwhile, all slots of group 1 move to group 2. At the end, the program counts the
entries: each acknowledged number must be there once. The longest pause is the longest time from the sending of a batch
to the last of its replies. For comparison, the program shows the longest pause in the seconds before the move.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import redis

from benchmarks.clustermode import assign, names, packed, ready
from commands.slots import SLOTS
from tidelog.testing import Server, running_server

BATCH = 25  # appends
BEFORE = 5.0  # seconds of load before the move


class MovedWriter:
    """A client of both groups."""

    def __init__(self, number: int, keys: list[bytes], ports: list[int], rate: float) -> None:
        self._number, self._keys, self._ports, self._rate = number, keys, ports, rate
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._owner = dict.fromkeys(keys, ports[0])
        self.acknowledged: list[int] = []
        self.pauses: list[tuple[float, float]] = []  # when a batch was sent, seconds until its last reply
        self.stopping = False

    async def run(self) -> None:
        sent, following = 0, time.perf_counter()
        for port in self._ports:
            self._streams[port] = await asyncio.open_connection("127.0.0.1", port)
        while not self.stopping:
            following += BATCH / self._rate
            await asyncio.sleep(max(0.0, following - time.perf_counter()))
            following = max(following, time.perf_counter() - 0.2)  # after a pause, it does not catch up with all
            numbers = [self._number + 1000 * (sent + at) for at in range(BATCH)]
            sent += BATCH
            began = time.perf_counter()
            await self._append({number: self._keys[number // 1000 % len(self._keys)] for number in numbers})
            self.pauses.append((began, time.perf_counter() - began))

    async def _append(self, left: dict[int, bytes]) -> None:
        while left:
            by_port: dict[int, list[int]] = {}
            for number, key in left.items():
                by_port.setdefault(self._owner[key], []).append(number)
            for port, some in by_port.items():
                calls = [packed(b"XADD", left[number], b"*", b"n", b"%d" % number) for number in some]
                self._streams[port][1].write(b"".join(calls))
            for port, some in by_port.items():
                reader = self._streams[port][0]
                for number in some:
                    line = await reader.readline()
                    if line.startswith(b"$"):
                        await reader.readline()
                        self.acknowledged.append(number)
                        del left[number]
                    elif line.startswith(b"-MOVED"):
                        self._owner[left[number]] = int(line.rpartition(b":")[2])
                    else:
                        raise RuntimeError(line.decode())


def filled(port: int, keys: list[bytes], entries: int) -> None:
    with redis.Redis(port=port) as client:
        for start in range(0, entries, 10_000):
            with client.pipeline(transaction=False) as pipe:
                for number in range(start, min(start + 10_000, entries)):
                    pipe.execute_command("XADD", keys[number % len(keys)], "*", "old", number, "text", "x" * 80)
                pipe.execute()


async def moved(ports: list[int], keys: list[bytes], rate: float, count: int) -> dict[str, float]:
    """Move the slots under load. Return the figures."""
    writers = [MovedWriter(at, keys[at::count], ports, rate / count) for at in range(count)]
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    await asyncio.sleep(BEFORE)
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
    writer.write(packed(b"TCLUSTER", b"MOVE", b"0-%d" % (SLOTS // 2 - 1), b"TO", b"2"))
    reply = await reader.readline()
    ended = time.perf_counter()
    if reply != b"+OK\r\n":
        raise RuntimeError(reply.decode())
    await asyncio.sleep(1.0)
    for each in writers:
        each.stopping = True
    await asyncio.gather(*tasks)
    pauses = [pause for each in writers for pause in each.pauses]
    acknowledged = [number for each in writers for number in each.acknowledged]
    found: list[int] = []
    with redis.Redis(port=ports[1]) as client:
        for key in keys:
            found += [int(fields[b"n"]) for _, fields in client.xrange(key) if b"n" in fields]
    return {
        "appends/s before the move": sum(BATCH for at, _ in pauses if at < began) / BEFORE,
        "appends/s during the move": sum(BATCH for at, _ in pauses if began <= at < ended) / (ended - began),
        "seconds of the move": ended - began,
        "longest pause before, ms": 1000 * max(took for at, took in pauses if at < began - 0.5),
        "longest pause during, ms": 1000 * max(took for at, took in pauses if at >= began - 0.5),
        "acknowledged": len(acknowledged),
        "lost": len(set(acknowledged) - set(found)),
        "doubled": len(found) - len(set(found)),
    }


def run(entries: int, rate: float, writers: int, streams: int, pause: int) -> dict[str, float]:
    with ExitStack() as stack:
        top = stack.enter_context(tempfile.TemporaryDirectory())

        def group(name: str) -> Server:
            return ready(stack.enter_context(running_server(
                appendfsync="no", cluster_enabled="yes", group=name, coordinator=f"file://{top}/coordinator",
                min_in_sync=1, replica_acks=0, move_pause=pause,
            )))  # fmt: skip

        one, two = group("1"), group("2")
        assign(one, f"{SLOTS // 2}-{SLOTS - 1}", "2")
        keys = [b"%b%d" % (key, at) for at in range(1 + streams // 100) for key in names(b"k")][:streams]
        filled(one.port, keys, entries)
        return asyncio.run(moved([one.port, two.port], keys, rate, writers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=20_000.0)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--move-pause", type=int, default=200)
    options = parser.parse_args()
    found = run(options.entries, options.rate, options.writers, options.streams, options.move_pause)
    print(json.dumps({name: round(value, 1) for name, value in found.items()}, indent=1))


if __name__ == "__main__":
    main()
