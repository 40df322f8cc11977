"""``tidelog flow``: checks and runs flow files; inspects and controls running flows over HTTP, or on the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tidelog.cli import flowoutput, flowtests
from tidelog.cli.collector import collect_less
from tidelog.cli.connect import connected
from tidelog.cli.flowhttp import FlowApiClient, NoProcessError
from tidelog.cli.flowoutput import FlowStates
from tidelog.cli.lines import printable
from tidelog.cli.logs import configure, logging_options
from tidelog.cli.modules import Declaration, import_from_here
from tidelog.cli.progress import Progress
from tidelog.cli.resetting import reset_options
from tidelog.client.steps import run as run_steps
from tidelog.flows import Flow, FlowError, FlowFileError
from tidelog.flows.declare import warnings
from tidelog.flows.files import FileHeader, FlowDocument, diagram, no_server, read_files
from tidelog.flows.runtime.runningflow import DrainReport
from tidelog.flows.service import process, streamgroups
from tidelog.flows.service.api import DEFAULT
from tidelog.flows.service.desired import Desired, DesiredDocument
from tidelog.flows.service.host import DeployedFlow
from tidelog.flows.service.reloading import ReloadReport
from tidelog.operating.signals import held
from tidelog.operating.tables import counted
from tidelog.operating.terminal import echo, try_echo
from tidelog.operating.watch import StatusOptions, show_rates, status_options
from tidelog.options.start import StartPosition
from tidelog.transport.errors import DeniedError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
NONE: Final = "none"  # no HTTP API
DRAINING: Final = 3600.0  # s after which the command stops waiting for a drain


@click.group("flow")
def flow_commands() -> None:
    """Run flows, which pass events from sources through pipelines to sinks.

    \b
      tidelog flow check flows.yaml          report all errors in a file
      tidelog flow test flows.yaml           run the tests in a file
      tidelog flow run flows.yaml            run it until SIGTERM, or until all sources end
      tidelog flow graph flows.yaml          print the flows in Mermaid
      tidelog flow list                      list the flows of a process
      tidelog flow status main               show why a flow does not send
      tidelog flow pause main                stop its sources, until
      tidelog flow resume main
      tidelog flow drain main                complete the events in flight, then delete the flow
      tidelog flow reload                    read the files of a process again, and apply what has changed
      tidelog flow reset main --to earliest  read its streams again

    A first flow, which copies standard input to standard output:

    \b
      flows:
        main:
          connectors: {console: {type: stdio}}
          pipelines: {echo: []}
          connect: [console -> echo -> console]
    """


def _url(command: F) -> F:
    return click.option(
        "--url",
        help="The tidelog server, overriding that of the file: redis://, rediss:// or unix://. Default: TIDELOG_URL.",
    )(command)  # fmt: skip


def _api(command: F) -> F:
    """Add the options of commands that use a running process."""
    command = click.option(
        "--token-file", envvar="TIDELOG_FLOWS_TOKEN_FILE", show_envvar=True, help="A file with the token of the API.",
    )(command)  # fmt: skip
    return click.option(
        "--api", envvar="TIDELOG_FLOWS", default=f"http://{DEFAULT}", show_default=True, show_envvar=True,
        help="The URL of the process's HTTP API.",
    )(command)  # fmt: skip


def _stored(command: F) -> F:
    """Add the options of commands that use the server if no process responds."""
    command = click.option(
        "--name", "process_name", default="default", show_default=True, help="The name of the process (see run)."
    )(command)
    return click.option(
        "--url", envvar="TIDELOG_URL", show_envvar=True, help="The tidelog server, used if no process responds."
    )(command)


# -- files ---------------------------------------------------------------------------------------------------
@flow_commands.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_url
def check(files: tuple[str, ...], url: str | None) -> None:
    """Report all errors in flow files, with file, line and path. Nothing is started, and no server is contacted.

    Files and directories that do not exist on this machine are reported as warnings. The exit status is 1 if there
    are errors.
    """
    document = _read(files, url)
    found: list[str] = []
    for spec in document.flows.values():
        echo(flowoutput.summary(spec))
        found += warnings(spec)
    for each in found:
        echo(f"warning: {each}", err=True)
    result = f"no errors, {counted(len(found), 'warning')}" if found else "no errors"
    echo(f"{counted(len(document.flows), 'flow')}: {result}")


@flow_commands.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-k", "part", metavar="TEXT", help="Only tests whose names contain this text.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--junit", metavar="FILE", help="Also write the results to a file, in the format of JUnit.")
def test(files: tuple[str, ...], part: str | None, as_json: bool, junit: str | None) -> None:
    """Run the tests in flow files, with a virtual clock. No server is contacted.

    \b
      tidelog flow test orders.yaml           the tests in this file, and in orders.test.yaml if it exists
      tidelog flow test orders.yaml -k large  those with this text in their names

    Each test feeds events to a flow, or to one of its pipelines, and compares the outputs. The flow's sources and sinks
    are replaced by those of the test. The exit status is 1 if a test has failed, or if there are no tests.
    """
    variables = {"TIDELOG_URL": "redis://localhost:6379", **os.environ}  # connectors on a server are replaced
    document = _read([*files, *flowtests.neighbors(files)], None, variables)
    if not flowtests.run(flowtests.chosen(document.cases, part), as_json=as_json, junit=junit):
        raise SystemExit(1)


@flow_commands.command()
@click.argument("files", nargs=-1, metavar="[FILE...]")
@_url
@click.option("--listen", metavar="HOST:PORT|none", help=f"Address of the HTTP API. Default: the file's, or {DEFAULT}.")
@click.option("--token-file", help="A file with the token of the API; required if other hosts can connect.")
@click.option("--name", help="The name under which the desired state is stored. Default: the file's, or 'default'.")
@click.option("--stay", is_flag=True, help="Keep running when all flows have ended, or if there are none.")
@click.option("--allow-local", is_flag=True, help="Flows deployed over HTTP can use Python functions and files.")
@logging_options("warning")
def run(
    files: tuple[str, ...], url: str | None, listen: str | None, token_file: str | None, name: str | None,
    stay: bool, allow_local: bool, log_level: str, log_json: bool,
) -> None:  # fmt: skip
    """Run the flows of files, or of Python objects as module:flow, in one process.

    \b
      tidelog flow run flows.yaml
      tidelog flow run orders.yaml search.yaml --url redis://localhost:7379
      tidelog flow run shop.flows:orders
      tidelog flow run --stay                 without flows; POST /v1/flows/NAME deploys them

    The process ends when all flows have ended, for example at the end of standard input. On SIGTERM or Ctrl-C it
    drains: it stops reading, completes the events in flight, and reports the settled and abandoned events. A second
    signal stops it immediately. Sources that can redeliver events then deliver the unsettled ones again. On SIGHUP, it
    reads the files again (see reload).

    The exit status is 1 if a flow has failed or events were abandoned.
    """
    with held(signal.SIGHUP):  # until the process handles it
        document = _read(files, url)
        head = document.head
        if not document.flows and not stay:
            raise click.UsageError("there is no flow to run: name a file with a flow, or use --stay")
        configure(log_level, log_json)
        listening = listen or head.listen or DEFAULT
        try:
            path = token_file or head.token_file
            options = process.ProcessOptions(
                head.server, name or head.name or "default", None if listening == NONE else listening,
                process.token_in(path) if path else head.token, allow_local, stay,
            )  # fmt: skip
            flows = _deployed(document)
            paths = _paths(files)
            if paths:
                only_files = len(paths) == len(files)
                options.read_files = lambda: _deployed(_reread(paths, url, head, only=only_files, stay=stay))
            collect_less()
            status = process.run(flows, options, lambda line: try_echo(line, err=True))
        except FlowError as error:
            raise click.ClickException(str(error)) from None
    raise SystemExit(status)


def _deployed(document: FlowDocument) -> list[DeployedFlow]:
    return [
        DeployedFlow(spec, "file" if each in document.given else "python", document.given.get(each))
        for each, spec in document.flows.items()
    ]


def _reread(paths: Sequence[str], url: str | None, head: FileHeader, *, only: bool, stay: bool) -> FlowDocument:
    """Read files again. ``only``: the process has no flows from Python, whose server may have become that of ``head``.

    Raises FlowFileError, also if a value has changed that only a restart can apply.
    """
    document = read_files(paths, server=url)
    if not only:
        document.head.server = document.head.server or head.server
    changed = [name for name in head.__struct_fields__ if getattr(document.head, name) != getattr(head, name)]
    problems = [f"{name} has changed: restart the process to apply it" for name in changed]
    if not document.flows and not stay:
        problems.append("there is no flow in the files")
    if problems:
        raise FlowFileError(problems)
    return document


def _paths(files: Sequence[str]) -> list[str]:
    """Return those of the arguments that are files, and not Python objects."""
    return [each for each in files if ":" not in each or Path(each).exists()]


@flow_commands.command()
@click.argument("what", metavar="FILE|NAME")
@_url
@_api
def graph(what: str, url: str | None, api: str, token_file: str | None) -> None:
    """Print the flows of a file, or a running flow, as Mermaid flowcharts.

    A dotted arrow leads to a sink whose outcome is ignored (authoritative: false).
    """
    if _is_file(what):
        for spec in _read((what,), url).flows.values():
            echo(f"%% {spec.name}\n{diagram.mermaid(asyncio.run(diagram.of_spec(spec)))}", nl=False)
    else:
        echo(diagram.mermaid(FlowApiClient(api, token_file).get(f"/v1/flows/{what}/graph")), nl=False)


def _is_file(what: str) -> bool:
    """Return whether this is a file or a Python object, and not the name of a running flow."""
    return Path(what).exists() or ":" in what or what.endswith((".yaml", ".yml")) or "/" in what


def _read(files: Sequence[str], url: str | None, variables: Mapping[str, str] | None = None) -> FlowDocument:
    """Read flows from files and modules. Errors are printed on standard error."""
    import_from_here()  # files can name functions as module:function
    paths = _paths(files)
    modules = [each for each in files if each not in paths]
    found: list[Flow] = [Declaration[Flow](Flow, "shop.flows:orders").convert(each, None, None) for each in modules]
    problems: list[str] = []
    try:
        document = read_files(paths, server=url, variables=variables)
    except FlowFileError as error:
        document = FlowDocument()
        problems += error.problems
    for each in found:
        if url is None and each.server is not None and (wrong := no_server(each.server)):
            problems.append(f"{each.name}: server: {wrong}")
        each.server = url or each.server or document.head.server
        document.head.server = document.head.server or each.server
        if each.name in document.flows:
            problems.append(f"{each.name}: there is already a flow with this name")
        try:
            document.flows[each.name] = each.spec()
        except FlowFileError as error:
            problems += error.problems
    if problems:
        for line in problems:
            echo(printable(line), err=True)
        raise click.ClickException(f"{counted(len(problems), 'problem')}; nothing was started")
    return document


# -- a process, or its state on the server -------------------------------------------------------------------
@flow_commands.command("list")
@_api
@_stored
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_flows(api: str, token_file: str | None, url: str | None, process_name: str, as_json: bool) -> None:
    """List the flows of a process."""
    try:
        found = FlowApiClient(api, token_file).get("/v1/flows")
    except NoProcessError as error:
        document = _document(url, process_name, error)
        found = [flowoutput.stored_flow(document, name) for name in sorted({*document.sources, *document.deployed})]
    if as_json:
        echo(json.dumps(found))
    else:
        flowoutput.print_flows(found)


@flow_commands.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_api
@_stored
@status_options
def status(
    names: tuple[str, ...], api: str, token_file: str | None, url: str | None, process_name: str, watch: bool,
    interval: float, as_json: bool,
) -> None:  # fmt: skip
    """Show the status of flows, by default of all: connectors, events in flight, and reasons for not sending.

    If no process responds, the groups of the flow's stream sources are shown, from the server.

    \b
    in/s       events per second that sources sent, between two readings; out/s: events that sinks delivered;
               --interval 0 reads once, without rates
    dead letters   open dead letters in the flow's dead-letter queue
    given up   events that a source will not send again, since the process started
    \b
    reasons of a source, each with its owner:
    starting:search       the sink has not connected yet
    disconnected:search   its connection was lost and is being reopened
    paused:api            the flow was paused; paused:in: that connector was paused
    window_full:in        max_unsettled events are in flight
    backpressure:p.0      an operator has stopped its sources
    """
    client = FlowApiClient(api, token_file)

    def read() -> FlowStates:
        at = time.time_ns() // 1_000_000
        try:
            chosen = names or [each["alias"] for each in client.get("/v1/flows")]
            return FlowStates(at, [_state(client, each) for each in chosen])
        except NoProcessError as error:
            return FlowStates(at, _stored_states(names, url, process_name, error))

    show_rates(StatusOptions(watch, interval, as_json), read, flowoutput.print_status, FlowStates.to_json)


def _state(client: FlowApiClient, name: str) -> dict[str, Any]:
    path = f"/v1/flows/{name}"
    flow = client.get(path)
    return {
        "flow": flow, "connectors": client.get(f"{path}/connectors"), "breaker": client.get(f"{path}/breaker"),
        "unsettled": client.get(f"{path}/unsettled"), "dead_letters": _dead_letters(client, name, flow["dead_letters"]),
    }  # fmt: skip


def _dead_letters(client: FlowApiClient, name: str, topic: str | None) -> dict[str, int | None]:
    """Return the number of open dead letters of a flow; empty if it has no tidelog server."""
    if topic is None:
        return {}
    try:
        return {topic: client.get(f"/v1/dead_letters?flow={name}&limit=1")["open"]}
    except NoProcessError:
        raise
    except click.ClickException:  # the tidelog server does not reply
        return {topic: None}


def _stored_states(
    names: Sequence[str], url: str | None, process_name: str, error: NoProcessError
) -> list[dict[str, Any]]:
    document = _document(url, process_name, error)
    chosen = [_known(document, each) for each in names] or sorted({*document.sources, *document.deployed})
    with connected(str(url)) as client:
        return [
            {
                "flow": flowoutput.stored_flow(document, each),
                "groups": [one.plain() for one in run_steps(client, streamgroups.states(sources))],
                "dead_letters": run_steps(client, streamgroups.dead_letters(sources)),
            }
            for each in chosen
            for sources in [document.sources.get(each, [])]
        ]  # fmt: skip


@flow_commands.command()
@click.argument("name")
@click.argument("connector", required=False)
@_api
@_stored
def pause(
    name: str, connector: str | None, api: str, token_file: str | None, url: str | None, process_name: str
) -> None:  # fmt: skip
    """Pause a flow, an instance of it (orders.2), or one CONNECTOR.

    When the command returns, no source sends events any more. Events in flight are completed. The pause is stored on
    the tidelog server, if there is one, so it persists after a restart.
    """
    _set_status(name, connector, api, token_file, url, process_name, "paused")


@flow_commands.command()
@click.argument("name")
@click.argument("connector", required=False)
@_api
@_stored
def resume(
    name: str, connector: str | None, api: str, token_file: str | None, url: str | None, process_name: str
) -> None:  # fmt: skip
    """Resume a flow, an instance, or one CONNECTOR.

    A connector that was paused separately stays paused when its flow is resumed.
    """
    _set_status(name, connector, api, token_file, url, process_name, "running")


def _set_status(
    name: str, connector: str | None, api: str, token_file: str | None, url: str | None, process_name: str, status: str
) -> None:  # fmt: skip
    path = f"/v1/flows/{name}" + (f"/connectors/{connector}" if connector else "")
    about = f"{name}{f' {connector}' if connector else ''}"
    try:
        found = FlowApiClient(api, token_file).send("PATCH", path, {"status": status})
    except NoProcessError as error:
        flow = _known(_document(url, process_name, error), name)

        def change(document: DesiredDocument) -> None:
            document.set(flow, name, status, connector)

        _on_server(url, process_name, lambda desired: desired.change(change))
        echo(f"{about}: {status} after the next start; no process responds")
    else:
        echo(f"{about}: {found['status']}")


@flow_commands.command()
@click.argument("name")
@click.option("--timeout", type=click.FloatRange(0.0, DRAINING), help="Seconds. Default: the flow's drain_timeout.")
@_api
def drain(name: str, timeout: float | None, api: str, token_file: str | None) -> None:
    """Drain and delete a flow: stop reading, complete the events in flight, and delete the flow from the process.

    The exit status is 1 if events were abandoned because they were not settled in time. Sources that can redeliver
    them do so. A flow of a file runs again when the process is restarted.
    """
    query = "" if timeout is None else f"?timeout={timeout}"
    with Progress() as progress:
        progress.show_text(f"draining {name}")
        found = FlowApiClient(api, token_file, DRAINING).send("DELETE", f"/v1/flows/{name}{query}")
    for each in found["drained"]:
        echo(process.drained_text(each["alias"], each["settled"], each["seconds"], each["abandoned"]))
    if not all(each["complete"] for each in found["drained"]):
        raise SystemExit(1)


@flow_commands.command()
@_api
def reload(api: str, token_file: str | None) -> None:
    """Read the flow files of a process again, and apply what has changed. SIGHUP does the same.

    Changed flows are drained and replaced, new ones are started, and those that are no longer in the files are drained
    and deleted. All other flows continue. If a file is not valid, nothing changes.

    The exit status is 1 if nothing was changed because of an error, or if events were abandoned.
    """
    with Progress() as progress:
        progress.show_text("reloading")
        found = FlowApiClient(api, token_file, DRAINING).send("POST", "/v1/reload")
    drained = {
        each["alias"]: DrainReport(each["settled"], each["abandoned"], each["seconds"]) for each in found.pop("drained")
    }
    report = ReloadReport(**found, drained=drained)
    for line in process.reload_texts(report):
        echo(printable(line))
    if not report.complete:
        raise SystemExit(1)


@flow_commands.command()
@click.argument("name")
@reset_options
@click.option("--name", "process_name", default="default", show_default=True, help="The name of the process (see run).")
@click.option("--url", envvar="TIDELOG_URL", show_envvar=True, required=True, help="The tidelog server.")
def reset(name: str, to: StartPosition, dry_run: bool, yes: bool, process_name: str, url: str) -> None:
    """Move the groups of a flow's stream sources to another position.

    \b
    earliest  the first entry
    latest    after the last entry: only new entries are read
    ID        such as 1795354158671.0: after this entry
    TIME      such as 2026-11-21T08:00Z: the first entry from this time on

    The entries that will be read again or skipped are shown first. Pending entries are not affected. Pause or stop the
    flow first, because its processes continue to read during the reset.
    """
    document = _on_server(url, process_name, lambda desired: desired.read())
    sources = document.sources.get(_known(document, name), [])
    with connected(url) as client:
        found = run_steps(client, streamgroups.preview(sources, to))
        flowoutput.print_reset(found)
        for each in sources:
            if not each.group:
                echo(f"{each.connector}: not reset, because a source of type {each.type} has no group on the server")
        if dry_run or not found:
            return
        if not yes:
            click.confirm(f"Reset {name} to {to}?", abort=True)
        run_steps(client, streamgroups.reset(found))
        echo(f"{name}: {counted(len(found), 'group')} reset")


def _document(url: str | None, process_name: str, error: NoProcessError) -> DesiredDocument:
    """Return the desired state on the server. Raises the error if no server is named."""
    if url is None:
        raise error
    return _on_server(url, process_name, lambda desired: desired.read())


def _on_server(url: str | None, process_name: str, call: Callable[[Desired], Coroutine[Any, Any, T]]) -> T:
    async def work() -> T:
        desired = Desired(str(url), process_name)
        try:
            return await call(desired)
        finally:
            desired.close()

    try:
        return asyncio.run(work())
    except (FlowError, DeniedError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _known(document: DesiredDocument, alias: str) -> str:
    """Return the flow of a name or an alias. Raises ClickException if the server does not know it."""
    flow = alias if alias in document.sources or alias in document.deployed else alias.partition(".")[0]
    if flow not in document.sources and flow not in document.deployed:
        raise click.ClickException(f"there is no flow {alias!r} on the server; --name is the name of its process")
    return flow
