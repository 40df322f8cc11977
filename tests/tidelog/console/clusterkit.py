"""What tests of consoles of clusters share."""

from __future__ import annotations

import html
import re

from tests.replication.clusters import Groups
from tests.tidelog.console.consolekit import ALL, PASSWORD


def url_of(groups: Groups, at: int = 0) -> str:
    """The URL of one member."""
    return f"redis://127.0.0.1:{groups.nodes[at].port}"


def add_users(groups: Groups, name: str, *rules: str) -> None:
    for node in groups.nodes:
        assert node.say("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *(rules or ALL)) == b"OK"


def plain(page: str) -> str:
    """The text of a page, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2] or page)).split())
