"""The files that pages load: our style sheet and script, and the files of other projects (``static/vendor``).

Rule 1: all files are read and their hashes computed at startup. Nothing outside this list is served.
Rule 2: the address of a file contains its hash, so browsers keep it until it changes.
Rule 3: a vendored file must have the hash that ``hashes.json`` has; ``scripts/vendor`` writes it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from tidelog.console.errors import ConsoleError, PageError
from tidelog.flows.service.page import SHARED  # the graph of a flow, as on the page of a flow process

FOLDER: Final = Path(__file__).with_name("static")
FILES: Final = (
    "console.css",
    "console.js",
    "plots.js",
    "stream.js",
    "search.js",
    "selection.js",
    "dialogs.js",
    "fields.js",
    "flow.js",
    "icon.svg",
    "vendor/htmx.min.js",
    "vendor/uplot.min.js",
    "vendor/uplot.min.css",
)
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
KEPT: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file, and its address."""

    url: str
    content: bytes
    content_type: str


class Assets:
    """All files. Raises ConsoleError if one is missing or was changed."""

    def __init__(self, folder: Path = FOLDER) -> None:
        try:
            expected = json.loads((folder / "vendor/hashes.json").read_text(encoding="utf-8"))
            contents = {name: (folder / name).read_bytes() for name in FILES}
            contents |= {path.name: path.read_bytes() for path in SHARED}
        except OSError as error:
            raise ConsoleError(f"{error.filename} can't be read: install tidelog again ({error.strerror})") from None
        self._files: dict[str, Asset] = {}
        self._urls: dict[str, str] = {}
        for name, content in contents.items():
            digest = hashlib.sha256(content).hexdigest()
            folder_name, _, base = name.rpartition("/")
            if folder_name and digest != expected.get(base):
                raise ConsoleError(f"{folder / name} was changed: install tidelog again, or run scripts/vendor")
            path = f"{digest[:16]}/{base}"
            self._files[path] = Asset(f"/static/{path}", content, TYPES[Path(base).suffix])
            self._urls[base] = f"/static/{path}"

    def url(self, name: str) -> str:
        """Return the address of a file."""
        return self._urls[name]

    async def serve(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["path"])
        if found is None:
            raise PageError(404, "There is no such file.")
        return web.Response(
            body=found.content, content_type=found.content_type, charset="utf-8", headers={"Cache-Control": KEPT}
        )  # fmt: skip
