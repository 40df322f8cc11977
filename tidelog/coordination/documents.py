"""Documents on the server: strings that several processes change by compare-and-set.

    change(key, edit)     GET, then SET IFEQ (SET NX for a new document, DELEX IFEQ to delete it) until one succeeds

Rule 1: a document is replaced only if it still has exactly the bytes that were read, so no change is lost.
Rule 2: ``edit`` may be called several times, each time with the current document. It must not have side effects.
Rule 3: a change whose reply was lost may be made again: a document that already has the new bytes counts as changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.call import Call, Name

D = TypeVar("D")


def change(
    key: Name, edit: Callable[[bytes | None], tuple[bytes | None, D]], also: Sequence[Call[Any]] = ()
) -> Steps[D]:
    """Change a document; returns the second value that ``edit`` returned for the change that succeeded.

    ``edit`` gets the document, None if there is none, and returns the new document and a result of its own. If it
    returns the same document, nothing is written. If it returns None, the document is deleted. ``also``: calls that are
    sent with each attempt; nothing may depend on their replies.
    """
    (text,) = checked((yield [strings.get(key)]))
    while True:
        new, result = edit(text)
        if new == text:
            return result
        if new is None:
            (deleted,) = checked((yield [strings.delete_equal(key, text)])[:1])
            if deleted:
                return result
            (text,) = checked((yield [strings.get(key)]))
            continue
        swap = strings.set_absent(key, new) if text is None else strings.set_equal(key, new, text)
        (found,) = checked((yield [swap, *also])[:1])
        if found in (text, new):
            return result
        text = found


class _Version(msgspec.Struct):
    version: int


class VersionedDocument(Generic[D]):
    """Documents of one kind, in JSON: a Struct with the field ``version``, and with a default for each field.

    An invalid document, or one of an older version, is reported and treated as missing, so the next change replaces it.
    All methods raise ``error`` if a document has a newer version.
    """

    def __init__(self, kind: type[D], version: int, error: type[Exception], log: logging.Logger) -> None:
        self._kind = kind
        self._version = version
        self._error = error
        self._unreadable = UnreadableDocuments(log)

    def decoded(self, key: str, text: bytes | None) -> D:
        """Decode a document; None: it does not exist."""
        if text is None:
            return self._kind()
        try:
            found = msgspec.json.decode(text, type=_Version).version
            if found == self._version:
                return msgspec.json.decode(text, type=self._kind)
        except (ValueError, RecursionError) as failure:
            self._unreadable.report(key, failure)
            return self._kind()
        if found < self._version:
            self._unreadable.report(key, f"its version is {found}")
            return self._kind()
        raise self._error(f"{key!r} has version {found}, this program supports {self._version}: it is too old")

    def read(self, key: str) -> Steps[D]:
        """Read a document."""
        (text,) = checked((yield [strings.get(key)]))
        return self.decoded(key, text)

    def change(self, key: str, how: Callable[[D], D], also: Sequence[Call[Any]] = ()) -> Steps[D]:
        """Change a document; returns the new one. ``also``: see ``change``.

        ``how`` may be called several times; it returns its argument if there is nothing to change.
        """

        def edit(text: bytes | None) -> tuple[bytes | None, D]:
            before = self.decoded(key, text)
            after = how(before)
            return (text if after is before else msgspec.json.encode(after)), after

        return change(key, edit, also)
