from typing_extensions import Buffer

def wire(
    frame: Buffer, count: int, has_ordinals: bool, ms: int, ordinal: int, first_ord: int, after: tuple[int, int],
    end: tuple[int, int], deleted: Buffer, /,
) -> bytearray:  # fmt: skip
    """The entries of a section's frame as TRANGE sends them: those with IDs in (after, end], not deleted.

    ``ms``, ``ordinal``: of the section's first ID, and its first ordinal. ``deleted``: ranges of ordinals as pairs of
    uint64. ValueError if the frame is not as specified.
    """
