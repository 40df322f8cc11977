"""Documents on the server: strings that several processes change by compare-and-set.

    change(key, edit)     GET, then SET IFEQ (SET NX for a new document, DELEX IFEQ to delete it) until one succeeds

Rule 1: a document is replaced only if it still has exactly the bytes that were read, so no change is lost.
Rule 2: ``edit`` may be called several times, each time with the current document. It must not have side effects.
Rule 3: a change whose reply was lost may be made again: a document that already has the new bytes counts as changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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


def decode(
    key: str, text: bytes, kind: type[D], version: int, unreadable: UnreadableDocuments, error: type[Exception]
) -> D | None:
    """Decode a document in JSON that has the field ``version``.

    An invalid document, or one of an older version, is reported. Returns None then: the next change replaces it.
    Raises ``error`` if the document has a newer version.
    """
    try:
        found = msgspec.json.decode(text, type=_Version).version
        if found == version:
            return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as failure:
        unreadable.report(key, failure)
        return None
    if found < version:
        unreadable.report(key, f"its version is {found}")
        return None
    raise error(f"{key!r} has version {found}, this program supports {version}: it is too old")
