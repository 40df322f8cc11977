"""Tables of the docs, for tests that compare them with the code."""

from __future__ import annotations

import re


def rows(text: str, title: str) -> dict[str, str]:
    """The rows of the first table after a heading or a line: the words in the first cell, and the second cell."""
    table = re.search(r"(?:^\|.*\|\n)+", text[text.index(title) :], re.MULTILINE)
    assert table is not None
    found: dict[str, str] = {}
    for line in table[0].splitlines()[2:]:
        first, second, *_ = line.strip("|").split("|")
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", first), second.strip())
    return found
