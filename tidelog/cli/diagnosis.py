"""The findings of ``tidelog doctor``, and their output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from tidelog.operating.tables import counted
from tidelog.operating.terminal import echo

Outcome = Literal["ok", "problem", "unknown"]
_SHOWN: Final[dict[Outcome, str]] = {"ok": "ok", "problem": "PROBLEM", "unknown": "-"}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str  # what was checked, such as "open files"
    status: Outcome  # unknown: the system or the server does not report the value
    value: str  # the current value
    action: str = ""  # the recommended action; only for a problem


def judged(check: str, value: str, action: str, *, problem: bool) -> Finding:
    """Return a finding that is a problem with an action, or ok without one."""
    return Finding(check, "problem", value, action) if problem else Finding(check, "ok", value)


def problems(findings: Sequence[Finding]) -> int:
    """Return the number of problems."""
    return sum(finding.status == "problem" for finding in findings)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as an object for JSON: ``problems`` is their number, ``checks`` has all findings."""
    return {"problems": problems(findings), "checks": [asdict(finding) for finding in findings]}


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, and the action below each problem."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        echo(f"{_SHOWN[finding.status]:<8} {finding.check:<{width}}  {finding.value}")
        if finding.action:
            echo(f"{'':<8} {'':<{width}}  -> {finding.action}")
    count = problems(findings)
    echo(counted(count, "problem") if count else "no problems")
