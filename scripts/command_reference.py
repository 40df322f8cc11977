"""Write docs/commands.md from the command table. ``--check`` reports whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from commands.declare import MANY, Command, all_commands, syntax  # noqa: E402
from commands.registry import TABLE  # noqa: E402

PAGE = ROOT / "docs" / "commands.md"

HEAD = """\
# Commands

All commands of `tidelog-server`, by group. `scripts/command_reference.py` writes this page from the declarations of the
commands. `COMMAND DOCS` returns the same content, which `redis-cli` uses for completion and hints. Commands of Redis
behave as in Redis. [semantics.md](semantics.md) defines the stream commands in every detail.
"""

GROUPS = {
    "stream": "Streams",
    "generic": "Keys",
    "string": "Strings",
    "transactions": "Transactions",
    "scripting": "Scripts",
    "pubsub": "Publish and subscribe",
    "connection": "Connection",
    "cluster": "Cluster clients",
    "server": "Server",
}


def render() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for group, title in GROUPS.items():
        shown = [cmd for cmd in all_commands() if cmd.group == group and not cmd.bare]
        parts.append(f"## {title}\n\n" + " · ".join(f"[{name(cmd)}](#{anchor(cmd)})" for cmd in shown) + "\n")
        parts += [entry(cmd) for cmd in shown]
    return "\n".join(parts)


def name(cmd: Command) -> str:
    return cmd.name.replace("|", " ").upper()


def anchor(cmd: Command) -> str:
    """Return the anchor that GitHub generates for the heading."""
    return cmd.name.replace("|", "-").replace(" ", "-")


def entry(cmd: Command) -> str:
    facts = [f"Complexity: {cmd.complexity.rstrip('.')}.", f"Since {cmd.since}."]
    if cmd.most < MANY:
        facts.append(f"At most {cmd.most - cmd.name.count('|') - 1} arguments in one call.")
    facts.append("ACL categories: " + " ".join(f"@{category}" for category in cmd.acl_categories) + ".")
    return f"### {name(cmd)}\n\n```\n{syntax(cmd)}\n```\n\n{cmd.summary}\n\n{' '.join(facts)}\n"


def main() -> int:
    assert TABLE, "the registry is empty"
    page = render()
    if "--check" in sys.argv[1:]:
        fresh = PAGE.exists() and PAGE.read_text() == page
        print(f"{PAGE.relative_to(ROOT)} is {'up to date' if fresh else 'stale: run scripts/command_reference.py'}")
        return 0 if fresh else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page)
    print(f"{PAGE.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
