"""The text format of Prometheus, version 0.0.4.

The format takes these 60 lines, so that the base installation does not need prometheus-client (1 MB, a registry with
locks, and no way to pause). The tests read the text with the parser of prometheus-client.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from respserver.metrics.families import HISTOGRAM, MetricFamily

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABEL_MOST: Final = 256  # characters of a label's value; a longer one is shortened
LINES: Final = 50  # of a piece; formatting them takes about 0.1 ms

Labels = tuple[str | bytes, ...]
Sample = tuple[Labels, float]  # of one family
Buckets = tuple[list[tuple[float, int]], int, float]  # (upper bound, calls up to it), number of calls, sum in seconds


def label(value: str | bytes) -> str:
    """Return the value of a label, escaped. Different bytes have different texts.

    Bytes that are not UTF-8 become ``\\xff``. The digest of the bytes is added to such a text and to one that is too
    long, as another key can have the same text or the same beginning.
    """
    text = value if isinstance(value, str) else value[: 4 * LABEL_MOST].decode("utf-8", "backslashreplace")
    if len(text) > LABEL_MOST or (isinstance(value, bytes) and text.encode() != value):
        raw = value.encode() if isinstance(value, str) else value
        text = f"{text[:LABEL_MOST]}~{blake2b(raw, digest_size=8).hexdigest()}"
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _line(name: str, names: tuple[str, ...], values: Labels, value: float) -> str:
    if not names:
        return f"{name} {number(value)}\n"
    pairs = ",".join([f'{key}="{label(text)}"' for key, text in zip(names, values, strict=True)])
    return f"{name}{{{pairs}}} {number(value)}\n"


def _histogram(family: MetricFamily, values: Labels, buckets: Buckets) -> Iterator[str]:
    bounds, calls, seconds = buckets
    names = (*family.labels, "le")
    for upper, count in bounds:
        yield _line(f"{family.name}_bucket", names, (*values, number(upper)), count)
    yield _line(f"{family.name}_bucket", names, (*values, "+Inf"), calls)
    yield _line(f"{family.name}_sum", family.labels, values, seconds)
    yield _line(f"{family.name}_count", family.labels, values, calls)


def lines(family: MetricFamily, samples: list[Sample], histograms: list[tuple[Labels, Buckets]]) -> Iterator[str]:
    """Yield the lines of a family; none without samples."""
    if not samples and not histograms:
        return
    yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    if family.kind == HISTOGRAM:
        for values, buckets in histograms:
            yield from _histogram(family, values, buckets)
        return
    for values, value in samples:
        yield _line(family.name, family.labels, values, value)


def pieces(text: Iterator[str]) -> Iterator[bytes]:
    """Yield the joined lines, LINES at a time."""
    some: list[str] = []
    for line in text:
        some.append(line)
        if len(some) == LINES:
            yield "".join(some).encode()
            some.clear()
    if some:
        yield "".join(some).encode()
