"""All functions of expressions: importing this module declares them."""

from __future__ import annotations

from tidelog.flows.expressions import (
    encoding,
    grok,
    logic,
    numeric,
    objects,
    parsing,
    patterns,
    strings,
    times,
)
from tidelog.flows.expressions.declare import FUNCTIONS

GROUPS = {
    "logic": logic, "numeric": numeric, "strings": strings, "patterns": patterns, "grok": grok, "times": times,
    "parsing": parsing, "objects": objects, "encoding": encoding,
}  # fmt: skip

__all__ = ["FUNCTIONS", "GROUPS"]
