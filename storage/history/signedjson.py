"""Files of history with a JSON object in the first line, and XXH3-64 of this line in the second one."""

from __future__ import annotations

import json
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

from resp.errors import CorruptError

VERSION: Final = 1


def signed(document: dict[str, Any]) -> bytes:
    """Return the bytes of a file. ``document`` has ``format`` and ``version``."""
    line = json.dumps(document, separators=(",", ":")).encode()
    return b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode())


def checked(content: bytes, form: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object of a file of format ``form``. Raises CorruptError.

    ``remedy``: the end of the error text.
    """
    line, _, checksum = content.partition(b"\n")
    if checksum != xxh3_64_hexdigest(line).encode() + b"\n":
        raise CorruptError(f"a file of history ({form}) is damaged or incomplete: {remedy}")
    try:
        found: dict[str, Any] = json.loads(line)
        of, version = found["format"], found["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"a file of history ({form}) is invalid ({error!r}): {remedy}") from error
    if of != form:
        raise CorruptError(f"this file of history is no {form}: {remedy}")
    if version != VERSION:
        raise CorruptError(
            f"a file of history has format {version}; this version of tidelog reads format {VERSION}: upgrade it"
        )
    return found
