"""What the server keeps with a published batch, to tell a repetition of it from another batch of the same number.

    offsets:<hash>          of the file offsets/<batch> in the checkpoint: Spark writes it when it plans a batch, once
    rows:<number>:<hash>    of the number of rows for each stream

A batch that is run again after a failure has the same offsets file, whatever its rows are now. If a checkpoint is put
back and Spark plans the batch anew, the file is another one. Where that file can't be read, the numbers of rows must
do: they differ unless user code brings as many rows from other input.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.spark.given import AUTO, NONE, OFFSETS, ROWS, OptionError
from tidelog.transport.errors import ConflictError

WAY_OUT: Final = (
    "Nothing was written. Go back to the checkpoint that belongs to what was written, or start with a new checkpoint "
    "and startingOffsets behind it. With fenceCheck=none the batch is skipped: what only this run of it has is lost."
)


def of_batch(kind: str, checkpoint: str, batch: int, rows: Mapping[bytes, int], url: str = "") -> str:
    """The check of a query's batch, "" for none. ``rows`` is the number of rows for each stream.

    url: where the checkpoint is for fsspec, which reads the file then: errors of its file system, ImportError without.
    OptionError where ``kind`` is OFFSETS and the checkpoint can't be read; OSError where reading it fails.
    """
    if kind in (AUTO, OFFSETS) and url:
        return f"{OFFSETS}:{_hashed(_read(f'{url}/offsets/{batch}'))}"
    if kind in (AUTO, OFFSETS):
        file = _offsets_file(checkpoint, batch)
        if file is not None:
            return f"{OFFSETS}:{_hashed(file.read_bytes())}"
        if kind == OFFSETS:
            place = checkpoint or "the option checkpointLocation, which is not given"
            raise OptionError(f"fenceCheck is offsets, but there is no local file offsets/{batch} in {place}")
    return "" if kind == NONE else of_rows(rows)


def of_rows(rows: Mapping[bytes, int]) -> str:
    """The check that numbers of rows make."""
    lines = b"".join(b"%d:%b%d;" % (len(key), key, rows[key]) for key in sorted(rows))
    return f"{ROWS}:{sum(rows.values())}:{_hashed(lines)}"


def _offsets_file(checkpoint: str, batch: int) -> Path | None:
    """Where Spark planned the batch; None if the checkpoint isn't on a file system that this machine has mounted."""
    path = re.sub("^file:(//)?(?=/)", "", checkpoint)  # Hadoop's file:/a and file:///a
    if not path or re.match(r"[\w+.-]+:", path):
        return None
    file = Path(path) / "offsets" / str(batch)
    return file if file.is_file() else None


def _read(url: str) -> bytes:
    import fsspec  # here: of the extra backup

    with fsspec.open(url, "rb") as file:
        data: bytes = file.read()
    return data


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def explained(what: str, check: str, error: ConflictError) -> str:
    """The text for a batch that was published with another check. ``what`` names it."""
    found = re.search(r"was published with CHECK '(\w+)(?::(\d+):)?", str(error))
    before, rows = (found[1], found[2]) if found else ("", None)
    kind = check.partition(":")[0]
    if before != kind:
        return (
            f"{what} was published before, by a run that kept {before} as its check; this run has {kind}, so it is "
            f"unknown whether it is the same batch (see fenceCheck). {WAY_OUT}"
        )
    if kind == OFFSETS:
        return (
            f"{what} was published before, and Spark has planned it anew since: the checkpoint was put back to an "
            f"older state. {WAY_OUT}"
        )
    return (
        f"{what} was published before with {rows} rows, now it has {check.split(':')[1]}, or they are for other "
        f"streams: it was planned anew, or its rows depend on more than its input. {WAY_OUT}"
    )
