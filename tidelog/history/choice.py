"""``history``: the option with which a caller chooses where copied entries are read.

    auto    from objects if there are many entries and the objects can be read, else from the server, with a warning
    direct  from objects; an error if they can't be read
    server  from the server
"""

from __future__ import annotations

import logging
from typing import Final

from tidelog.history.errors import HistoryError, NoHistoryError

AUTO: Final = "auto"
DIRECT: Final = "direct"
SERVER: Final = "server"
CHOICES: Final = (AUTO, DIRECT, SERVER)
#: Entries of a stream, below which ``auto`` reads them from the server: it sends 20,000 in the time of two requests.
FEWEST: int = 20_000
NEEDED: Final = "history=server reads from the server instead"

log = logging.getLogger(__name__)


def check(choice: str) -> str:
    """Return the choice. Raises ValueError if it is none."""
    if choice not in CHOICES:
        raise ValueError(f"history must be one of {', '.join(CHOICES)}: {choice!r}")
    return choice


def report(error: Exception, choice: str) -> None:
    """Handle entries that can't be read from objects. Raises HistoryError for ``direct``; otherwise logs the error."""
    if choice == DIRECT:
        raise HistoryError(f"{error}. {NEEDED}") from error
    if isinstance(error, NoHistoryError):
        log.debug("%s: the entries are read from the server", error)
    else:
        log.warning("%s: the entries are read from the server", error)
