"""The options of ``object_store``, and the format and the compression that follow from an object's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

from msgspec import field

from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.codecs.base import codec
from tidelog.flows.connectors.destinations import path_template
from tidelog.flows.connectors.objects.columntypes import column_types
from tidelog.flows.connectors.objects.stores import REMOTE, LocalStore, ObjectStorage, RemoteStore, file_system
from tidelog.flows.connectors.pathpatterns import path_pattern
from tidelog.flows.connectors.payload import NameOrOptions, PayloadOptions
from tidelog.flows.connectors.templates import Template, fixed_text
from tidelog.options.limits import AtLeastOne
from tidelog.options.units import Duration, PositiveDuration, PositiveSize

UNIQUE: Final = "{unique}"
MARK: Final = "\0"  # replaces UNIQUE in a filled name: values of events are escaped, so they never contain it
PARQUET: Final = "parquet"
LONGEST: Final = 1024  # bytes of the name of an object in S3, GCS, and Azure

_URL: Final = re.compile(r"([a-z0-9]+)://([^/{}]*)(/?.*)", re.DOTALL)
_FORMATS: Final[dict[str, NameOrOptions]] = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": {"csv": {"header": True}}, "parquet": PARQUET,
    "txt": "string", "log": "string",
}  # fmt: skip
_COMPRESSIONS: Final = {"gz": "gzip", "zst": "zstd"}


class ObjectKind(NamedTuple):
    """How the content of an object is encoded."""

    format: NameOrOptions  # PARQUET, or a codec for lines
    compression: str  # none, gzip, zstd


class ObjectStoreOptions(ConnectorOptions, kw_only=True):
    """Options of ``object_store``."""

    templates: ClassVar[tuple[str, ...]] = ("url",)

    url: str
    # Source: the directory, such as `s3://bucket/orders/`. Sink: the name of objects, a [template](#templates), such as
    # `s3://bucket/orders/{day}/{unique}.jsonl.gz`.
    storage_options: dict[str, Any] = field(default_factory=dict)
    # Options of the fsspec file system, such as `key`, `secret` and `endpoint_url`. The API does not show their values.
    format: NameOrOptions | None = None
    # `parquet`, or the codec of lines, such as `jsonl` or `{csv: {header: true}}`. `null`: by the object's name.
    compression: Literal["none", "gzip", "zstd"] | None = None
    # `none`, `gzip` or `zstd`. `null`: by the object's name.
    request_timeout: PositiveDuration = PositiveDuration(60)  # Time limit for each call of the store.
    max_bytes: PositiveSize = PositiveSize(1 << 20)  # Maximum size of a line.
    match: str = "**/*"  # Source: a pattern of the names below the directory, such as `**/*.csv`.
    every: PositiveDuration | None = PositiveDuration(30)
    # Source: interval of the searches for new objects. `null`: the existing objects are read, and the source ends.
    position: str | None = None
    # Source: the path of a file that stores which objects were read. Required unless `every` is `null`.
    columns: dict[str, str] = field(default_factory=dict)
    # Sink: the columns of Parquet and their Arrow types, such as `{id: int64, created: timestamp}`. Empty: from the
    # events of each object.
    object_events: AtLeastOne = 10_000  # Sink: number of events at which an object is written.
    object_size: PositiveSize = PositiveSize(16 << 20)  # Sink: uncompressed size at which an object is written.
    object_age: Duration = Duration(10)  # Sink: time from the first event to the writing of the object.
    concurrency: AtLeastOne = 4  # Sink: number of objects that are written at the same time.

    def __post_init__(self) -> None:
        super().__post_init__()
        found = _URL.fullmatch(self.url)
        if found is None or (found[1] not in REMOTE and found[1] != "file"):
            raise ValueError(f"url: it must begin with {', '.join(f'{each}://' for each in (*REMOTE, 'file'))}")
        if (found[1] == "file") == bool(found[2]) or not found[3].startswith("/"):
            form = "file:///DIRECTORY/" if found[1] == "file" else f"{found[1]}://BUCKET/NAME"
            raise ValueError(f"url: it must have the form {form}, with placeholders only in the name")
        if isinstance(self.format, Mapping) or self.format not in (None, PARQUET):
            codec(self.format)  # raises ValueError if it is not valid
        path_pattern(self.match)
        column_types(self.columns)

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    def store(self) -> ObjectStorage:
        if self.scheme == "file":
            return LocalStore()
        return RemoteStore(self.scheme, self.storage_options, self.request_timeout)

    def package_errors(self) -> list[str]:
        """Return the packages that are missing."""
        if self.scheme == "file":
            return []
        try:
            file_system(self.scheme, self.storage_options)
        except ImportError:
            package = REMOTE[self.scheme]
            return [f"{self.scheme}:// needs the package {package!r}: pip install 'tidelog[flows-objects]'"]
        return []

    @property
    def directory(self) -> str:
        """The directory of a source as a path, with its last slash."""
        return path_of(fixed_text(self.url)).rstrip("/") + "/"

    @property
    def name_template(self) -> Template:
        """The template of names, with MARK instead of UNIQUE."""
        return path_template(path_of(self.url.replace(UNIQUE, MARK)))

    def kind(self, name: str) -> ObjectKind | None:
        """Return the kind of an object. None: its name does not show it, and the options do not, either."""
        rest, _, ending = name.lower().rpartition(".")
        packed = _COMPRESSIONS.get(ending)
        if packed is not None:
            ending = rest.rpartition(".")[2]
        form = self.format if self.format is not None else _FORMATS.get(ending)
        return None if form is None else ObjectKind(form, self.compression or packed or "none")

    def payload(self, kind: ObjectKind) -> PayloadOptions:
        """Return the options that decode and encode the lines of an object."""
        before: list[NameOrOptions] = [] if kind.compression == "none" else [{kind.compression: {"stream": True}}]
        return PayloadOptions(
            codec=kind.format, preprocessors=[*before, "separate"], postprocessors=["separate"],
            max_bytes=self.max_bytes,
        )  # fmt: skip


def path_of(url: str) -> str:
    """Return the path of a URL: BUCKET/NAME, or /NAME of a file."""
    scheme, _, rest = url.partition("://")
    if scheme in ("abfs", "abfss") and "@" in rest.partition("/")[0]:  # CONTAINER@ACCOUNT.dfs.core.windows.net
        container, _, name = rest.partition("/")
        rest = f"{container.partition('@')[0]}/{name}"
    return rest


def position_warnings(position: str | None) -> list[str]:
    directory = None if position is None else Path(position).absolute().parent
    if directory is not None and not directory.is_dir():
        return [f"position is {position!r}: there is no directory {directory}"]
    return []
