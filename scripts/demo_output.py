"""Output and checks that the demos share."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tidelog
from tidelog import Client


def title(text: str) -> None:
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


@contextmanager
def demo(ending: str) -> Iterator[None]:
    """Prepare output and signals of a demo, and print its duration at the end."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that child processes are stopped
    began = time.monotonic()
    try:
        yield
    except KeyboardInterrupt:
        title("Interrupted: everything is stopped.")
        sys.exit(130)  # as a shell shows SIGINT
    title(f"That was all, in {time.monotonic() - began:.0f} s. {ending}")


def say(text: str = "") -> None:
    print(f"   {text}" if text else "", flush=True)


def promise(kept: bool, text: str) -> None:
    """Check a guarantee. The demo ends if it is violated."""
    say(f"{'✓' if kept else '✗ NOT TRUE:'} {text}")
    if not kept:
        sys.exit(1)


def which_tidelog(client: Client) -> str:
    """Return version and origin: an ordinary installation if there is one, otherwise this checkout."""
    info = client.redis.info("server")
    how = "compiled" if info["tidelog_compiled"] else "interpreted"
    return f"it is tidelog {info['tidelog_version']}, {how}, from {Path(tidelog.__file__).parent.parent}"


def sparkline(values: Iterable[float]) -> str:
    heights = list(values)
    low, high = min(heights), max(heights)
    return "".join("▁▂▃▄▅▆▇█"[round((v - low) / ((high - low) or 1) * 7)] for v in heights)


def hushed(context: object) -> None:
    """Suppress Spark's traceback for a query that is stopped while its JVM reports metrics of tasks."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
