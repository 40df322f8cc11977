"""The rows of scripts/demo_history.py: real temperatures, repeated with shifted times, and the totals of all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from examples.jobs_clicks import real_clicks
from tidelog.client.entries import Span
from tidelog.client.packedrows import tmappend_packed
from tidelog.transport.call import Call

STREAM: Final = "temps"
FIELDS: Final = ("station", "city", "date", "temp")
BATCH: Final = 10_000  # rows of one command


class Reading(NamedTuple):
    """The temperature of a city in an hour."""

    at: datetime
    city: str
    temp: float  # degrees Fahrenheit, with one decimal


class Total(NamedTuple):
    """All rows of a city in a month."""

    city: str
    month: int
    rows: int
    tenths: int  # the sum of the temperatures, in tenths of a degree


def real_readings() -> list[Reading]:
    """Return a year of hourly temperatures of two cities, ordered by time (vega_datasets)."""
    return [Reading(each.at, each.city, each.temp) for each in real_clicks()]


class Rows:
    """Each reading, repeated for a number of stations. Station n is n-th in the hour: its time is shifted.

    With fewer rows than readings, there is one station, and the first readings only.
    """

    def __init__(self, readings: Sequence[Reading], rows: int) -> None:
        self.readings = readings[:rows]
        self.stations = -(-rows // len(self.readings))
        self.count = self.stations * len(self.readings)

    def calls(self) -> Iterator[tuple[int, Call[Span]]]:
        """Yield the number of rows of each command that appends them, and the command."""
        seconds = [3600 * station // self.stations for station in range(self.stations)]
        template = b"".join(
            b"$%d\r\n%d\r\n#:%02d:%02d\r\n@" % (len(str(station)), station, second // 60, second % 60)
            for station, second in enumerate(seconds)
        )
        at_once = max(1, BATCH // self.stations)  # readings of one command
        for first in range(0, len(self.readings), at_once):
            some = self.readings[first : first + at_once]
            values = b"".join(_filled(template, reading) for reading in some)
            count = len(some) * self.stations
            yield count, tmappend_packed(STREAM, FIELDS, count, values)

    def totals(self) -> list[Total]:
        """Return the totals that the rows must have, by city and month."""
        found: dict[tuple[str, int], list[int]] = {}
        for reading in self.readings:
            sums = found.setdefault((reading.city, reading.at.month), [0, 0])
            sums[0] += self.stations
            sums[1] += self.stations * round(reading.temp * 10)
        return [Total(*key, *sums) for key, sums in sorted(found.items())]


def _filled(template: bytes, reading: Reading) -> bytes:
    """Return the values of a reading at all stations, as RESP strings."""
    city, temp = reading.city.encode(), b"%.1f" % reading.temp
    hour = b"$%d\r\n%b\r\n$19\r\n%b" % (len(city), city, f"{reading.at:%Y-%m-%d %H}".encode())
    return template.replace(b"#", hour).replace(b"@", b"$%d\r\n%b\r\n" % (len(temp), temp))
