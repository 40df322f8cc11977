"""``InFlight``: the tokens of a source by age, to find the oldest unsettled one.

The size is proportional to the number of unsettled tokens, in whatever order they are settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from tidelog.flows.api.tokens import Token, WeakToken

_SOME: Final = 64  # batches; below this number, settled tokens are not removed from the middle


class InFlight:
    """Batches of tokens, oldest first."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, Sequence[Token | WeakToken]]] = deque()  # (event loop time, tokens)
        self._looked = 0  # tokens of the first batch that are known to be settled
        self._most = _SOME  # number of batches above which settled tokens are removed from the middle

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._sent)

    def add(self, when: float, tokens: Sequence[Token | WeakToken]) -> None:
        """Add tokens. The list then belongs to this object."""
        self._sent.append((when, tokens))

    def forget(self) -> None:
        """Remove settled tokens."""
        sent = self._sent
        while sent:
            tokens = sent[0][1]
            looked = self._looked
            for token in tokens[looked:] if looked else tokens:
                if token.pending > 0:
                    self._looked = looked
                    break
                looked += 1
            else:
                sent.popleft()
                self._looked = 0
                continue
            break
        if len(sent) > self._most:
            left = [(when, [each for each in tokens if each.pending > 0]) for when, tokens in sent]
            self._sent = deque(each for each in left if each[1])
            self._looked = 0
            self._most = max(_SOME, 2 * len(self._sent))

    def oldest(self) -> float | None:
        """Return the event loop time at which the oldest unsettled event was sent."""
        self.forget()
        return self._sent[0][0] if self._sent else None
