"""The options of ``file``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from tidelog.flows.connectors.destinations import path_template
from tidelog.flows.connectors.pathpatterns import has_pattern
from tidelog.flows.connectors.payload import LinePayloadOptions, PayloadReader
from tidelog.options.limits import AtLeastOne, NotNegative
from tidelog.options.units import Duration, PositiveDuration, PositiveSize


class FileOptions(LinePayloadOptions, kw_only=True):
    """Options of ``file``."""

    templates: ClassVar[tuple[str, ...]] = ("path",)

    path: str
    # The path of the file to read or write. Source: it may be a pattern, such as `logs/**/*.log`. Sink: a
    # [template](#templates).
    tail: bool = False  # Source: follow the file, and then the file that replaces it.
    start: Literal["earliest", "latest"] = "earliest"
    # Source: where reading begins if no position is stored: at the beginning or the end of the file.
    position: str | None = None
    # Source: the path of the file that stores the position. `null`: `PATH.position` with `tail`, otherwise none. A
    # pattern with `tail` requires it.
    poll: PositiveDuration = PositiveDuration(0.25)  # Source: interval between two checks for new data and new files.
    linger: Duration = Duration(2)
    # Source: how long a rotated or deleted file must have no new data until reading of it ends.
    mode: Literal["append", "truncate"] = "append"  # Sink: `append` to an existing file, or `truncate` it.
    rotate_bytes: PositiveSize | None = None
    # Sink: maximum size of the file. A batch that would exceed it is written to a new file.
    rotate_every: PositiveDuration | None = None
    # Sink: period after which a new file is begun. Periods are counted from 1970 in UTC.
    keep: NotNegative | None = None  # Sink: number of rotated files that are retained. `null`: all.
    fsync: bool = False  # Sink: write each batch to disk before it is settled.
    max_open: AtLeastOne = 100
    # Maximum number of open files, if `path` is a pattern or a template. The one that is not used longest is closed.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path or "\0" in self.path:
            raise ValueError(f"path is {self.path!r}: it must name a file")
        if self.tail and not PayloadReader(self).splits_first:
            raise ValueError("tail requires that the first preprocessor splits messages, such as separate")

    @property
    def pattern(self) -> str | None:
        """The pattern of a source as an absolute path. None: ``path`` names one file."""
        fixed = path_template(self.path).fixed
        if fixed is None or not has_pattern(fixed) or Path(fixed).exists():
            return None
        return str(Path(fixed).absolute())
