"""``python -m tidelog.jobs.snapshots LOCK``: create one snapshot, for the SnapshotRequest in JSON on standard input.

LOCK is the inherited descriptor of the lock, see ``process``. The process does not import the job's modules. It exits
without waiting for threads in which a driver hangs.
"""

from __future__ import annotations

import logging
import os
import sys

import msgspec

from tidelog.jobs.snapshots.creation import SnapshotRequest, make

NICE = 10  # still gets a tenth of a busy core; with 19, the read transaction would take minutes there

log = logging.getLogger("tidelog.jobs.snapshots")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    os.nice(NICE)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=SnapshotRequest)
    try:
        make(request)
    except Exception:
        log.exception("no snapshot of job %s, partition %d", request.job, request.partition)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)
