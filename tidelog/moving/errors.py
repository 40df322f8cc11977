"""What ends a move: texts for people."""

from __future__ import annotations


class MovingError(Exception):
    """Nothing can be moved, or not any further. The text says why."""


class RefusedError(MovingError):
    """A server answered a command with an error. The text names server and command, but no password."""

    def __init__(self, where: str, command: str, text: str) -> None:
        super().__init__(f"{where} refuses {command}: {text}")
        self.where = where
        self.text = text

    @property
    def code(self) -> str:
        """The first word of the server's text: ``ERR``, ``WRONGTYPE``, ..."""
        return self.text.partition(" ")[0]

    @property
    def vanished(self) -> bool:
        """Whether what the command was about is not there any more: a key, a group, or a key of that type."""
        return self.code in ("NOGROUP", "WRONGTYPE") or "no such key" in self.text

