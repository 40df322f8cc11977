"""``FIELDS n field ... VALUES value ...``: many entries with the same fields in one command.

Rule 1: no statement here runs once per row, as there may be millions. Columns are processed as a whole, as slices with
a stride, and one join of such parts yields all entries (here the parts of two fields, without an ID):

    CRLF *5 CRLF  CRLF $6 CRLF sensor CRLF $2 CRLF | 01 | CRLF $11 CRLF temperature CRLF $4 CRLF | 35.6 | CRLF *5 ...
    `----- opening, the same for all values -----'   |    `------ opening of the second field ------'   |   next row
           of this field and length                value                                              value

Rule 2: the first part of a row begins with the CRLF that ends the previous row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import add
from typing import Final

from commands.context import Context
from commands.parse import MOST_FIELDS, integer
from resp import errors
from resp.errors import CommandError
from resp.reply import array_header
from storage.model.entries import COUNTS
from storage.model.ids import MASK64

MOST_AT_ONCE: Final = 512 << 20  # maximum bytes of entries that one command may create
FREE_COPIES: Final = 1 << 20  # bytes of repeated fields that the directive can't forbid

# Openings of recently used fields, which the next command will probably use again. Without them, 50 rows of 8 fields
# whose values have 55 lengths take 33 % more instructions, and 500 such rows 8 % more. Limited to some 10 MB.
KNOWN_FIELDS: Final = 64
KNOWN_LENGTHS = 1024  # not Final: a test lowers it, also in compiled code
KNOWN_BYTES: Final = 128
_known: Final[dict[bytes, tuple[dict[int, bytes], dict[int, int]]]] = {}

EXPANSION: Final = "proto-max-command-expansion"

_NUMBERS: Final = [b"%d" % n for n in range(1000)]
_LAST_DIGITS: Final = [b"%03d" % n for n in range(1000)]


class FieldRows:
    """The ``total`` entries that such arguments describe. Fields are sent once but stored with every entry; ``copies``
    is the number of bytes that this adds."""

    __slots__ = ("_fields", "_head", "_lengths", "_values", "copies", "total", "width")

    def __init__(self, words: Sequence[bytes], command: str) -> None:
        """Parse FIELDS and everything after it. ``command``: its name in lower case. Raises CommandError."""
        if words[0].upper() != b"FIELDS":
            raise errors.syntax()
        width = integer(words[1])
        if not 1 <= width <= len(words):
            raise CommandError(errors.BAD_FIELDS)
        if width > MOST_FIELDS:
            raise CommandError(f"ERR an entry can have at most {MOST_FIELDS} fields, not {width}")
        if len(words) <= 2 + width or words[2 + width].upper() != b"VALUES":
            raise errors.syntax()
        fields, values = words[2 : 2 + width], words[3 + width :]
        if not values or len(values) % width:
            raise errors.arity(command)
        total = len(values) // width
        lengths = list(map(len, values))
        each = sum(map(len, fields))
        if total * (each + 16 * width + 64) + sum(lengths) > MOST_AT_ONCE:
            raise CommandError(errors.TOO_MUCH_AT_ONCE)
        self.copies = (total - 1) * each
        count = 2 * width + 1
        self.total = total
        self.width = width
        self._head = b"\r\n" + (COUNTS[count] if count < 1024 else array_header(count))
        self._fields = fields
        self._values = values
        self._lengths = lengths

    def bare(self, start: int, stop: int) -> tuple[array[int], bytes]:
        """Return the size of each of the entries start to stop - 1, and all joined, without IDs (``stagedentries``)."""
        parts: list[bytes] = [b""] * (2 * self.width * (stop - start))
        sizes = self._fill(parts, start, stop, 0, self._head)
        return array("I", sizes), _joined(parts)

    def written(self, ms: int, seq: int, start: int, stop: int) -> tuple[array[int], bytes]:
        """Return the same for entries start to stop - 1 with the IDs ms.seq, ms.seq + 1 ... Raises ValueError if a
        sequence number would reach 2**64."""
        if seq + (stop - start) - 1 > MASK64:
            raise ValueError("sequence numbers end at 2**64")
        step = 2 * len(self._fields) + 2
        parts: list[bytes] = [b""] * (step * (stop - start))
        sizes = self._fill(parts, start, stop, 2, b"")
        stem = b"%d." % ms
        rows: list[int] = []
        at = 0
        while start < stop:  # one group of IDs with the same prefix and length at a time
            thousands, low = divmod(seq, 1000)
            digits = len(str(seq))
            some = min(stop - start, (1000 if thousands else 10**digits) - low)
            head = b"%b$%d\r\n%b" % (self._head, len(stem) + digits, stem)
            if thousands:
                head = b"%b%d" % (head, thousands)
            end = at + some
            parts[at * step : end * step : step] = [head] * some
            parts[at * step + 1 : end * step : step] = (_LAST_DIGITS if thousands else _NUMBERS)[low : low + some]
            more = len(head) + (3 if thousands else digits)
            rows += [size + more for size in sizes[at:end]]
            at = end
            seq += some
            start += some
        return array("I", rows), _joined(parts)

    def _fill(self, parts: list[bytes], start: int, stop: int, first: int, before: bytes) -> list[int]:
        """Put openings and values of rows start to stop - 1 into ``parts``. Returns the size of each row in bytes. Each
        row occupies an equal share of ``parts``, filled from index ``first`` of that share; ``before`` is prepended."""
        fields, values = self._fields, self._values
        width = len(fields)
        step = len(parts) // (stop - start)
        sizes: list[int] = []
        for at in range(width):
            field = fields[at]
            lengths = self._lengths[start * width + at : stop * width : width]
            texts, of_value = _openings(b"%b\r\n$%d\r\n%b\r\n$" % (before, len(field), field), lengths)
            parts[first + 2 * at + 1 :: step] = values[start * width + at : stop * width : width]
            length, count = lengths[0], len(lengths)
            if lengths.count(length) == count:  # all values have the same length
                parts[first + 2 * at :: step] = [texts[length]] * count
                more = of_value[length]
                if at:
                    sizes = [size + more for size in sizes]
                else:
                    sizes = [more] * count
            else:
                parts[first + 2 * at :: step] = map(texts.__getitem__, lengths)
                column = list(map(of_value.__getitem__, lengths))
                sizes = list(map(add, sizes, column)) if at else column
            before = b""
        return sizes


def parsed_rows(ctx: Context, words: Sequence[bytes], command: str) -> FieldRows:
    """Parse the rows of a command that creates entries. Raises CommandError, also if they would be much larger than the
    command: a small request must not delay all other clients."""
    rows = FieldRows(words, command)
    if rows.copies > FREE_COPIES:
        most = int(ctx.server.config.value(EXPANSION))
        if rows.copies > most:
            raise errors.expansion(EXPANSION, most, rows.copies)
    return rows


def _openings(stem: bytes, lengths: Iterable[int]) -> tuple[dict[int, bytes], dict[int, int]]:
    """Return, by the length of a value, its opening, which begins with ``stem``, and the size of opening and value."""
    found = _known.get(stem)
    if found is None or len(found[0]) > KNOWN_LENGTHS:
        found = {}, {}
        if len(stem) <= KNOWN_BYTES:
            if len(_known) >= KNOWN_FIELDS:
                _known.clear()
            _known[stem] = found
    texts, sizes = found
    for length in set(lengths).difference(texts):
        texts[length] = text = b"%b%d\r\n" % (stem, length)
        sizes[length] = len(text) + length
    return found


def _joined(parts: list[bytes]) -> bytes:
    """Join the parts of rows (Rule 2)."""
    parts[0] = parts[0][2:]
    parts.append(b"\r\n")
    return b"".join(parts)
