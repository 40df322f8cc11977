"""Errors that end a copy, with texts for people."""

from __future__ import annotations


class MovingError(Exception):
    """The copy cannot start or continue. The text contains the reason."""


class CommandRefusedError(MovingError):
    """A server replied with an error. The text names the server and the command, but no password."""

    def __init__(self, where: str, command: str, text: str) -> None:
        super().__init__(f"{where} refuses {command}: {text}")
        self.where = where
        self.text = text

    @property
    def code(self) -> str:
        """Return the first word of the server's error: ``ERR``, ``WRONGTYPE``, ..."""
        return self.text.partition(" ")[0]

    @property
    def vanished(self) -> bool:
        """Return whether the error means that a key, a group, or a key of this type does not exist."""
        return self.code in ("NOGROUP", "WRONGTYPE") or "no such key" in self.text

