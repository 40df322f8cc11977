"""Runs the tests of flow files, and reports the results as text, JSON, or JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import click

from tidelog.cli.lines import printable
from tidelog.flows.files import FlowCase
from tidelog.flows.testing.casetests import CaseResult, run_case
from tidelog.operating.tables import counted
from tidelog.operating.terminal import echo


def neighbors(files: Iterable[str]) -> list[str]:
    """Return the files with tests that belong to these files and exist: ``orders.test.yaml`` for ``orders.yaml``."""
    given = list(files)
    known = {Path(each).absolute() for each in given}
    found = []
    for each in given:
        path = Path(each)
        other = path.with_name(f"{path.stem}.test{path.suffix}")
        if path.suffix in (".yaml", ".yml") and other.exists() and other.absolute() not in known:
            known.add(other.absolute())
            found.append(str(other))
    return found


def chosen(cases: Sequence[FlowCase], part: str | None) -> list[FlowCase]:
    """Return the tests whose names contain a text. Raises ClickException if there are none."""
    found = [each for each in cases if part is None or part.lower() in each.name.lower()]
    if not found and cases:
        raise click.ClickException(f"none of the {counted(len(cases), 'test')} has a name with {part!r}")
    if not found:
        raise click.ClickException("there are no tests: add the key 'tests' to a file, or name a file that has it")
    return found


def run(cases: Sequence[FlowCase], *, as_json: bool, junit: str | None) -> bool:
    """Run tests and print their results. Return whether all have passed."""
    results = []
    for each in cases:
        result = run_case(each)
        results.append(result)
        if not as_json:
            _print(result)
    failed = sum(not each.passed for each in results)
    if junit is not None:
        _write_junit(results, junit)
    if as_json:
        tests = [
            {"name": each.name, "flow": each.flow, "at": each.where, "passed": each.passed, "seconds": each.seconds,
             "failures": each.failures}
            for each in results
        ]  # fmt: skip
        echo(json.dumps({"passed": len(results) - failed, "failed": failed, "tests": tests}))
    else:
        echo(f"{counted(len(results), 'test')}: {len(results) - failed} passed, {failed} failed")
    return not failed


def _print(result: CaseResult) -> None:
    echo(printable(f"{result.where}: {'passed' if result.passed else 'failed'}: {result.name}"))
    for line in result.failures:
        echo(f"    {printable(line)}")


def _write_junit(results: Sequence[CaseResult], path: str) -> None:
    """Write the results in the format of JUnit. Raises ClickException if the file can't be written."""
    suite = ElementTree.Element("testsuite", name="tidelog flow test", tests=str(len(results)))
    suite.set("failures", str(sum(not each.passed for each in results)))
    suite.set("time", f"{sum(each.seconds for each in results):.3f}")
    for each in results:
        file, _, line = each.where.rpartition(":")
        case = ElementTree.SubElement(suite, "testcase", name=each.name, classname=each.flow, file=file, line=line)
        case.set("time", f"{each.seconds:.3f}")
        if not each.passed:
            failure = ElementTree.SubElement(case, "failure", message=printable(each.failures[0]))
            failure.text = "\n".join(map(printable, each.failures))
    try:
        ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None
