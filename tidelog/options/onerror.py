"""``ErrorPolicy``: the option ``on_error``, which has the same words in files, in Python, and in all engines.

    on_error: [{retry: {attempts: 5, first: 1s}}, dead_letter]    in a file
    on_error=[{"retry": {"attempts": 5}}, "dead_letter"]          in Python
    on_error=[Retry(attempts=5), DeadLetter()]                    in Python, with the classes of tidelog.workers

An engine subclasses ``ErrorPolicy`` to change defaults, or to reject the actions that it cannot perform.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from tidelog.options.retry import RetryOptions
from tidelog.options.structs import Problems, nearest, read
from tidelog.options.units import excerpt

ACTIONS: Final = ("dead_letter", "skip", "park", "pause", "halt")


class ErrorPolicy:
    """Retries, followed by one action for an event that has failed for good."""

    __slots__ = ("action", "retry")

    Retry: ClassVar[type[RetryOptions]] = RetryOptions
    unsupported: ClassVar[Mapping[str, str]] = {}  # by action: the reason

    def __init__(self, retry: RetryOptions | None = None, action: str = "dead_letter") -> None:
        self.retry = retry  # None: no retries
        self.action = action

    @property
    def max_attempts(self) -> int | None:
        """The number of attempts, including the first one. None: unlimited."""
        if self.retry is None:
            return 1
        return None if self.retry.attempts is None else self.retry.attempts + 1

    @classmethod
    def actions(cls) -> list[str]:
        """Return the final actions that the engine supports."""
        return [each for each in ACTIONS if each not in cls.unsupported]

    @classmethod
    def read(cls, value: object) -> Self:
        """Parse an option. Raises ValueError if it is not a policy, or not one that the engine supports."""
        retry: RetryOptions | None = None
        action = ""
        steps = value if isinstance(value, list | tuple) else [value]
        if not steps:
            known = ", ".join(cls.actions())
            raise ValueError(f"on_error is empty: name the final action, one of {known}, or omit on_error")
        for step in steps:
            name, options = _step(step)
            if name == "retry" and retry is None and not action:
                problems = Problems()
                retry = read(cls.Retry, options, "retry", problems)
                if problems:
                    raise ValueError("; ".join(f"{path}: {text}" for path, text in problems.found))
            elif name not in (*ACTIONS, "retry"):
                raise ValueError(f"unknown action {name!r}; {nearest(name, (*ACTIONS, 'retry'))}")
            elif name == "retry" or action:
                raise ValueError(f"on_error is a list of retry: {{...}}, if any, and one of {', '.join(ACTIONS)}")
            elif name in cls.unsupported:
                raise ValueError(f"{name} is not supported: {cls.unsupported[name]}")
            elif options:
                raise ValueError(f"{name} has no options: {excerpt(options)}")
            else:
                action = name
        return cls(retry, action or "dead_letter")


def _step(step: object) -> tuple[str, Mapping[str, Any]]:
    if isinstance(step, str):
        return step, {}
    if isinstance(step, Mapping) and len(step) == 1:
        ((name, options),) = step.items()
        if options is None or isinstance(options, Mapping):
            return str(name), options or {}
    if dataclasses.is_dataclass(step) and not isinstance(step, type):
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(step).__name__).lower()
        options = {each.name: getattr(step, each.name) for each in dataclasses.fields(step)}
        return name, {key: each for key, each in options.items() if each is not None}
    raise ValueError(f"{excerpt(step)} is not a step such as retry: {{attempts: 5}} or dead_letter")
