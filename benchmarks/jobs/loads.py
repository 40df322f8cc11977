"""The topics, what is in them, and what must come out: the same for each way that is measured.

Rule 1: a figure counts only where the outputs are right. ``check_totals`` and ``check_filtered`` raise otherwise.
Rule 2: each window of ``keys`` entries that follow each other has each key once. So a batch of so many entries has so
        many distinct keys (roughly: a batch ends at another place in each partition).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec

from tidelog import Client
from tidelog.testing import Server
from tidelog.topics import Topic

PARTITIONS: Final = 2  # one for each core of local[2]
PRICES: Final = 100
CHEAP: Final = 10  # below: to one output
DEAR: Final = 90  # from here on: to the other
WINDOW: Final = 20_000  # rows sent at once


class Click(msgspec.Struct):
    n: int
    key: str
    price: int


class Total(msgspec.Struct):
    key: str
    count: int


clicks: Topic[Click] = Topic("clicks", Click, partition_by="key", partitions=PARTITIONS)
totals: Topic[Total] = Topic("totals", Total, partition_by="key", partitions=PARTITIONS)
cheap: Topic[Click] = Topic("cheap", Click, partition_by="key", partitions=PARTITIONS)
dear: Topic[Click] = Topic("dear", Click, partition_by="key", partitions=PARTITIONS)
TOPICS: Final[tuple[Topic[Any], ...]] = (clicks, totals, cheap, dear)


class Load(NamedTuple):
    """So many rows of so many keys; a batch has at most ``batch`` rows, over all partitions."""

    rows: int
    keys: int
    batch: int

    @property
    def most(self) -> int:
        """Rows of a batch in one partition."""
        return max(1, self.batch // PARTITIONS)


@contextmanager
def on(server: Server) -> Iterator[None]:
    """The topics are on this server until the end."""
    with _elsewhere(list(TOPICS), server.url):
        yield


@contextmanager
def _elsewhere(topics: list[Topic[Any]], url: str) -> Iterator[None]:
    if not topics:
        yield
        return
    with topics[0].elsewhere(url), _elsewhere(topics[1:], url):
        yield


def made(load: Load, first: int = 0) -> Iterator[Click]:
    """The entries from number ``first`` on."""
    for n in range(first, first + load.rows):
        yield Click(n, f"key-{n % load.keys}", n * 7919 % PRICES)


def fill(server: Server, load: Load, first: int = 0) -> None:
    """Send them; the other topics are made too."""
    with on(server):
        for topic in TOPICS[1:]:
            topic.sync.send_many([])
        clicks.sync.send_many(made(load, first))


def pages(client: Client, topic: Topic[Any]) -> Iterator[list[dict[str, str]]]:
    """All entries of a topic, partition by partition, in order."""
    for partition in range(PARTITIONS):
        after = "-"
        while entries := client.trange(topic.stream(partition), after, count=WINDOW):
            yield [entry.text() for entry in entries]
            after = f"({entries[-1].id}"


def check_totals(client: Client, load: Load) -> None:
    """The last count of each key is the number of its entries, and counts of a key only grow."""
    last: dict[str, int] = {}
    for page in pages(client, totals):
        for row in page:
            count = int(row["count"])
            if count <= last.get(row["key"], 0):
                raise AssertionError(f"{row['key']}: {count} after {last[row['key']]}")
            last[row["key"]] = count
    whole, rest = divmod(load.rows, load.keys)
    wanted = {f"key-{k}": whole + (k < rest) for k in range(min(load.keys, load.rows))}
    if last != wanted:
        wrong = [key for key in wanted if last.get(key) != wanted[key]]
        raise AssertionError(f"{len(wrong)} of {len(wanted)} totals are wrong; the first: {wrong[:3]}")


def check_filtered(client: Client, load: Load) -> None:
    """Each entry that passes the filter is in its output, once."""
    for topic, wanted in (
        (cheap, [click.n for click in made(load) if click.price < CHEAP]),
        (dear, [click.n for click in made(load) if click.price >= DEAR]),
    ):
        found = sorted(int(row["n"]) for page in pages(client, topic) for row in page)
        if found != wanted:
            raise AssertionError(f"{topic.name} has {len(found)} entries instead of {len(wanted)}, or others")
