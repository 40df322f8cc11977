"""Runs a continuous backup in a thread, so that the process reacts although a target or a server hangs.

Rule: after a signal, the process ends within MOST_STOPPING seconds. It leaves at most what a SIGKILL would leave, which
the next start handles: the lock, a chunk that is written again, and files of an incomplete base backup.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from tidelog.backup.continuous import ContinuousBackup
from tidelog.backup.targets import BackupError
from tidelog.operating.systemd import notify

MOST_STOPPING: Final = 8.0  # seconds
POLL: Final = 0.5  # seconds between two checks


class AbandonedError(BackupError):
    """The thread did not end in time. It may still be blocked, so the process must end without waiting for it."""


def run(backup: ContinuousBackup, stop: threading.Event) -> None:
    """Run the backup until ``stop`` is set. Raises what it raises, and AbandonedError."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            backup.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=work, name="tidelog-continuous", daemon=True)
    thread.start()
    stopped_at, ready = 0.0, False
    while thread.is_alive():
        thread.join(POLL)
        if not stop.is_set():
            backup.monitor.check()
            ready = _notify(backup, ready)
            continue
        if not stopped_at:
            notify("STOPPING=1")
        stopped_at = stopped_at or time.monotonic()
        if time.monotonic() - stopped_at > MOST_STOPPING:
            raise AbandonedError(
                f"the process ends {MOST_STOPPING:g} seconds after the signal, with work in progress:"
                f" {backup.monitor.activity}. {backup.unwritten}"
            )
    if failed:
        raise failed[0]


def _notify(backup: ContinuousBackup, ready: bool) -> bool:
    """Show systemd the state of the backup. Return whether it is connected."""
    if backup.connected:
        state = f"{backup.monitor.behind:.0f} s behind" if backup.monitor.following else "taking a base backup"
        notify(f"STATUS={state}" if ready else f"READY=1\nSTATUS={state}")
    return backup.connected
