"""Keyspace events: the classes that ``notify-keyspace-events`` names, and what waits to be told to clients.

A handler calls ``ks.notify(events.STREAM, b"xadd", key)`` after the mutator that made the change, once for each event,
in Redis's order. While the class is off that costs one attribute test. Nothing is sent here: the server takes
``ks.events`` after the command, and what it sends leaves with the tick, when the change is on disk.

Rule 1: mutators notify of nothing but ``new`` and ``expired``: replay calls them, too, and a record is an effect, not a
command. So a replica fires nothing but ``keymiss``.
Rule 2: a changed key is in the same list, for CLIENT TRACKING, in order with the events: ``CHANGED`` and its name.
"""

from __future__ import annotations

from typing import Final

# what is published
KEYSPACE: Final = 1  # K: __keyspace@0__:key with the event
KEYEVENT: Final = 2  # E: __keyevent@0__:event with the key
# classes of events
GENERIC: Final = 4  # g
STRING: Final = 8  # $
STREAM: Final = 16  # t
EXPIRED: Final = 32  # x
EVICTED: Final = 64  # e: never fires, as no key is evicted
MISS: Final = 128  # m
NEW: Final = 256  # n
OVERWRITTEN: Final = 512  # o
TYPE_CHANGED: Final = 1024  # c
OTHERS: Final = 2048  # the first of l s h z d, whose types are not here

CHANGED: Final = b""  # in place of an event's name: the key has changed
FLUSHED: Final = b"*"  # and here all keys have; no event has this name

_ALL: Final = "g$lshzxetd"  # what A stands for, in the order in which the classes are shown
_LETTERS: Final = {
    "K": KEYSPACE, "E": KEYEVENT, "g": GENERIC, "$": STRING, "t": STREAM, "x": EXPIRED, "e": EVICTED, "m": MISS,
    "n": NEW, "o": OVERWRITTEN, "c": TYPE_CHANGED,
    "l": OTHERS, "s": OTHERS << 1, "h": OTHERS << 2, "z": OTHERS << 3, "d": OTHERS << 4,
}  # fmt: skip


def parse_classes(text: str) -> int:
    """The classes that letters stand for. Raises ValueError."""
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
    """The letters of classes, as CONFIG GET shows them."""
    whole = parse_classes(_ALL)
    first = "A" if classes & whole == whole else _ALL
    return "".join([c for c in first + "nocKEm" if c == "A" or classes & _LETTERS[c]])


def fired(classes: int, follower: bool) -> int:
    """Of the classes those that fire, 0 if nothing is published."""
    if not classes & (KEYSPACE | KEYEVENT):
        return 0
    return classes & (KEYSPACE | KEYEVENT | MISS) if follower else classes
