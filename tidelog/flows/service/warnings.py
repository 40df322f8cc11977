"""``RecentWarnings``: the warnings and errors that flows have logged, without those that are repeated."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, Final

from tidelog.operating.redaction import redacted

KEPT: Final = 200
LONGEST: Final = 1000  # characters


class RecentWarnings(logging.Handler):
    """A handler of the logger of flows. Use it as a context manager."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._one = threading.Lock()

    def __enter__(self) -> RecentWarnings:
        logging.getLogger("tidelog.flows").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("tidelog.flows").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = redacted(record.getMessage())
        text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
        at = round(record.created * 1000)
        with self._one:
            last = self._found[-1] if self._found else None
            if last is not None and last["text"] == text:
                last["at"], last["times"] = at, last["times"] + 1
            else:
                self._found.append({"at": at, "level": record.levelname.lower(), "text": text, "times": 1})

    def of(self, aliases: list[str] | None = None) -> list[dict[str, Any]]:
        """Return the warnings of instances, latest first; without ``aliases``, of the whole process.

        Messages about a flow begin with its alias.
        """
        with self._one:
            found = [dict(each) for each in reversed(self._found)]
        if aliases is None:
            return found
        begins = tuple(f"{alias}{mark}" for alias in aliases for mark in (":", "/"))
        return [each for each in found if each["text"].startswith(begins)]
