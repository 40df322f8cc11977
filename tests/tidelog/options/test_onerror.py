"""``on_error``: the same words in files and in Python."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.flows.api.connectoroptions import SourceErrorPolicy
from tidelog.options.onerror import ErrorPolicy
from tidelog.workers import DeadLetter, Halt, Retry


@pytest.mark.parametrize(
    "steps",
    [
        [{"retry": {"attempts": 4, "first": "2s", "most": "60s"}}, "halt"],
        [{"retry": {"attempts": 4, "first": 2.0, "most": 60.0}}, {"halt": None}],
        [Retry(attempts=4, first=2.0, most=60.0), Halt()],
    ],
)
def test_files_and_python_mean_the_same(steps: Any) -> None:
    policy = ErrorPolicy.read(steps)
    assert policy.retry is not None
    assert (policy.action, policy.retry.first, policy.retry.most, policy.max_attempts) == ("halt", 2.0, 60.0, 5)


def test_defaults() -> None:
    assert (ErrorPolicy.read("skip").action, ErrorPolicy.read("skip").max_attempts) == ("skip", 1)
    retried = ErrorPolicy.read({"retry": {}})
    assert (retried.action, retried.max_attempts) == ("dead_letter", None)
    assert ErrorPolicy.read([DeadLetter()]).action == "dead_letter"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([], "on_error is empty: name the final action, one of dead_letter, skip, park, pause, halt, or omit on_error"),
        (["skip", "halt"], "on_error is a list of"),
        (["skip", {"retry": {}}], "on_error is a list of"),
        ("skipp", "did you mean 'skip'"),
        ({"retry": {"attempts": 0}}, "retry.attempts: Expected `int` >= 1"),
        ({"retry": {"first": "2m", "most": "1s"}}, "it must be at most 1 s"),
        ({"skip": {"topic": "x"}}, "skip has no options"),
        (5, "5 is not a step"),
    ],
)
def test_invalid_policies(steps: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ErrorPolicy.read(steps)


def test_a_source_of_a_flow_does_not_park() -> None:
    with pytest.raises(ValueError, match="park is not supported: events of flows have no keys"):
        SourceErrorPolicy.read(["park"])
    with pytest.raises(ValueError, match="one of dead_letter, skip, pause, halt, or omit on_error"):
        SourceErrorPolicy.read([])
