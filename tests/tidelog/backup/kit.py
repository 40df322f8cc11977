"""What tests of backups share: the program, in this process or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result

from tests.replication.cluster import Cluster, Node
from tidelog.cli.program import main

Started = subprocess.Popen[bytes]


def tidelog(*words: object, ok: bool = True) -> str:
    """What the program prints. Fails unless it succeeds, or with ``ok=False`` unless it fails with one clear line."""
    result: Result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert (result.exit_code == 0) is ok, result.output
    if not ok:
        assert result.exit_code == 1
        assert result.output.startswith("Error: ")
    return result.output


def url(node: Node) -> str:
    return f"redis://127.0.0.1:{node.port}"


def start(*words: object, preexec: Callable[[], None] | None = None, before: str = "") -> Started:
    """The program in a process of its own. ``before``: Python code that is run first."""
    program = ["-c", f"{before}; from tidelog.cli.program import main; main()"] if before else ["-m", "tidelog.cli"]
    return subprocess.Popen(
        [sys.executable, *program, *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=preexec,
    )  # fmt: skip


def failed(process: Started) -> str:
    """Waits for a process that must fail with one clear line; returns that."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1, (output, errors)
    assert errors.startswith(b"Error: ")
    assert errors.count(b"\n") == 1
    assert output == b""
    return errors.decode()


def restored(servers: Cluster, backup: object) -> Node:
    """A server that runs on what was restored."""
    node = servers.node(start=False)
    tidelog("restore", backup, node.directory)
    node.start()
    return node


def manifests(target: Path) -> list[str]:
    return sorted(path.stem for path in target.glob("*.json"))


def chunks(target: Path) -> list[Path]:
    return sorted(path for path in target.glob("chunks/*/*") if path.is_file())
