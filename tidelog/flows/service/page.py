"""The page at ``/``: one response. Its policy only permits its own script and style.

The files in SHARED draw the graph of a flow. The console serves them, too.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from aiohttp import web

FILE = Path(__file__).with_name("page.html")
SHARED = (Path(__file__).with_name("flowgraph.js"), Path(__file__).with_name("flowgraph.css"))


@cache
def _read() -> tuple[str, str]:
    """Return the page and its policy, which contains the hashes of its script and style."""
    text = FILE.read_text(encoding="utf-8")
    for shared in SHARED:
        text = text.replace(f"/*{shared.name}*/", shared.read_text(encoding="utf-8"))
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:;"
        f" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


async def serve(_: web.Request) -> web.Response:
    text, policy = _read()
    return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": policy})
