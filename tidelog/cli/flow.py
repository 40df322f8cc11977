"""``tidelog flow``: flows in files are checked and run; those that run are looked at and steered over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tidelog.cli import flowoutput
from tidelog.cli.collector import collect_less
from tidelog.cli.flowhttp import FlowApiClient
from tidelog.cli.lines import printable
from tidelog.cli.logs import configure
from tidelog.cli.modules import Declaration, import_from_here
from tidelog.cli.output import echo
from tidelog.flows import Flow, FlowError, FlowFileError
from tidelog.flows.declare import warnings
from tidelog.flows.files import FlowDocument, diagram, no_server, read_files
from tidelog.flows.service import process
from tidelog.flows.service.api import DEFAULT
from tidelog.flows.service.host import DeployedFlow

F = TypeVar("F", bound=Callable[..., Any])
NONE: Final = "none"  # no HTTP API
DRAINING: Final = 3600.0  # s that a drain may take until this program gives up waiting


@click.group("flow")
def flow_commands() -> None:
    """Run flows: events in through connectors, through pipelines, out through connectors.

    \b
      tidelog flow check flows.yaml          what is wrong with a file, all at once
      tidelog flow run flows.yaml            run it, until SIGTERM or until all sources end
      tidelog flow graph flows.yaml          the flows as Mermaid
      tidelog flow list                      what runs: asked over HTTP
      tidelog flow status main               why does nothing move?
      tidelog flow pause main                no source sends any more, until
      tidelog flow resume main
      tidelog flow drain main                read nothing more, finish, then end

    A file, to begin with: lines of standard input come out again.

    \b
      flows:
        main:
          connectors: {console: {type: stdio}}
          pipelines: {echo: []}
          connect: [console -> echo -> console]
    """


def _files(command: F) -> F:
    return click.argument("files", nargs=-1, required=True, metavar="FILE...")(command)


def _server(command: F) -> F:
    return click.option(
        "--server", metavar="URL",
        help="The tidelog server, instead of the file's: redis://, rediss:// or unix://. Else: TIDELOG_URL.",
    )(command)  # fmt: skip


def _api(command: F) -> F:
    """Options of commands that ask a running process."""
    command = click.option(
        "--token-file", envvar="TIDELOG_FLOWS_TOKEN_FILE", show_envvar=True,
        help="A file with the token that the API wants.",
    )(command)  # fmt: skip
    return click.option(
        "--api", "url", envvar="TIDELOG_FLOWS", default=f"http://{DEFAULT}", show_default=True, show_envvar=True,
        help="Where the process listens.",
    )(command)  # fmt: skip


# -- files ---------------------------------------------------------------------------------------------------
@flow_commands.command()
@_files
@_server
def check(files: tuple[str, ...], server: str | None) -> None:
    """Report all errors in flow files, with file, line and path. Nothing is started, and no server is contacted.

    Files and directories that do not exist on this machine are reported as warnings. The exit status is 1 if there
    are errors.
    """
    document = _read(files, server)
    found: list[str] = []
    for spec in document.flows.values():
        echo(flowoutput.summary(spec))
        found += warnings(spec)
    for each in found:
        echo(f"warning: {each}", err=True)
    count = len(document.flows)
    result = f"no errors, {len(found)} warning{'' if len(found) == 1 else 's'}" if found else "no errors"
    echo(f"{count} flow{'' if count == 1 else 's'}: {result}")


@flow_commands.command()
@click.argument("files", nargs=-1, metavar="[FILE...]")
@_server
@click.option("--listen", metavar="HOST:PORT|none", help=f"The HTTP API's address. Default: the file's, or {DEFAULT}.")
@click.option("--token-file", help="A file with the token that the API is to want; needed where others can connect.")
@click.option("--name", help="Under which name the server keeps what is paused. Default: the file's, or 'default'.")
@click.option("--stay", is_flag=True, help="Also when all flows have ended, or there is none.")
@click.option("--allow-local", is_flag=True, help="Flows that come over HTTP may name Python functions and files.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning",
              show_default=True)  # fmt: skip
@click.option("--log-json", is_flag=True, help="Log JSON lines.")
def run(
    files: tuple[str, ...], server: str | None, listen: str | None, token_file: str | None, name: str | None,
    stay: bool, allow_local: bool, log_level: str, log_json: bool,
) -> None:  # fmt: skip
    """Run the flows of files, or of Python as module:flow, all in one process.

    \b
      tidelog flow run flows.yaml
      tidelog flow run orders.yaml search.yaml --server redis://localhost:7379
      tidelog flow run shop.flows:orders
      tidelog flow run --stay                 none yet; POST /v1/flows/NAME deploys them

    It ends by itself when all flows have ended: at the end of standard input, say. On SIGTERM or Ctrl-C it drains:
    reads nothing more, finishes what is under way, and says what was settled and what was abandoned. A second one stops
    it at once; what was under way then comes again, from sources that can give it again.

    The exit status is 0; 1 where a flow has failed, or something was abandoned.
    """
    document = _read(files, server)
    head = document.head
    if not document.flows and not stay:
        raise click.UsageError("there is no flow to run: name a file that has one, or say --stay")
    configure(log_level, log_json)
    listening = listen or head.listen or DEFAULT
    try:
        path = token_file or head.token_file
        options = process.ProcessOptions(
            head.server, name or head.name or "default", None if listening == NONE else listening,
            process.token_in(path) if path else head.token, allow_local, stay,
        )  # fmt: skip
        flows = [
            DeployedFlow(spec, "file" if each in document.given else "python", document.given.get(each))
            for each, spec in document.flows.items()
        ]
        collect_less()
        status = process.run(flows, options, lambda line: echo(line, err=True))
    except FlowError as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(status)


@flow_commands.command()
@click.argument("what", metavar="FILE|NAME")
@_server
@_api
def graph(what: str, server: str | None, url: str, token_file: str | None) -> None:
    """Print flows as Mermaid flowcharts: those of a file, or one that runs, by its name.

    A dotted arrow leads to a sink that does not count (authoritative: false).
    """
    if _is_place(what):
        for spec in _read((what,), server).flows.values():
            echo(f"%% {spec.name}\n{diagram.mermaid(asyncio.run(diagram.of_spec(spec)))}", nl=False)
    else:
        echo(diagram.mermaid(FlowApiClient(url, token_file).get(f"/v1/flows/{what}/graph")), nl=False)


def _is_place(what: str) -> bool:
    """Whether a file or a Flow in Python is meant, and not the name of one that runs."""
    return Path(what).exists() or ":" in what or what.endswith((".yaml", ".yml")) or "/" in what


def _read(files: Sequence[str], server: str | None) -> FlowDocument:
    """Flows of files and of modules. What is wrong goes to standard error."""
    import_from_here()  # files name functions as module:function
    modules = [each for each in files if ":" in each and not Path(each).exists()]
    found: list[Flow] = [Declaration[Flow](Flow, "shop.flows:orders").convert(each, None, None) for each in modules]
    problems: list[str] = []
    try:
        document = read_files([each for each in files if each not in modules], server=server)
    except FlowFileError as error:
        document = FlowDocument()
        problems += error.problems
    for each in found:
        if server is None and each.server is not None and (wrong := no_server(each.server)):
            problems.append(f"{each.name}: server: {wrong}")
        each.server = server or each.server or document.head.server
        document.head.server = document.head.server or each.server
        if each.name in document.flows:
            problems.append(f"{each.name}: there is a flow of this name already")
        try:
            document.flows[each.name] = each.spec()
        except FlowFileError as error:
            problems += error.problems
    if problems:
        for line in problems:
            echo(printable(line), err=True)
        raise click.ClickException(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}; nothing was started")
    return document


# -- what runs -----------------------------------------------------------------------------------------------
@flow_commands.command("list")
@_api
@click.option("--json", "as_json", is_flag=True, help="What the API answers.")
def list_flows(url: str, token_file: str | None, as_json: bool) -> None:
    """List the flows of a process."""
    found = FlowApiClient(url, token_file).get("/v1/flows")
    if as_json:
        echo(json.dumps(found))
    else:
        flowoutput.print_flows(found)


@flow_commands.command()
@click.argument("name", required=False)
@_api
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each look.")
def status(name: str | None, url: str, token_file: str | None, watch: bool, interval: float, as_json: bool) -> None:
    """Show how a flow is, or all: connectors, what is under way and where, and why nothing moves.

    \b
    reasons that stand at a source, each with its owner:
    starting:search       the sink was never connected
    disconnected:search   its connection is lost; it is made again
    paused:api            somebody has paused the flow; paused:in: that connector
    window_full:in        max_unsettled events are under way
    backpressure:p.0      an operator holds sources back
    """
    api = FlowApiClient(url, token_file)
    try:
        while True:
            names = [name] if name else [each["alias"] for each in api.get("/v1/flows")]
            found = [_look(api, each) for each in names]
            if watch and not as_json and sys.stdout.isatty():
                click.clear()
            if as_json:
                echo(json.dumps({"flows": found}))
            else:
                for each in found:
                    flowoutput.print_flow(each)
                if not found:
                    echo("no flows")
            if not watch:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _look(api: FlowApiClient, name: str) -> dict[str, Any]:
    """What the API tells of a flow, together."""
    path = f"/v1/flows/{name}"
    return {
        "flow": api.get(path), "connectors": api.get(f"{path}/connectors"), "breaker": api.get(f"{path}/breaker"),
        "unsettled": api.get(f"{path}/unsettled"),
    }  # fmt: skip


@flow_commands.command()
@click.argument("name")
@click.argument("connector", required=False)
@_api
def pause(name: str, connector: str | None, url: str, token_file: str | None) -> None:
    """Pause a flow, an instance of it (orders.2), or one CONNECTOR.

    When this returns no source sends any more; what is under way is finished. It is kept on the tidelog server, where
    there is one, so it holds after a restart.
    """
    _steer(name, connector, url, token_file, "paused")


@flow_commands.command()
@click.argument("name")
@click.argument("connector", required=False)
@_api
def resume(name: str, connector: str | None, url: str, token_file: str | None) -> None:
    """Let a flow, an instance, or one CONNECTOR go on. A connector that was paused by itself stays paused when its flow
    resumes."""
    _steer(name, connector, url, token_file, "running")


def _steer(name: str, connector: str | None, url: str, token_file: str | None, status: str) -> None:
    path = f"/v1/flows/{name}" + (f"/connectors/{connector}" if connector else "")
    found = FlowApiClient(url, token_file).send("PATCH", path, {"status": status})
    echo(f"{name}{f' {connector}' if connector else ''}: {found['status']}")


@flow_commands.command()
@click.argument("name")
@click.option("--timeout", type=click.FloatRange(0.0, DRAINING), help="Seconds. Default: the flow's drain_timeout.")
@_api
def drain(name: str, timeout: float | None, url: str, token_file: str | None) -> None:
    """End a flow: read nothing more, finish what is under way, and forget it.

    The exit status is 1 where something was abandoned: it was not settled in time, and comes again from sources that
    can give it again. A flow of a file is back when the process is started again.
    """
    query = "" if timeout is None else f"?timeout={timeout}"
    found = FlowApiClient(url, token_file, DRAINING).send("DELETE", f"/v1/flows/{name}{query}")
    for each in found["drained"]:
        echo(flowoutput.drained(each))
    if not all(each["complete"] for each in found["drained"]):
        raise SystemExit(1)
