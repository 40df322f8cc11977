"""``FIELDS n field ... VALUES value ...``: many entries with the same fields in one command."""

from __future__ import annotations

from collections.abc import Sequence

from commands.entries import COUNTS
from commands.parse import integer
from resp import errors
from resp.errors import CommandError
from resp.reply import array_header

MOST_AT_ONCE = 512 << 20  # bytes of entries that one command may make


class Rows:
    """The entries that such words describe. An entry is ``head``, its ID, and one of bodies()."""

    __slots__ = ("_template", "_values", "_width", "head", "total")

    def __init__(self, words: Sequence[bytes], command: str) -> None:
        """``words``: FIELDS and all behind it; ``command`` in lower case. Raises CommandError."""
        if words[0].upper() != b"FIELDS":
            raise errors.syntax()
        width = integer(words[1])
        if not 1 <= width <= len(words):
            raise CommandError(errors.BAD_FIELDS)
        if len(words) <= 2 + width or words[2 + width].upper() != b"VALUES":
            raise errors.syntax()
        fields, values = words[2 : 2 + width], words[3 + width :]
        if not values or len(values) % width:
            raise errors.arity(command)
        total = len(values) // width
        if total * (sum(map(len, fields)) + 16 * width + 64) + sum(map(len, values)) > MOST_AT_ONCE:
            raise CommandError(errors.TOO_MUCH_AT_ONCE)  # the fields come once and are stored with every entry
        count = 2 * width + 1
        self.total = total
        self.head = COUNTS[count] if count < 1024 else array_header(count)
        # everything of an entry but its ID and values is the same for all: one template
        parts = [b"\r\n$%d\r\n%b\r\n$%%d\r\n%%b" % (len(f), f.replace(b"%", b"%%")) for f in fields]
        self._template = b"".join(parts) + b"\r\n"
        self._width = width
        self._values = values

    def bodies(self, start: int, stop: int) -> list[bytes]:
        """What stands behind the IDs of entries start to stop - 1."""
        width, template, values = self._width, self._template, self._values
        bodies: list[bytes] = []
        for at in range(start * width, stop * width, width):
            sized: list[int | bytes] = []
            for value in values[at : at + width]:
                sized += (len(value), value)
            bodies.append(template % tuple(sized))
        return bodies
