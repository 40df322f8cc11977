#!/usr/bin/env python3
"""Write docs/configuration.md from the table of directives. ``--check`` reports whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from respserver.config.directives import SECTIONS, Directive  # noqa: E402 - needs the path above
from respserver.config.ignored import IGNORED, MODULE_PREFIXES  # noqa: E402

TARGET = ROOT / "docs" / "configuration.md"

INTRO = """\
# Configuration

<!-- Written by scripts/config_reference.py from respserver/config/directives.py: change it there. -->

`tidelog-server` is configured like `redis-server`: by a file, by flags, or by both. Flags override the file.

```sh
tidelog-server /etc/tidelog.conf --port 7777 --loglevel verbose
tidelog-server --help appendfsync                      # explain a directive
tidelog-server /etc/tidelog.conf --test-config         # check a file without starting the server
redis-cli CONFIG GET 'append*'                         # show values of the running server
redis-cli CONFIG SET appendfsync everysec              # change a value at run time
redis-cli CONFIG REWRITE                               # write changes into the file; comments are preserved
```

A line of the file is a directive or a comment, which starts with `#`. Names and `yes`/`no` are case-insensitive. Values
with spaces need quotes (`"a \\x41 \\n"` or `'as it is'`). `include other.conf` inserts the lines of another file, or of
several with a pattern such as `conf.d/*.conf`. Sizes are in bytes or have a unit: `1k` is 1000 bytes, `1kb` is 1024,
and so on with `m`, `mb`, `g` and `gb`. Relative paths start at the directory in which the server was started.

Directives of Redis that have no effect in tidelog are accepted with a warning, so that tidelog starts with a
`redis.conf` as it is (see the end of this page). An unknown directive is an error, and the message names the most
similar one.

In the tables, *live* says whether CONFIG SET can change the directive at run time.
"""


def table(directives: tuple[Directive, ...]) -> str:
    rows = ["| directive | default | takes | live | meaning |", "|---|---|---|---|---|"]
    for d in directives:
        default = f"`{d.default}`" if d.default else ""
        meaning = f"{d.doc} Another value is refused: {d.why}." if d.fixed == "refuse" else d.doc
        cells = (f"`{d.name}`", default, d.takes(), "yes" if d.mutable else "", meaning)
        rows.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join(rows)


def ignored() -> str:
    by_reason: dict[str, list[str]] = {}
    for name, (_, reason) in IGNORED.items():
        by_reason.setdefault(reason, []).append(name)
    lines = []
    for reason, names in by_reason.items():
        lines.append(f"- {reason[0].upper()}{reason[1:]}: {', '.join(f'`{name}`' for name in names)}.")
    prefixes = ", ".join(f"`{prefix}*`" for prefix in MODULE_PREFIXES)
    return "\n".join([*lines, f"- The directives of Redis 8's modules: {prefixes}."])


def reference() -> str:
    parts = [INTRO]
    parts += [f"## {title}\n\n{table(directives)}\n" for title, directives in SECTIONS]
    parts.append(
        "## Redis's directives without effect\n\n"
        "They are accepted with a warning, and grouped here by reason. CONFIG GET returns the given value, or "
        f"Redis's default.\n\n{ignored()}\n"
    )
    return "\n".join(parts)


def main() -> int:
    text = reference()
    if "--check" in sys.argv[1:]:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.relative_to(ROOT)} is out of date: run scripts/config_reference.py")
        return 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
