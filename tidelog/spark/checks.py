"""The check that the server stores with a published batch, to distinguish a repetition from another batch with its
number.

    offsets:<hash>          hash of the file offsets/<batch> in the checkpoint, which Spark writes when it plans a batch
    rows:<number>:<hash>    hash of the number of rows for each stream

A batch that is repeated after a failure has the same offsets file, even if its rows differ. If a checkpoint is
rolled back and Spark plans the batch again, the file differs. If the file cannot be read, the numbers of rows are
used. They differ unless user code produces the same numbers from other input.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.spark.optionvalues import AUTO, NONE, OFFSETS, ROWS, OptionError
from tidelog.transport.errors import ConflictError

WAY_OUT: Final = (
    "Nothing was written. Go back to the checkpoint that belongs to what was written, or start with a new checkpoint "
    "and startingOffsets behind it. With fenceCheck=none the batch is skipped: what only this run of it has is lost."
)


def of_batch(kind: str, checkpoint: str, batch: int, rows: Mapping[bytes, int], url: str = "") -> str:
    """Return the check of a query's batch, "" for none. ``rows`` is the number of rows for each stream.

    url: the checkpoint as an fsspec URL; fsspec then reads the file. Raises errors of its file system, ImportError
    without fsspec, OptionError if ``kind`` is OFFSETS and the checkpoint is not accessible, and OSError if reading it
    fails.
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
    """Return the check of numbers of rows."""
    lines = b"".join(b"%d:%b%d;" % (len(key), key, rows[key]) for key in sorted(rows))
    return f"{ROWS}:{sum(rows.values())}:{_hashed(lines)}"


def _offsets_file(checkpoint: str, batch: int) -> Path | None:
    """Return the file with Spark's plan of the batch; None if the checkpoint is not on a mounted file system."""
    path = re.sub("^file:(//)?(?=/)", "", checkpoint)  # Hadoop writes file:/a and file:///a
    if not path or re.match(r"[\w+.-]+:", path):
        return None
    file = Path(path) / "offsets" / str(batch)
    return file if file.is_file() else None


def _read(url: str) -> bytes:
    import fsspec  # imported here, because it belongs to the extra backup

    with fsspec.open(url, "rb") as file:
        data: bytes = file.read()
    return data


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def explained(what: str, check: str, error: ConflictError) -> str:
    """Return the error text for a batch that was published with another check. ``what`` names the batch."""
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
