"""One document at the coordinator, and the compare-and-set loop that changes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from .interface import Coordinator, CoordinatorError

TRIES: Final = 50  # of one change: each conflict is another member's change, and these are few


class Encodable(Protocol):
    """A document."""

    def encode(self) -> bytes:
        """Return the document as bytes."""
        ...


T = TypeVar("T", bound=Encodable)


class StoredDocument(Generic[T]):
    """A document at the coordinator, as last read or changed.

    ``decode`` parses it, and may raise any error. ``lost`` returns the error for a document that must exist. ``what``
    names the document in errors.
    """

    def __init__(
        self, coordinator: Coordinator, key: str, decode: Callable[[bytes], T], lost: Callable[[], Exception], what: str
    ) -> None:  # fmt: skip
        self.coordinator: Final = coordinator
        self.key: Final = key
        self._decode = decode
        self._lost = lost
        self._what = what
        self.value: T | None = None  # as last read or changed
        self.version = 0  # of the key then

    async def read(self) -> T | None:
        """Read the document. Raises CoordinatorError, and the errors of ``decode``."""
        found = await self.coordinator.get(self.key)
        if found is None:
            self.value, self.version = None, 0
        elif found.version != self.version:
            self.value, self.version = self._decode(found.value), found.version
        return self.value

    async def change(
        self, decide: Callable[[T], T | None], sending: Callable[[T, int], None] | None = None
    ) -> T | None:  # fmt: skip
        """Change the document by compare-and-set. Returns the new one, or None if ``decide`` returned None.

        ``decide`` is called again with a newer document after a conflict. ``sending`` is called before the change is
        sent, with the new document and the version that it replaces. Raises CoordinatorError if the outcome is unknown.
        Raises the error of ``lost`` if there is no document, and the errors of ``decode`` and ``decide``.
        """
        for _ in range(TRIES):
            value = await self.read()
            if value is None:
                raise self._lost()
            wanted = decide(value)
            if wanted is None or wanted == value:
                return None if wanted is None else value
            if sending is not None:
                sending(wanted, self.version)
            version = await self.coordinator.swap(self.key, wanted.encode(), self.version)
            if version is not None:
                self.value, self.version = wanted, version
                return wanted
        raise CoordinatorError(f"{self._what} changed {TRIES} times before it could be updated")

    async def create(self, value: T) -> bool:
        """Create the document. Return False if another member has created it. Raises CoordinatorError."""
        version = await self.coordinator.swap(self.key, value.encode(), 0)
        if version is not None:
            self.value, self.version = value, version
        return version is not None
