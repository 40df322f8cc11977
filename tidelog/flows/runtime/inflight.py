"""What a source has sent and what is not settled of it, by age.

Its size stays in proportion to what is unsettled, whatever the order in which events are settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from tidelog.flows.api.tokens import Token, WeakToken

_SOME: Final = 64  # batches: with fewer it isn't worth while


class InFlight:
    """Batches of tokens, oldest first."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, Sequence[Token | WeakToken]]] = deque()  # when (s of the loop's clock), what
        self._looked = 0  # tokens of the first batch that are known to be settled
        self._most = _SOME  # batches after which settled ones are taken out of the middle

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._sent)

    def add(self, when: float, tokens: Sequence[Token | WeakToken]) -> None:
        """The list is not the caller's any more."""
        self._sent.append((when, tokens))

    def forget(self) -> None:
        """Let go of what is settled."""
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
        """When the oldest event was sent that is not settled."""
        self.forget()
        return self._sent[0][0] if self._sent else None
