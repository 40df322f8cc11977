"""``Flow``: the declaration of a flow in Python.

    >>> flow = Flow("orders", server="redis://localhost:7379")
    >>> flow.connector("in", "stream", key="orders", group="shop")
    >>> flow.connector("search", "http_client", url="http://localhost:9200/_bulk", concurrency=4)
    >>> flow.pipeline("enrich", op("where", "amount > `10`"), add_customer, op("batch", count=100))
    >>> flow.connect("in -> enrich -> search")

Nothing runs, and no server is contacted, until the flow is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidelog.flows import edges, registry
from tidelog.flows.api.connector import Connector, Sink, Source
from tidelog.flows.api.errors import FlowError, FlowFileError
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import API
from tidelog.flows.connectors.templates import template_errors
from tidelog.flows.spec import ConnectorSpec, Edge, FlowSpec, OperatorSpec, PipelineSpec
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Problems, Struct, read
from tidelog.options.units import Duration


@dataclass(frozen=True)
class Op:
    """An operator by its type and options, returned by ``op``."""

    type: str
    options: Any = None  # a mapping, or the value of the short form


def op(type: str, short: Any = None, /, **options: Any) -> Op:  # noqa: A002 - the name in flow files
    """Declare an operator: ``op("batch", count=100)``, or with the short form ``op("where", "amount > `10`")``."""
    return Op(type, options if short is None else short)


class FlowOptions(Struct):
    """The options of a flow, besides connectors, pipelines and connections."""

    instances: AtLeastOne = 1  # number of instances that run in parallel
    paused: bool = False  # whether the flow is paused initially, unless it was resumed since
    queue: AtLeastOne = 128  # capacity of each channel in batches
    settle: bool = True  # false: nothing is acknowledged and nothing is guaranteed; slightly faster
    debug: bool = False  # an event that is settled twice, or never, is an error
    drain_timeout: Duration = Duration(30.0)


class Flow:
    """The declaration of a flow. The options are those of ``FlowOptions``.

    All methods raise FlowFileError with all errors.
    """

    def __init__(self, name: str, *, server: str | None = None, **options: Any) -> None:
        problems = Problems()
        if not edges.NAME.fullmatch(name):
            problems.add(name, f"{name!r} is not a valid name of a flow: {edges.NAME_RULE}")
        made = read(FlowOptions, options, name, problems)
        _raise(problems)
        assert made is not None  # noqa: S101 - otherwise there were problems
        self.name = name
        self.server = server
        self.options = made
        self._connectors: dict[str, ConnectorSpec] = {}
        self._pipelines: dict[str, PipelineSpec] = {}
        self._edges: list[tuple[Edge, str]] = []

    def connector(self, name: str, what: str | type[Connector] | Callable[..., Any], /, **options: Any) -> None:
        """Declare a connector.

        ``what`` is a type name, with its options; a class of Source or Sink, of which one object is created for each
        instance of the flow; an async generator function, which is a source; or an async function, which is a sink and
        gets one value at a time.
        """
        problems = Problems()
        spec = connector_spec(name, what, options, f"{self.name}.connectors.{name}", problems)
        self._name(name, problems)
        _raise(problems)
        assert spec is not None  # noqa: S101 - otherwise there were problems
        self._connectors[name] = spec

    def pipeline(self, name: str, *operators: Op | Callable[..., Any]) -> None:
        """Declare a pipeline of ``op(...)``, functions of a value, or classes of Operator. Without any, events pass
        unchanged.
        """
        problems = Problems()
        spec = pipeline_spec(name, operators, f"{self.name}.pipelines.{name}", problems)
        self._name(name, problems)
        _raise(problems)
        self._pipelines[name] = spec

    def connect(self, *chains: str) -> None:
        """Add chains: ``"in -> enrich -> search"``, ``"enrich.err -> dead_letters"``."""
        problems = Problems()
        for chain in chains:
            at = f"{self.name}.connect"
            self._edges += [(each, at) for each in edges.parse(chain, at, problems)]
        _raise(problems)

    def spec(self) -> FlowSpec:
        """Return the validated declaration. Raises FlowFileError with all errors."""
        problems = Problems()
        made = finish(
            self.name, self.options, self._connectors, self._pipelines, self._edges, self.server, self.name, problems
        )  # fmt: skip
        _raise(problems)
        return made

    def _name(self, name: str, problems: Problems) -> None:
        if not edges.NAME.fullmatch(name):
            text = f"{name!r} is not a valid name: {edges.NAME_RULE}"
            problems.add(f"{self.name}.{name}", text)
        elif name in self._connectors or name in self._pipelines:
            problems.add(f"{self.name}.{name}", f"there is already a connector or pipeline {name!r}")


def _raise(problems: Problems) -> None:
    if problems:
        raise FlowFileError([f"{path}: {text}" for path, text in problems.found])


def finish(
    name: str,
    options: FlowOptions,
    connectors: Mapping[str, ConnectorSpec],
    pipelines: Mapping[str, PipelineSpec],
    found: list[tuple[Edge, str]],
    server: str | None,
    path: str,
    problems: Problems,
) -> FlowSpec:
    """Validate a flow whose parts were read, and return it. Problems are added if it can't run."""
    complete = dict(connectors)
    if "dead_letters" not in complete and any(link.target == "dead_letters" for link, _ in found):
        spec = connector_spec("dead_letters", "dead_letters", {}, f"{path}.connectors.dead_letters", problems)
        if spec is not None:
            complete["dead_letters"] = spec
    found = list({link: (link, at) for link, at in found}.values())  # chains can have common edges
    edges.check(found, complete, pipelines, path, problems, settle=options.settle)
    for each in complete.values():
        if each.kind is not None and server is None and each.kind.option_server(each.options):
            problems.add(
                f"{path}.connectors.{each.name}",
                f"connectors of type {each.type} need a tidelog server: set server: redis://HOST:PORT, or"
                " TIDELOG_URL",
            )
    for kind, connector, source in _ends(complete, [link for link, _ in found]):
        for text in kind.option_errors(connector.options, source=source):
            problems.add(f"{path}.connectors.{connector.name}", text)
        for option, text in template_errors(connector.options, fixed=True) if source else ():
            problems.add(f"{path}.connectors.{connector.name}.{option}", text)
    for line in pipelines.values():
        for place, operator in enumerate(line.operators):
            if operator.needs_server and server is None:
                problems.add(
                    f"{path}.pipelines.{line.name}[{place}]",
                    f"{operator.type} needs a tidelog server: set server: redis://HOST:PORT, or TIDELOG_URL",
                )
    return FlowSpec(
        name, complete, dict(pipelines), tuple(link for link, _ in found), options.instances, options.paused,
        options.queue, options.settle, options.debug, options.drain_timeout, server,
    )  # fmt: skip


def warnings(spec: FlowSpec) -> list[str]:
    """Return what does not work on this machine at the moment, each with the path of its connector."""
    return [
        f"flows.{spec.name}.connectors.{connector.name}: {text}"
        for kind, connector, source in _ends(spec.connectors, spec.edges)
        for text in kind.option_warnings(connector.options, source=source)
    ]


def _ends(
    connectors: Mapping[str, ConnectorSpec], links: Sequence[Edge]
) -> Iterator[tuple[type[Connector], ConnectorSpec, bool]]:
    """Yield the connected connectors of known types: with True for a source, and with False for a sink."""
    for spec in connectors.values():
        if spec.kind is not None:
            if any(link.source == spec.name for link in links):
                yield spec.kind, spec, True
            if any(link.target == spec.name for link in links):
                yield spec.kind, spec, False


def connector_spec(
    name: str, what: Any, given: Mapping[str, Any], path: str, problems: Problems
) -> ConnectorSpec | None:
    """Read a connector of flow files or of Python. Return None if problems were added."""
    shown = dict(given)
    if name == API:
        problems.add(path, f"the name {name!r} is reserved: paused:{name} means that the whole flow was paused")
        return None
    if isinstance(what, str):
        try:
            kind = registry.connector(what)
        except FlowError as error:
            problems.add(path, str(error))
            return None
        options = read(kind.Options, given, path, problems)
        if options is None:
            return None
        wrong = list(template_errors(options))
        for option, text in wrong:
            problems.add(f"{path}.{option}", text)
        if wrong:
            return None
        return ConnectorSpec(
            name, what, partial(kind, options), options, issubclass(kind, Source), issubclass(kind, Sink), shown, kind
        )  # fmt: skip
    from tidelog.flows.connectors.builtin.python import PythonConnectorOptions, python_connector

    common = read(PythonConnectorOptions, given, path, problems)
    found = python_connector(what, 1 if common is None else common.concurrency)
    if found is None:
        problems.add(
            path,
            f"{what!r} is not a connector: use a type name, a class of Source or Sink, an async generator function or"
            " an async function",
        )
        return None
    if common is None:
        return None
    make, is_source, is_sink = found
    return ConnectorSpec(name, "python", make, common, is_source, is_sink, shown)


def pipeline_spec(name: str, operators: Any, path: str, problems: Problems) -> PipelineSpec:
    made = [operator_spec(each, f"{path}[{place}]", problems) for place, each in enumerate(operators)]
    found = tuple(each for each in made if each is not None)
    if not made:
        passing = operator_spec(Op("passthrough", {}), path, problems)
        found = () if passing is None else (passing,)
    return PipelineSpec(name, found)


def operator_spec(what: Any, path: str, problems: Problems) -> OperatorSpec | None:
    """Read an operator of flow files or of Python. Return None if problems were added."""
    if isinstance(what, type) and issubclass(what, Operator):
        return _operator("python", what, what.__name__, path, problems)
    if not isinstance(what, Op):
        what = Op("python", {"call": what})
    try:
        kind = registry.operator(what.type)
    except FlowError as error:
        problems.add(path, str(error))
        return None
    given = what.options
    short = getattr(kind, "short", None)
    if not isinstance(given, Mapping):
        if given is None:
            given = {}
        elif short is None:
            text = f"{what.type} takes its options by name, such as {{{what.type}: {{...}}}}, and not {given!r}"
            problems.add(path, text)
            return None
        else:
            given = {short: given}
    options = read(kind.Options, given, path, problems)
    if options is None:
        return None
    return _operator(what.type, partial(kind, options), what.options, path, problems)


def _operator(
    kind: str, make: Callable[[], Operator], given: Any, path: str, problems: Problems
) -> OperatorSpec | None:
    try:
        one = make()  # parses expressions and imports functions
    except (ValueError, FlowError) as error:
        problems.add(path, str(error))
        return None
    return OperatorSpec(
        kind, make, tuple(one.ports()), one.guards, given, tuple(one.required()), one.needs_server(), one.last
    )  # fmt: skip
