from typing_extensions import Buffer

Column = tuple[bytearray, bytearray, bytearray | None]  # offsets, data, valid: see _arrow.h

class Rows:
    """Makes pages of columns, in Arrow's layout, from entries in RESP2 that are fed in pieces cut anywhere."""

    def __new__(cls, names: tuple[bytes, ...], ids: bool, times: bool, fields: bool, entries: bool) -> Rows:
        """A page has a column for each of ``names``; IDs, times, maps of all fields and entries in RESP if wanted."""

    def feed(self, data: bytes, /) -> None:
        """Take bytes. MemoryError."""

    def parse(self, limit: int, /) -> int:
        """Add entries to the page until it has ``limit``; returns how many it has, ``~`` of that if no entry follows.

        MemoryError and OverflowError: the page is lost, and every later call raises RuntimeError.
        """

    def rest(self) -> bytes:
        """The bytes that were fed and are in no page, from the first byte of an entry."""

    def page(
        self,
    ) -> tuple[
        int,  # entries
        bytes,  # ID of the last one
        Column | None,  # IDs
        bytearray | None,  # times: int64 microseconds; None also if an ID is not digits.digits
        tuple[Column, ...],  # the fields of ``names``
        bytearray,  # int32 offsets of the maps
        Column | None,  # their names
        Column | None,  # their values
        Column | None,  # entries in RESP
    ]:
        """Return the page and begin the next one. RuntimeError if the page has no entry."""

def partitions(offsets: Buffer, data: Buffer, first: int, rows: int, count: int, /) -> bytearray:
    """CRC-32 modulo ``count`` of ``rows`` values of a binary column, from ``first`` on, as uint32.

    ``offsets`` (int32) and ``data`` are the column's buffers. ValueError for numbers and offsets beyond them.
    """
