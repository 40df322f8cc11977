"""``tidelog doctor``: checks the installation, this machine, the data directory, and a running server."""

from __future__ import annotations

import json
from pathlib import Path

import click
from click.core import ParameterSource

from tidelog.cli.connect import url_option
from tidelog.cli.diagnosis import document, print_findings, problems
from tidelog.cli.machinechecks import machine_findings
from tidelog.cli.progress import Progress
from tidelog.cli.serverchecks import DoctorServers
from tidelog.operating.terminal import echo


@click.command()
@url_option
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path),
    help="Data directory. Default: the server's, or ./data if no server answers.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(context: click.Context, url: str, directory: Path | None, as_json: bool) -> None:
    """Check the installation, this machine, and a running server.

    \b
    software     versions, and whether the server is compiled
    limits       open files, address space
    kernel       memory maps, overcommit, huge pages, clock source
    data         the data directory, its file system, free space, and the time of a sync
    server       clients, memory, persistence, replication, and its server group

    Each problem has a recommended action. The exit code is 1 if there is a problem. The command changes nothing. A
    server that does not answer is a problem only if --url or TIDELOG_URL is given. Limits are those of this shell:
    run the command as the server's user, on its machine.
    """
    given = context.get_parameter_source("url") != ParameterSource.DEFAULT
    try:
        servers = DoctorServers(url, required=given)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with Progress() as progress:
        progress.show_text("checking the server")
        of_servers = list(servers.findings())
        progress.show_text("checking the machine")
        where = directory or servers.directory or (None if servers.answered else Path("data"))
        findings = [*machine_findings(where and where.absolute()), *of_servers]
    if as_json:
        echo(json.dumps(document(findings)))
    else:
        print_findings(findings)
    if problems(findings):
        raise SystemExit(1)
