"""Reads flow files.

    name: shop                      # name of the process; its desired state is stored under it
    server: redis://localhost:7379
    listen: 127.0.0.1:9898          # the HTTP API; null: none
    token_file: /run/secrets/token  # the bearer token of the API
    environment: [SEARCH_URL]
    flows:
      orders: {connectors: ..., pipelines: ..., connect: ...}
    tests:
      large orders are reviewed: {input: ..., output: ...}

Rule 1: Nothing runs before all files are read and valid. All errors are reported together, as ``file:line: path:
        text``.
Rule 2: ``server``, ``listen`` and the other keys of the header can be in any of several files, but must not differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tidelog.flows import edges
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.declare import FlowOptions, Op, connector_spec, finish, operator_spec, pipeline_spec
from tidelog.flows.files import environment, restrictions, yamltext
from tidelog.flows.files.testcases import FlowCase, read_cases
from tidelog.flows.serveraccess import access
from tidelog.flows.spec import ConnectorSpec, Edge, FlowSpec, OperatorSpec, PipelineSpec
from tidelog.options.structs import Problems, Struct, read, without_marks
from tidelog.options.units import excerpt

SECTIONS: Final = ("environment", "flows", "tests")  # keys of a file that are not in its header
PARTS: Final = ("connectors", "pipelines", "connect")  # keys of a flow that are not options
MOST: Final = 500  # maximum number of connectors, pipelines, operators and chains of a flow


class FileHeader(Struct):
    """The keys of a file besides SECTIONS."""

    name: str | None = None  # name of the process, under which its desired state is stored
    server: str | None = None  # URL of the tidelog server
    listen: str | None = None  # HOST:PORT of the HTTP API
    token: str | None = None  # required by the API
    token_file: str | None = None  # a file that contains the token


@dataclass
class FlowDocument:
    """The contents of files. ``given``: each flow as it was written, with ``${NAME}`` replaced. ``cases``: tests."""

    head: FileHeader = field(default_factory=FileHeader)
    flows: dict[str, FlowSpec] = field(default_factory=dict)
    given: dict[str, dict[str, Any]] = field(default_factory=dict)
    cases: list[FlowCase] = field(default_factory=list)


def read_files(
    paths: Iterable[str | Path], *, server: str | None = None, variables: Mapping[str, str] | None = None
) -> FlowDocument:
    """Read files. ``server`` overrides theirs. Raises FlowFileError with all errors of all files."""
    texts = []
    problems: list[str] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                texts.append((str(path), file.read(yamltext.SIZE + 1)))
        except OSError as error:
            problems.append(f"{path}: {error.strerror or error}")
        except UnicodeDecodeError as error:
            problems.append(f"{path}: not UTF-8: {error.reason} at byte {error.start}")
    return _read(texts, server, os.environ if variables is None else variables, problems)


def read_text(
    content: str, name: str = "flows.yaml", *, server: str | None = None, variables: Mapping[str, str] | None = None
) -> FlowDocument:
    """Read flows from one text. ``name`` is used in errors."""
    return _read([(name, content)], server, os.environ if variables is None else variables, [])


def _read(
    texts: Iterable[tuple[str, str]], server: str | None, variables: Mapping[str, str], found: list[str]
) -> FlowDocument:
    document = FlowDocument()
    parsed: list[tuple[str, yamltext.ParsedText, Problems]] = []
    homes: dict[str, str] = {}  # the file and line in which a flow or a key of the header was found first
    for name, content in texts:
        problems = Problems()
        one = yamltext.read(content, problems)
        parsed.append((name, one, problems))
        if isinstance(one.value, dict):
            one.value = _filled(one.value, variables, problems)
            _head(document.head, one.value, name, homes, problems)
        else:
            problems.add("", "a flow file is a mapping with the key 'flows'")
            one.value = {}
    default = server or document.head.server or variables.get("TIDELOG_URL")
    document.head.server = default
    if default is not None and (wrong := no_server(default)):
        _say_of_server(wrong, [each for _, one, each in parsed if not server and "server" in one.value], found)
    for name, one, problems in parsed:
        _flows(document, one, name, default, homes, problems)
    for name, one, problems in parsed:
        if "tests" in one.value:
            flows = one.value.get("flows")
            own = [str(each) for each in flows] if isinstance(flows, dict) else []
            document.cases += read_cases(one.value["tests"], document.flows, own, name, one.line, problems)
    for name, one, problems in parsed:
        lines = sorted((one.line(path), path, what) for path, what in problems.found)
        found += [f"{name}:{line}: {path}: {what}" if path else f"{name}:{line}: {what}" for line, path, what in lines]
    if found:
        raise FlowFileError(list(dict.fromkeys(found)))
    return document


def _flows(
    document: FlowDocument, one: yamltext.ParsedText, file: str, server: str | None, homes: dict[str, str],
    problems: Problems,
) -> None:  # fmt: skip
    """Read the flows of a file."""
    flows = one.value.get("flows", {})
    if not isinstance(flows, dict):
        problems.add("flows", "a mapping from names to flows is expected")
        return
    for each, given in flows.items():
        path = f"flows.{each}"
        if (home := homes.setdefault(path, f"{file}:{one.line(path)}")) != f"{file}:{one.line(path)}":
            problems.add(path, f"there is already a flow {each!r}: {home}")
            continue
        _aliased(one, given, path)
        spec = read_flow(each, given, path, server, problems)
        if spec is not None:
            document.flows[each] = spec
            document.given[each] = without_marks(given)


def _say_of_server(wrong: str, homes: list[Problems], found: list[str]) -> None:
    """Report an invalid server. ``homes``: the problems of the files with the key; empty if it is not from a file."""
    for problems in homes:
        problems.add("server", wrong)
    if not homes:
        found.append(f"server: {wrong}")


def no_server(url: str) -> str:
    """Return why a URL can't be used for a tidelog server, or an empty string."""
    try:
        access(url)
    except ValueError as error:
        return str(error)
    return ""


def _filled(value: dict[str, Any], variables: Mapping[str, str], problems: Problems) -> dict[str, Any]:
    if "environment" not in value:
        return value
    names = environment.allowed(value["environment"], variables, problems)
    return {key: each if key == "environment" else environment.filled(each, names) for key, each in value.items()}


def _head(head: FileHeader, value: dict[str, Any], file: str, homes: dict[str, str], problems: Problems) -> None:
    known = [*(each.name for each in msgspec.structs.fields(FileHeader)), *SECTIONS]
    for name, given in value.items():
        if name in SECTIONS:
            continue
        if name not in known:
            problems.unknown(name, f"unknown key {name!r}", name, known)
        elif given is not None and not isinstance(given, str):
            problems.add(name, f"text is expected, and not {given!r}")
        elif getattr(head, name) not in (None, given):
            problems.add(name, f"{homes[name]} has another value")
        else:
            setattr(head, name, without_marks(given))
            homes.setdefault(name, file)


def _aliased(one: yamltext.ParsedText, given: Any, path: str) -> None:
    """Name the options of operators without the operator: ``enrich[0].count`` instead of ``enrich[0].batch.count``."""
    pipelines = given.get("pipelines") if isinstance(given, dict) else None
    inner = f"{path}.pipelines."
    if not isinstance(pipelines, dict):
        return
    for at, line in list(one.lines.items()):
        if at.startswith(inner) and "]." in at:
            place, _, rest = at.partition("].")
            _, _, option = rest.partition(".")
            if option:
                one.lines.setdefault(f"{place}].{option}", line)


def read_flow(
    name: str, given: Any, path: str, server: str | None, problems: Problems, *, outside: bool = True
) -> FlowSpec | None:
    """Read one flow. ``outside``: it can use Python functions and local files. Return None if problems were added."""
    before = len(problems.found)
    if not edges.NAME.fullmatch(name):
        problems.add(path, f"{name!r} is not a valid name of a flow: {edges.NAME_RULE}")
    if not isinstance(given, Mapping):
        problems.add(path, f"a flow is a mapping with {', '.join(PARTS)}, not {excerpt(given)}")
        return None
    for part, count in _counted(given):
        if count > MOST:
            problems.add(f"{path}.{part}", f"{count}: a flow can have at most {MOST} {part}")
    if len(problems.found) > before:
        return None
    known = [*PARTS, *(each.encode_name for each in msgspec.structs.fields(FlowOptions))]
    options: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            problems.unknown(f"{path}.{key}", f"unknown key {key!r}", str(key), known)
        elif key not in PARTS:
            options[key] = value
    made = read(FlowOptions, options, path, problems)
    connectors = _connectors(given, path, problems, outside)
    pipelines = _pipelines(given, path, connectors, problems, outside)
    found = _edges(given.get("connect", []), f"{path}.connect", problems)
    if not given.get("connect"):
        problems.add(path, "a flow needs 'connect': a list of chains such as 'in -> enrich -> search'")
    if len(problems.found) > before and (made is None or _missing(given, connectors, pipelines)):
        return None  # otherwise missing parts would be reported at each edge
    spec = finish(name, made or FlowOptions(), connectors, pipelines, found, server, path, problems)
    return spec if len(problems.found) == before else None


def _counted(given: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for part in PARTS:
        if isinstance(given.get(part), (Mapping, list)):
            yield part, len(given[part])
    lines = given.get("pipelines")
    if isinstance(lines, Mapping):
        yield "operators", sum(len(each) for each in lines.values() if isinstance(each, list))


def _connectors(given: Mapping[str, Any], path: str, problems: Problems, outside: bool) -> dict[str, ConnectorSpec]:
    made = {}
    for name, value in _mapping(given, "connectors", path, problems).items():
        at = f"{path}.connectors.{name}"
        _name(name, at, problems)
        spec = _connector(name, value, at, problems, outside)
        if spec is not None:
            made[name] = spec
    return made


def _pipelines(
    given: Mapping[str, Any], path: str, connectors: Mapping[str, Any], problems: Problems, outside: bool
) -> dict[str, PipelineSpec]:
    made = {}
    for name, value in _mapping(given, "pipelines", path, problems).items():
        at = f"{path}.pipelines.{name}"
        _name(name, at, problems)
        if name in connectors:
            problems.add(at, f"there is already a connector {name!r}")
        operators = _operators(value, at, problems, outside)
        if operators is not None:
            made[name] = PipelineSpec(name, operators) if operators else pipeline_spec(name, (), at, problems)
    return made


def _missing(given: Mapping[str, Any], connectors: Mapping[str, Any], pipelines: Mapping[str, Any]) -> bool:
    """Return whether a connector or a pipeline could not be read."""
    return any(
        not isinstance(given.get(part) or {}, Mapping) or len(given.get(part) or {}) > len(read)
        for part, read in (("connectors", connectors), ("pipelines", pipelines))
    )


def _mapping(given: Mapping[str, Any], key: str, path: str, problems: Problems) -> Mapping[str, Any]:
    found = given.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        problems.add(f"{path}.{key}", f"a mapping from names is expected, not {excerpt(found)}")
        return {}
    return found


def _name(name: str, path: str, problems: Problems) -> None:
    if not edges.NAME.fullmatch(name):
        problems.add(path, f"{name!r} is not a valid name: {edges.NAME_RULE}")


def _connector(name: str, given: Any, path: str, problems: Problems, outside: bool) -> ConnectorSpec | None:
    if given is None or isinstance(given, str):
        given = {"type": given}
    if isinstance(given, Mapping) and given.get("type", "") is None:
        given = {**given, "type": "null"}  # YAML reads an unquoted null as its own null
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        problems.add(path, "a connector is its type, or a mapping with the key 'type', such as {type: stdio}")
        return None
    kind = given["type"]
    if not outside:
        found = list(restrictions.connector(kind, given))
        for at, text in found:
            problems.add(path + at, text)
        if found:
            return None
    return connector_spec(name, kind, {key: value for key, value in given.items() if key != "type"}, path, problems)


def _operators(given: Any, path: str, problems: Problems, outside: bool) -> tuple[OperatorSpec, ...] | None:
    if given is None:
        return ()
    if not isinstance(given, list):
        problems.add(path, f"a pipeline is a list of operators, such as [{{where: ...}}], not {excerpt(given)}")
        return None
    found = []
    for number, each in enumerate(given):
        at = f"{path}[{number}]"
        if isinstance(each, str):
            each = {each: None}
        if not isinstance(each, Mapping) or len(each) != 1:
            problems.add(at, "an operator is its type, or maps its type to its options, such as {batch: {count: 100}}")
            continue
        ((kind, options),) = each.items()
        if not outside and (refused := restrictions.operator(kind, options)):
            problems.add(at, refused)
            continue
        made = operator_spec(Op(str(kind), options), at, problems)
        if made is not None:
            found.append(made)
    return tuple(found) if len(found) == len(given) else None


def _edges(given: Any, path: str, problems: Problems) -> list[tuple[Edge, str]]:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        problems.add(path, "a list of chains such as 'in -> enrich -> search'")
        return []
    return [
        (link, f"{path}[{number}]")
        for number, chain in enumerate(given)
        for link in edges.parse(chain, f"{path}[{number}]", problems)
    ]
