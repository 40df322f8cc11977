"""What ``tidelog flow`` asks of a process that runs flows, over its HTTP API."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import click

ANSWER: Final = 30.0  # s that an answer may take
BODY: Final = 64 << 20  # bytes of one


class FlowApiClient:
    """>>> Api("http://127.0.0.1:9898").get("/v1/flows")"""

    def __init__(self, url: str, token_file: str | None = None, answer: float = ANSWER) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise click.BadParameter(f"{url!r} is no URL such as http://127.0.0.1:9898", param_hint="--api")
        self._url = url.rstrip("/")
        self._answer = answer
        self._headers = {"Accept": "application/json"}
        if token_file is not None:
            try:
                token = Path(token_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise click.BadParameter(f"{token_file}: {error.strerror}", param_hint="--token-file") from None
            self._headers["Authorization"] = f"Bearer {token}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # this goes to no proxy

    def get(self, path: str) -> Any:
        return self.send("GET", path)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON. ClickException: no answer, or an error."""
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
            raise click.ClickException(
                f"no answer from {self._url}: {reason}; is there a tidelog flow run? --api says where"
            ) from None


def _said(code: int, body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        return f"the answer is {code}"
    text = found.get("error") if isinstance(found, dict) else None
    if code == 401:
        return f"{text}; --token-file names a file that holds it"
    return str(text or f"the answer is {code}")
