#!/usr/bin/env python3
"""Write the tables of metrics in docs/monitoring.md. ``--check`` reports whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from respserver.metrics.families import SECTIONS, MetricFamily  # noqa: E402 - needs the path above

TARGET = ROOT / "docs" / "monitoring.md"
BEGIN = "<!-- Written by scripts/metrics_reference.py from respserver/metrics/families.py: change it there. -->\n"
END = "<!-- The end of the tables. -->\n"


def table(families: tuple[MetricFamily, ...]) -> str:
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{family.name}` | {family.kind} |{f' {labels} ' if labels else ' '}| {family.help} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """Return the page with current tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "".join(f"\n### {title}\n\n{table(families)}\n" for title, families in SECTIONS)
    return f"{before}{BEGIN}{tables}\n{END}{after}"


def main() -> int:
    text = TARGET.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if page(text) == text:
            return 0
        print(f"{TARGET.relative_to(ROOT)} is out of date: run scripts/metrics_reference.py")
        return 1
    TARGET.write_text(page(text), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
