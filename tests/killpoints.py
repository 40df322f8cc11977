"""SIGKILL at a chosen step: a process counts the calls of functions that change files, and dies at one of them.

``Calls`` runs in that process. ``forks`` starts a worker, which runs each job in a fork, so that modules are imported
once. The worker's program ends with ``serve(job)``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
Job = Callable[..., int]


class Calls:
    """The points before and after each call of the watched functions. The process dies at the point ``fatal``."""

    def __init__(self, *functions: tuple[Any, str]) -> None:
        """``functions``: an owner and the name of its attribute, each."""
        self.count = 0
        self.fatal = 0
        self.counting = True
        for owner, name in functions:
            self._watch(owner, name)

    def point(self) -> None:
        if self.counting:
            self.count += 1
            if self.count == self.fatal:
                self.die()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _watch(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watched(*words: Any, **settings: Any) -> Any:
            self.point()
            try:
                return function(*words, **settings)
            finally:
                self.point()

        setattr(owner, name, watched)


def serve(job: Job) -> None:
    """Run ``job`` in a fork with the arguments of each line of standard input, and print the exit code."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                os._exit(job(*json.loads(line)))
            except BaseException:  # noqa: BLE001 - the fork must not continue as a worker
                traceback.print_exc()
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


@contextmanager
def forks(program: str) -> Iterator[Job]:
    """Start the worker with this program. Yield a function that runs its job and returns the exit code of the fork."""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        jobs, codes = worker.stdin, worker.stdout

        def run(*arguments: str | int) -> int:
            jobs.write(json.dumps(arguments) + "\n")
            jobs.flush()
            return int(codes.readline())

        yield run
        jobs.close()
