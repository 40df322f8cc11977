"""The helper process, as the server supervises it. See ``persistence.tiering.helper`` for the protocol.

Rule 1: a helper that writes nothing for ``tier-timeout`` and GRACE seconds hangs, and is killed.
Rule 2: a killed helper leaves its read transaction in LMDB's table of readers. The pages of this transaction would
never be reused, so whoever uses this class has the table checked after each end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

GRACE: Final = 15.0  # seconds for the work between two calls, and for the start of Python on a busy machine
ENDED: Final = 5.0  # seconds in which a killed process ends
LONGEST_LINE: Final = 1 << 20  # bytes
ROOT: Final = Path(__file__).resolve().parent.parent.parent


class HelperError(Exception):
    """Raised if a helper has reported an error, has ended, or was killed."""


class HelperProcess:
    """One process. It serves one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process, on_line: Callable[[dict[str, Any]], None]) -> None:
        self._process = process
        self._on_line = on_line  # called with each line

    @classmethod
    async def start(cls, on_line: Callable[[dict[str, Any]], None]) -> HelperProcess:
        """Start a process. Raises HelperError."""
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from persistence.tiering.helper import main; main()"
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, start_new_session=True, limit=LONGEST_LINE,
            )  # fmt: skip
        except OSError as error:
            raise HelperError(f"the helper process can't be started: {error}") from error
        return cls(process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request, and return the line that ends it. ``seconds``: the limit of a call. Raises HelperError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101 - a pipe, like the next one
        assert stdout is not None  # noqa: S101
        with suppress(OSError, RuntimeError):  # it has ended, and its last line or its end follows
            stdin.write(json.dumps(request).encode() + b"\n")
            await stdin.drain()
        while True:
            try:
                async with asyncio.timeout(seconds + GRACE):
                    raw = await stdout.readline()
            except TimeoutError:
                raise HelperError(f"the helper process hangs: it was silent for {seconds + GRACE:g} s") from None
            except ValueError as error:
                raise HelperError(f"the helper process sends invalid lines: {error}") from error
            if not raw:
                code = await self._process.wait()
                raise HelperError(f"the helper process ended unexpectedly (exit code {code})")
            try:
                line: dict[str, Any] = json.loads(raw)
            except ValueError as error:
                raise HelperError(f"the helper process sends invalid lines: {error}") from error
            self._on_line(line)
            if "error" in line:
                raise HelperError(line["error"])
            if "done" in line:
                return line

    def kill(self) -> None:
        """Kill the process, also if it is stopped. Idempotent."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> None:
        """Kill the process, and wait until it has ended; not if the system can't end it, as with a hung NFS server."""
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDED):
                await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
