"""A client of the HTTP API of a process that runs flows."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import click

ANSWER: Final = 30.0  # s: the timeout of a response
BODY: Final = 64 << 20  # bytes: the maximum size of a response


class NoProcessError(click.ClickException):
    """No process responds at the URL."""


class FlowApiClient:
    """Sends requests: ``FlowApiClient("http://127.0.0.1:9898").get("/v1/flows")``."""

    def __init__(self, url: str, token_file: str | None = None, answer: float = ANSWER) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise click.BadParameter(f"{url!r} is not a URL such as http://127.0.0.1:9898", param_hint="--api")
        self._url = url.rstrip("/")
        self._answer = answer
        self._headers = {"Accept": "application/json"}
        if token_file is not None:
            try:
                token = Path(token_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise click.BadParameter(f"{token_file}: {error.strerror}", param_hint="--token-file") from None
            self._headers["Authorization"] = f"Bearer {token}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy

    def get(self, path: str) -> Any:
        return self.send("GET", path)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of the response. Raises NoProcessError, or ClickException for an error response."""
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        quoted = urllib.parse.quote(path, safe="/?=&.-_")
        request = urllib.request.Request(self._url + quoted, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._answer) as answer:
                return json.loads(answer.read(BODY))
        except urllib.error.HTTPError as error:
            with error:
                raise click.ClickException(_said(error.code, error.read(BODY))) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise NoProcessError(
                f"no answer from {self._url}: {reason}; is a tidelog flow process running there? See --api"
            ) from None


def _said(code: int, body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        return f"the response is {code}"
    text = found.get("error") if isinstance(found, dict) else None
    if code == 401:
        return f"{text}; --token-file names a file that contains it"
    return str(text or f"the response is {code}")
