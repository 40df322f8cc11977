"""The result of a copy and its verification: text for people, JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from tidelog.moving.compared import Compared
from tidelog.moving.descriptions import dashed, text
from tidelog.moving.inventory import Other
from tidelog.moving.streams import CopiedStream

Verdict = Literal["same", "different", "source changed", "not compared"]
LISTED: Final = 100  # differences of strings that are listed


class ProgressListener(Protocol):
    """Receives the progress of a copy."""

    def copying(self, key: bytes, done: int, total: int) -> None:
        """Report the entries of a stream that were copied, and the total."""

    def copied(self, moved: CopiedStream) -> None:
        """Report that a stream is copied."""

    def verifying(self, key: bytes, done: int, total: int) -> None:
        """Report the number of compared entries of a stream."""

    def following(self, lag: int, streams: int) -> None:
        """Report the start of a round and the entries that the target lacked."""

    def report(self, text: str) -> None:
        """Report a message for the user."""


@dataclass(slots=True)
class StreamOutcome:
    """The result for one stream."""

    moved: CopiedStream
    found: Compared | None = None  # None: not compared

    @property
    def verdict(self) -> Verdict:
        if self.found is None:
            return "not compared"
        return "different" if self.found.differences else "source changed" if self.found.source_changes else "same"

    def to_dict(self) -> dict[str, Any]:
        moved, here, found = self.moved, self.moved.here, self.found
        return {
            "key": text(moved.key),
            "verdict": self.verdict,
            "copied": moved.entries,
            "length": here.length if here is not None else 0,
            "last_id": dashed(here.last) if here is not None else None,
            "groups": len(here.groups) if here is not None else 0,
            "consumers": moved.carried.consumers,
            "pending": moved.carried.pending,
            "pending_gone": moved.carried.gone,
            "delayed": moved.delayed,
            "digest": found.digest or None if found is not None else None,
            "differences": found.differences if found is not None else [],
            "source_changes": found.source_changes if found is not None else [],
        }


@dataclass(slots=True)
class CopyOutcome:
    """The result of the whole copy."""

    source: str
    target: str
    streams: list[StreamOutcome] = field(default_factory=list)
    strings: int = 0  # copied
    string_differences: list[str] = field(default_factory=list)
    others: dict[str, Other] = field(default_factory=dict)  # unsupported keys by type
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    compared: bool = False  # including strings

    @property
    def verdict(self) -> Verdict:
        verdicts = {each.verdict for each in self.streams}
        if self.string_differences or "different" in verdicts:
            return "different"
        if "source changed" in verdicts:
            return "source changed"
        return "same" if self.compared else "not compared"

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "streams": [each.to_dict() for each in self.streams],
            "strings": {"copied": self.strings, "differences": self.string_differences[:LISTED]},
            "not_moved": {
                kind: {"keys": other.keys, "named": [text(key) for key in other.named]}
                for kind, other in self.others.items()
            },
            "notes": self.notes,
        }
