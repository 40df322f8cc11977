"""Verifies a data directory with ``tidelog-server --verify``, because only the server knows the formats."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidelog.backup.targets import BackupError
from tidelog.serverprogram import server_command, server_environment

MARKER = "tidelog.format"  # the file that every data directory has


def is_one(path: str) -> bool:
    """Return whether a path is a data directory."""
    return (Path(path) / MARKER).is_file()


def verify(path: str, show: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Return the server program's report on a data directory: ``problems``, and the amount of data that was read.

    ``show``: called with "verifying", the number of bytes read, and the total. Raises BackupError if the directory
    cannot be read or a server is using it.
    """
    command = [*server_command(), "--dir", str(Path(path).absolute()), "--verify"]
    last = b""
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=server_environment()) as process:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            for line in process.stdout:
                seen = json.loads(line)
                if "done" in seen:
                    show("verifying", seen["done"], seen["total"])
                last = line
        if process.returncode not in (0, 1) or b'"problems"' not in last:
            said.seek(0)
            text = said.read().decode("utf-8", "replace").strip().removeprefix("tidelog-server: ")
            raise BackupError(text or f"tidelog-server ended with status {process.returncode}")
    report: dict[str, Any] = json.loads(last)
    return report
