"""Users with exactly the rights that docs/acl.md gives a program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidelog.testing import Server

TEXT = (Path(__file__).parents[2] / "docs" / "acl.md").read_text()
TABLE = TEXT.partition("## Rights of tidelog's programs")[2].partition("\n## ")[0]
ROWS = {
    cells[0].strip(): " ".join(re.findall(r"`([^`]*)`", " ".join(cells[1:])))
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| program")
    for cells in [line.strip("|").split("|")]
}


@dataclass
class Granted:
    """A user with some rules. ``url`` logs in as it."""

    server: Server
    url: str

    def denied(self) -> list[str]:
        """What the user was not allowed to do."""
        with self.server.client() as client:
            entries = client.redis.execute_command("ACL", "LOG")
        return [str(entry) for entry in entries]


def rules_of(*programs: str, **names: str | list[str]) -> list[str]:
    """The rules of these rows; ``T="orders"`` puts names in place of letters, a list repeats a rule."""
    rules: list[str] = []
    for program in programs:
        for rule in ROWS[program].split():
            made = [rule]
            for letter, given in names.items():
                each = [given] if isinstance(given, str) else given
                made = [re.sub(rf"\b{letter}\b", name, one) for one in made for name in each]
            rules += made if rule[0] in "~%" else [rule]
    return list(dict.fromkeys(rules))


@contextmanager
def granted(server: Server, *programs: str, **names: str | list[str]) -> Iterator[Granted]:
    """A user with the rules of these rows, see ``rules_of``."""
    rules = rules_of(*programs, **names)
    with server.client() as client:
        redis = client.redis
        redis.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules)
        redis.execute_command("ACL", "LOG", "RESET")
        try:
            yield Granted(server, server.url.replace("redis://", "redis://limited:secret@"))
        finally:
            redis.execute_command("ACL", "DELUSER", "limited")

