"""The sample data: orders, page views, temperatures.

    orders            a topic with 4 partitions, of ``shop``
    page-views        24 hours of visits to the shop, with the consumer group ``recommendations``
    temperatures      a bounded stream: the server retains the newest 5,000 measurements

The same seed always produces the same values. The IDs of the page views and temperatures of the previous day are in the
past, so that the console has something to show over time.

Rule: the data is appended once. ``MARK`` is set at the end. After an interruption, the next start continues after the
      last entry.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from itertools import islice
from time import time
from typing import Any, Final

from tidelog.client.client import Client
from tidelog.client.entries import StreamPolicy
from tidelog.quickstart import shop
from tidelog.quickstart.shop import Line, Order

MARK: Final = "quickstart:data"  # a string; it exists once the data is complete
VIEWS: Final = "page-views"
TEMPERATURES: Final = "temperatures"
GROUP: Final = "recommendations"  # a consumer group of the page views, whose readers are stopped
DAY: Final = 24 * 3600 * 1000  # ms
VIEW_COUNT: Final = 6000  # of the previous day
TEMPERATURE_COUNT: Final = 2880  # one in 30 s
RETAINED: Final = 5000  # temperatures
VIEWS_RETAINED: Final = 100_000
UNREAD: Final = 900  # page views of the previous day that the group has not read
PENDING: Final = 14  # page views that were delivered to a reader that did not acknowledge them
CHUNK: Final = 500  # commands of one round trip
FIRST_ORDERS: Final = 240
FAILING: Final = {17, 101, 180}  # of the first orders: those with 0 installments

CUSTOMERS: Final = (
    "ada", "ben", "carla", "dmitri", "eve", "farid", "greta", "hiro", "ines", "jonas", "kofi", "lena", "mateo", "nadia",
    "olga", "pablo", "quinn", "rosa", "sami", "tove",
)  # fmt: skip
ITEMS: Final = (
    ("lantern", 24.9), ("rain jacket", 89.0), ("tent", 249.0), ("stove", 59.5), ("map of Lofoten", 14.0),
    ("thermos", 32.5), ("climbing rope", 119.0), ("headlamp", 44.9), ("sleeping bag", 159.0),
)  # fmt: skip
NOTES: Final = ("", "", "", "Leave it at the door, please.", "C/o Müller, 3rd floor", "Ring twice 🔔")
SOURCES: Final = ("direct", "newsletter", "search", "https://blog.example.org/gear", "social")
BROWSERS: Final = ("Firefox/145", "Chrome/142", "Safari/26", "curl/8.16")
SENSORS: Final = ("warehouse", "cold store", "office")


def order(number: int, chance: random.Random, failing: bool = False) -> Order:
    """Return the order with this number. failing: the worker cannot bill it."""
    lines = [
        Line(item, chance.choice((1, 1, 1, 2, 3)), price)
        for item, price in chance.sample(ITEMS, chance.choice((1, 1, 2, 3)))
    ]
    return Order(
        1000 + number, chance.choice(CUSTOMERS), chance.choices(tuple(shop.BANKS), (60, 4, 36))[0], lines,
        0 if failing else chance.choice((1, 1, 1, 3, 6)), chance.random() < 0.1, chance.choice(NOTES),
    )  # fmt: skip


def view(chance: random.Random) -> dict[str, str]:
    """Return a page view."""
    item = chance.choice(ITEMS)[0]
    found = {
        "page": chance.choices((f"/items/{item.replace(' ', '-')}", "/cart", "/search"), (70, 15, 15))[0],
        "visitor": f"{chance.choice(CUSTOMERS)}-{chance.randrange(100)}",
        "ms": str(int(chance.lognormvariate(4.2, 0.6))),
    }
    width, source = chance.choice((390, 820, 1440)), chance.choice(SOURCES)
    found["client"] = json.dumps({"agent": chance.choice(BROWSERS), "width": width, "source": source})
    if found["page"] == "/search":
        found["query"] = json.dumps({"text": item, "filters": {"price": [0, chance.choice((50, 100, 500))]}})
    return found


def temperature(ms: int, chance: random.Random) -> dict[str, str]:
    """Return a measurement at a time in ms since 1970."""
    sensor = chance.choice(SENSORS)
    usual = {"warehouse": 14.0, "cold store": 4.0, "office": 21.0}[sensor]
    wave = 2.5 * math.sin(2 * math.pi * (ms % DAY) / DAY - 2)
    return {"sensor": sensor, "celsius": f"{usual + wave + chance.gauss(0, 0.3):.1f}"}


def views_of_a_day(now: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Return the times and page views of the 24 hours before a time in ms; most of them are in the evening."""
    chance = random.Random(1)
    midnight = now - now % DAY
    weights = [1 + math.cos(2 * math.pi * (hour - 19) / 24) for hour in range(24)]
    hours = chance.choices(range(24), weights, k=VIEW_COUNT)
    times = (midnight + hour * 3_600_000 + chance.randrange(3_600_000) for hour in hours)
    for ms in sorted(ms if ms < now else ms - DAY for ms in times):
        yield ms, view(chance)


def temperatures_of_a_day(now: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Return the times and measurements of the 24 hours before a time in ms."""
    chance = random.Random(2)
    for ms in range(now - DAY, now, DAY // TEMPERATURE_COUNT):
        yield ms, temperature(ms, chance)


def fill(client: Client) -> None:
    """Append the sample data, unless it is complete."""
    if client.redis.exists(MARK):
        return
    now = int(time() * 1000)
    client.tcfg_retain(VIEWS, StreamPolicy(count=VIEWS_RETAINED))
    client.tcfg_retain(TEMPERATURES, StreamPolicy(count=RETAINED))
    _append(client, VIEWS, views_of_a_day, now)
    _append(client, TEMPERATURES, temperatures_of_a_day, now)
    _read_some(client)
    chance = random.Random(3)
    shop.orders.sync.send_many(order(number, chance, number in FAILING) for number in range(FIRST_ORDERS))
    shop.orders.sync.close()
    client.redis.set(MARK, now)


def _append(client: Client, key: str, entries: Callable[[int], Iterator[tuple[int, dict[str, str]]]], now: int) -> None:
    last = client.tinfo(key).last.ms
    left = ((ms, fields) for ms, fields in entries(now) if ms > last)
    while chunk := list(islice(left, CHUNK)):
        pipe: Any = client.redis.pipeline(transaction=False)
        for ms, fields in chunk:
            pipe.xadd(key, fields, id=f"{ms}-*")
        pipe.execute()


def _read_some(client: Client) -> None:
    """Create the group, and read page views with two readers, one of which does not acknowledge the last ones."""
    redis: Any = client.redis
    if any(group.name == GROUP.encode() for group in client.tgroup_list(VIEWS)):
        return
    recent = client.trevrange(VIEWS, count=UNREAD + 101)
    redis.xgroup_create(VIEWS, GROUP, str(recent[-1].id).replace(".", "-"))
    for reader, count, pending in (("reader-1", 60, 0), ("reader-2", 40, PENDING)):
        ((_, found),) = redis.xreadgroup(GROUP, reader, {VIEWS: ">"}, count=count)
        done = [entry_id for entry_id, _ in found[: count - pending]]
        redis.xack(VIEWS, GROUP, *done)
