Column = tuple[bytearray, bytearray, bytearray | None]  # offsets, data, valid: see _arrow.h

class Rows:
    """Entries in RESP2, fed in pieces cut anywhere, to pages of columns as Arrow has them."""

    def __new__(cls, names: tuple[bytes, ...], ids: bool, times: bool, fields: bool, entries: bool) -> Rows:
        """A page has a column for each of ``names``; IDs, their times, maps of fields, entries in RESP if wanted."""

    def feed(self, data: bytes, /) -> None:
        """Take bytes. MemoryError."""

    def parse(self, limit: int, /) -> int:
        """Fill the page up to ``limit`` entries; how many it has, ``~`` of that where something else follows.

        MemoryError and OverflowError: the page is lost, RuntimeError from then on.
        """

    def rest(self) -> bytes:
        """What was fed and is in no page, from the first byte of an entry on."""

    def page(
        self,
    ) -> tuple[
        int,  # entries
        bytes,  # ID of the last one
        Column | None,  # IDs
        bytearray | None,  # int64 microseconds; None too where some ID isn't plain
        tuple[Column, ...],  # the fields of ``names``
        bytearray,  # int32 offsets of the maps
        Column | None,  # their names
        Column | None,  # their values
        Column | None,  # entries in RESP
    ]:
        """The page, which has at least one entry; the next one begins. RuntimeError where there is none."""
