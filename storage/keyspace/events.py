"""Keyspace events: the classes of ``notify-keyspace-events``, and notifications that are pending for clients.

A handler calls ``ks.notify(events.STREAM, b"xadd", key)`` after the mutator of the change, once for each event, in the
same order as Redis. While the class is disabled, this costs one attribute test. Nothing is sent here. The server takes
``ks.events`` after the command and sends the messages with the tick, when the change is on disk.

Rule 1: mutators publish only ``new`` and ``expired``, since replay calls them, too, and a record is an effect, not a
command. A replica therefore publishes only ``keymiss``.
Rule 2: changed keys are in the same list, in order with the events, for CLIENT TRACKING: ``CHANGED`` and the key.
"""

from __future__ import annotations

from typing import Final

# what is published for an event
KEYSPACE: Final = 1  # K: __keyspace@0__:key with the event
KEYEVENT: Final = 2  # E: __keyevent@0__:event with the key
# classes of events
GENERIC: Final = 4  # g
STRING: Final = 8  # $
STREAM: Final = 16  # t
EXPIRED: Final = 32  # x
EVICTED: Final = 64  # e: never published, since no key is evicted
MISS: Final = 128  # m
NEW: Final = 256  # n
OVERWRITTEN: Final = 512  # o
TYPE_CHANGED: Final = 1024  # c
OTHERS: Final = 2048  # the first of l s h z d, whose types are not supported

CHANGED: Final = b""  # instead of an event's name: the key has changed
FLUSHED: Final = b"*"  # instead of an event's name: all keys have changed

_ALL: Final = "g$lshzxetd"  # the classes of A, in the order of CONFIG GET
_LETTERS: Final = {
    "K": KEYSPACE, "E": KEYEVENT, "g": GENERIC, "$": STRING, "t": STREAM, "x": EXPIRED, "e": EVICTED, "m": MISS,
    "n": NEW, "o": OVERWRITTEN, "c": TYPE_CHANGED,
    "l": OTHERS, "s": OTHERS << 1, "h": OTHERS << 2, "z": OTHERS << 3, "d": OTHERS << 4,
}  # fmt: skip


def parse_classes(text: str) -> int:
    """Return the classes that correspond to letters. Raises ValueError if a letter is unknown."""
    found = 0
    for letter in text:
        if letter == "A":
            found |= parse_classes(_ALL)
        elif letter in _LETTERS:
            found |= _LETTERS[letter]
        else:
            raise ValueError("Invalid event class character. Use 'Ag$lshzxeKEtmdnoc'.")
    return found


def show_classes(classes: int) -> str:
    """Return the letters of classes, as CONFIG GET shows them."""
    whole = parse_classes(_ALL)
    first = "A" if classes & whole == whole else _ALL
    return "".join([c for c in first + "nocKEm" if c == "A" or classes & _LETTERS[c]])


def fired(classes: int, follower: bool) -> int:
    """Return the classes that this server publishes; 0 if there are none."""
    if not classes & (KEYSPACE | KEYEVENT):
        return 0
    return classes & (KEYSPACE | KEYEVENT | MISS) if follower else classes
