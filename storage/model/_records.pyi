"""See _records.c."""

def ack(key: bytes, group: bytes, ids: list[bytes], /) -> bytes: ...
def deliver(
    key: bytes, group: bytes, offset: int, now: int, retry: int, expire_at: int, max_deliveries: int, flags: int,
    new: list[bytes], /,
) -> bytes: ...  # fmt: skip
def own(
    key: bytes, group: bytes, number: int, flags: int, offset: int, entries_read: int, last: int, now: int, count: int,
    new: list[bytes], again: list[bytes], gone: list[bytes], /,
) -> bytes: ...  # fmt: skip
