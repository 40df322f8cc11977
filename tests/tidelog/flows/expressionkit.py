"""Expressions that are evaluated for one document, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.flows.operators.jmescompiler import expression

DOCUMENT: dict[str, Any] = {
    "a": 7,
    "b": 2,
    "f": 2.5,
    "s": "tea",
    "none": None,
    "no": False,
    "list": [1, 2, 3],
    "o": {"x": 1},
    "let": 1,
    "in": 2,
    "quoted": 'a="x \\"y\\" z" b= =c d',
    "huge": 1e18,
    "items": [{"p": 1, "n": "cup"}, {"p": 5, "n": "pot"}],
    "limit": 3,
}


def result(text: str, document: Any = DOCUMENT) -> Any:
    return expression(text)(document)


def error(text: str, document: Any = DOCUMENT) -> str:
    run = expression(text)
    with pytest.raises(ValueError, match=r".") as caught:
        run(document)
    return str(caught.value)


def refusal(text: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        expression(text)
    return str(caught.value)
