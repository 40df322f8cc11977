"""The threads and processes in which user functions run.

Values are pickled between this process and the child processes that it started. A child imports the function by its
name.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Protocol

from tidelog.flows.api.errors import RejectError, RetryError
from tidelog.flows.api.event import Event
from tidelog.flows.operators.userfunctions import Outcome, UserFunction


class Pool(Protocol):
    """The workers of one operator."""

    async def run(self, events: Sequence[Event]) -> Sequence[Outcome]:
        """Return an outcome for each event. Raises BrokenExecutor if the worker died."""

    def close(self) -> None:
        """Stop accepting calls. Current calls are not awaited."""


def made_pool(where: str, function: UserFunction, workers: int) -> Pool:
    """Create the workers. ``where``: ``thread`` or ``process``."""
    return Threads(function, workers) if where == "thread" else Processes(function, workers)


class Threads:
    """Runs a function in threads of this process."""

    def __init__(self, function: UserFunction, workers: int) -> None:
        self._function = function
        self._executor: Executor = ThreadPoolExecutor(workers, thread_name_prefix=f"flow-{function.name}")

    async def run(self, events: Sequence[Event]) -> Sequence[Outcome]:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._all, events)

    def _all(self, events: Sequence[Event]) -> list[Outcome]:
        return [self._function.outcome(each) for each in events]

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class Processes:
    """Runs a function in child processes. If one dies, all are restarted."""

    def __init__(self, function: UserFunction, workers: int) -> None:
        self._call = function.made_from
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None

    async def run(self, events: Sequence[Event]) -> Sequence[Outcome]:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self._workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(self._call,)
            )
        executor = self._executor
        values = [each.value for each in events]
        try:
            outcomes: list[Outcome] = pickle.loads(
                await asyncio.get_running_loop().run_in_executor(executor, _all_in_child, values)
            )
            return outcomes
        except BrokenExecutor:
            if self._executor is executor:
                self._executor = None
                executor.shutdown(wait=False, cancel_futures=True)
            raise

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


# -- in the child process --------------------------------------------------------------------------------------
_child: list[UserFunction] = []  # the only function


def _begin(call: Any) -> None:
    made = UserFunction(call)
    made.begin()
    _child.append(made)


def _all_in_child(values: Sequence[Any]) -> bytes:
    outcomes = [_child[0].outcome(Event(each)) for each in values]
    for place, each in enumerate(outcomes):
        if isinstance(each, Exception):
            outcomes[place] = _sendable(each)
    try:
        return pickle.dumps(outcomes)
    except Exception:  # noqa: BLE001 - user classes can raise any exception
        return pickle.dumps([_sendable(each) for each in outcomes])


def _sendable(outcome: Outcome) -> Outcome:
    """Return an outcome that can be pickled. Some exceptions and values cannot."""
    try:
        pickle.loads(pickle.dumps(outcome))
    except Exception as error:  # noqa: BLE001 - user classes can raise any exception
        if isinstance(outcome, RetryError):
            return RetryError(str(outcome))
        if isinstance(outcome, Exception):
            return RejectError(f"{type(outcome).__name__}: {outcome}")
        return TypeError(f"the result can't be returned from a process: {error}")
    return outcome
