"""Texts of exceptions, for logs, dead letters and statuses.

Rule 1: nothing here raises, whatever the exception's own code does: an error whose ``str()`` fails is an error like any
        other.
"""

from __future__ import annotations

import traceback
from typing import Final

from tidelog.client.refusals import words

LONGEST: Final = 10_000  # characters of a text for logs


def message(error: BaseException) -> str:
    """Its ``str()``; of an error reply, what the server said."""
    try:
        text = words(error)
        return text if type(text) is str else str.__str__(text)
    except BaseException as failed:  # noqa: BLE001 - it is the exception's own code
        return f"<str() of this {type(error).__name__} raises {type(failed).__name__}>"


def said(error: BaseException) -> str:
    """One line of bounded length: its class and its message."""
    text = message(error)[:LONGEST]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traced(error: BaseException) -> str:
    """Its traceback, with what caused it."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as failed:  # noqa: BLE001 - as above
        where = traceback.format_tb(error.__traceback__)
        return "".join(where) + f"{said(error)}\n<its causes can't be shown: {type(failed).__name__}>\n"
