"""See _strings.c."""

from typing import Any

def add(
    keys: dict[bytes, Any], expires: dict[bytes, int], calls: list[Any], at: int, stop: int, now: int,
    waiting: dict[bytes, Any], watchers: dict[bytes, Any], changed: set[bytes], amount: int, /,
) -> tuple[bytes, bytes, int, int]: ...  # fmt: skip
def get(
    keys: dict[bytes, Any], expires: dict[bytes, int], calls: list[Any], at: int, stop: int, now: int, touch: bool,
    null: bytes, longest: int, most: int, /,
) -> tuple[bytes, int, int]: ...  # fmt: skip
def learn(string: Any, other: Any, value: bytes, used: int, /) -> bool: ...
def set_(
    keys: dict[bytes, Any], expires: dict[bytes, int], calls: list[Any], at: int, stop: int, now: int,
    waiting: dict[bytes, Any], watchers: dict[bytes, Any], changed: set[bytes], /,
) -> tuple[bytes, int, int]: ...  # fmt: skip
