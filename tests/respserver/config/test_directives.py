"""The table of directives, and the page that is generated from it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from respserver.config.config import Config
from respserver.config.directives import DIRECTIVES, Directive
from respserver.config.ignored import IGNORED
from respserver.config.values import Values

ROOT = Path(__file__).resolve().parents[3]


def test_directives_and_attributes_match() -> None:
    assert set(Values.__annotations__) == {d.attr for d in DIRECTIVES.values()}
    config = Config()
    for directive in DIRECTIVES.values():
        assert hasattr(config, directive.attr), directive.name
        assert directive.doc.endswith((".", ")")), directive.name


@pytest.mark.parametrize("directive", [d for d in DIRECTIVES.values() if not d.hidden], ids=lambda d: d.name)
def test_a_shown_value_parses_to_itself(directive: Directive) -> None:
    value = getattr(Config(), directive.attr)
    text = directive.show(value)
    words = directive.split(text) if text or directive.kind in ("string", "host", "events", "pattern") else []
    assert directive.parse(words, {}) == value


def test_the_reference_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts/config_reference.py"))
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == script["reference"](), "run scripts/config_reference.py"
    missing = [name for name in (*DIRECTIVES, *IGNORED) if f"`{name}`" not in page]
    assert not missing
