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
from typing import Any

from tidelog.flows.api.errors import RejectError, RetryError
from tidelog.flows.api.event import Event
from tidelog.flows.operators.userfunctions import ExecutionMode, Outcome, UserFunction


class Pool:
    """The workers of one operator: threads of this process, or child processes. If a child dies, all are restarted."""

    def __init__(self, where: ExecutionMode, function: UserFunction, workers: int) -> None:
        self._threads = where == "thread"
        self._function = function
        self._workers = workers
        self._executor: Executor | None = None

    async def run(self, events: Sequence[Event]) -> Sequence[Outcome]:
        """Return an outcome for each event. Raises BrokenExecutor if a child process died."""
        executor = self._executor = self._executor or self._started()
        loop = asyncio.get_running_loop()
        if self._threads:
            return await loop.run_in_executor(executor, self._outcomes, events)
        try:
            values = [each.value for each in events]
            outcomes: list[Outcome] = pickle.loads(await loop.run_in_executor(executor, _all_in_child, values))
            return outcomes
        except BrokenExecutor:
            if self._executor is executor:
                self.close()
            raise

    def _started(self) -> Executor:
        if self._threads:
            return ThreadPoolExecutor(self._workers, thread_name_prefix=f"flow-{self._function.name}")
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._workers, context, initializer=_begin, initargs=(self._function.made_from,))

    def _outcomes(self, events: Sequence[Event]) -> list[Outcome]:
        return [self._function.outcome(each) for each in events]

    def close(self) -> None:
        """Stop accepting calls. Current calls are not awaited."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)


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
