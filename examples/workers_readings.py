"""Workers that process thermometer readings. Each reading takes effect once, even if processes die.

    TIDELOG_URL=redis://localhost:6379 tidelog worker examples.workers_readings:app --workers 3

``convert`` sends each reading in degrees Celsius, together with the acknowledgement: exactly once. ``publish`` calls a
slow service for each reading, many at a time but never two of one day, and records the result: at least once, in order.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from tidelog.workers import App, Event


class Reading(msgspec.Struct):
    """The measurement of one hour."""

    day: str  # city and day: the readings of a day stay in order
    hour: int
    fahrenheit: float


class Converted(msgspec.Struct):
    """A reading in degrees Celsius."""

    day: str
    hour: int
    celsius: float


LEASE = float(os.environ.get("LEASE", "10"))
app = App("thermometers", url=os.environ.get("TIDELOG_URL", "redis://localhost:6379"), lease=LEASE)
readings = app.topic("readings", Reading, partition_by="day", partitions=8)
converted = app.topic("converted", Converted, partition_by="day", partitions=8)
published = app.topic("published", Reading, partition_by="day", partitions=8)


@app.each(readings, transactional=True)
async def convert(event: Event[Reading]) -> None:
    reading = event.record
    celsius = round((reading.fahrenheit - 32) / 1.8, 2)
    await event.send(converted, Converted(reading.day, reading.hour, celsius))


@app.each(readings, ordering="key", concurrency=50)
async def publish(reading: Reading) -> None:
    await asyncio.sleep(0.002)  # a slow service
    await published.send(reading)
