"""The files of a history: a directory, or a bucket through fsspec (``s3://``, ``gs://``, ``abfs://``).

The driver of a bucket finds endpoint and credentials in the environment of this process, as the server's driver does:
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on, or FSSPEC_S3='{"option": ...}'.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from tidelog.history.errors import HistoryError

#: Schemes of URLs, each with the package of its driver.
DRIVERS: Final = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
OBJECTS: Final = "objects"  # the folder of the objects


class HistoryFiles:
    """The files below a URL. All methods may be called by several threads, and raise HistoryError."""

    def __init__(self, url: str) -> None:
        self.url: Final = url.rstrip("/")
        scheme, separator, rest = self.url.partition("://")
        self._bucket: Any = None  # None: a directory
        if not separator or scheme == "file":
            self._top = rest if separator else self.url
            return
        try:
            import fsspec

            self._bucket, path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            package = DRIVERS.get(scheme, scheme)
            raise HistoryError(f"{url}: {error}: pip install 'tidelog[history]' {package}") from None
        except Exception as error:
            raise HistoryError(f"{url}: {type(error).__name__}: {error}") from error
        self._top = path.rstrip("/")

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; [] if there is no such folder."""
        try:
            if self._bucket is None:
                return os.listdir(Path(self._top) / folder) if Path(self._top).is_dir() else self._unmounted()
            self._bucket.invalidate_cache()  # another process writes the files
            found = self._bucket.ls(f"{self._top}/{folder}", detail=False)
            return [name.rstrip("/").rpartition("/")[2] for name in found]
        except FileNotFoundError:
            return []
        except HistoryError:
            raise
        except Exception as error:
            raise self._failed(folder, error) from error

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file from ``start`` to before ``end``."""
        try:
            if self._bucket is None:
                with open(Path(self._top) / name, "rb") as file:
                    file.seek(start)
                    data = file.read() if end is None else file.read(end - start)
            else:
                data = self._bucket.cat_file(f"{self._top}/{name}", start=start or None, end=end)
        except Exception as error:
            raise self._failed(name, error) from error
        if end is not None and len(data) != end - start:
            raise HistoryError(f"{self.url}/{name} is truncated: the bytes {start} to {end} are missing")
        return data

    def _unmounted(self) -> list[str]:
        raise HistoryError(f"{self.url} does not exist on this machine: mount the directory")

    def _failed(self, name: str, error: Exception) -> HistoryError:
        if isinstance(error, FileNotFoundError):
            return HistoryError(f"{self.url}/{name} does not exist")
        remedy = " (is this process permitted to read it?)" if isinstance(error, PermissionError) else ""
        return HistoryError(f"{self.url}/{name} can't be read: {type(error).__name__}: {error}{remedy}")
