"""``tidelog console``: a web application that shows and operates a server."""

from __future__ import annotations

import click

from tidelog.cli.connect import url_option
from tidelog.cli.extras import needs
from tidelog.cli.logs import configure, logging_options
from tidelog.console import DEFAULT_LISTEN
from tidelog.operating.terminal import try_echo
from tidelog.transport.access import Access


@click.command("console")
@url_option
@click.option("--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, show_default=True, help="Address to listen on.")
@click.option("--tls-cert", type=click.Path(), help="Certificate of the console, PEM; the address is then https://.")
@click.option("--tls-key", type=click.Path(), help="Key of the certificate, PEM. Default: in the file of --tls-cert.")
@click.option("--without-tls", is_flag=True, help="Let other machines connect without TLS.")
@click.option("--audit-log", type=click.Path(), help="File of the audit log. Default: the log of the console.")
@click.option("--no-history", is_flag=True, help="Do not record the numbers of the plots on the server.")
@logging_options("info")
def console(
    url: str, listen: str, tls_cert: str | None, tls_key: str | None, without_tls: bool, audit_log: str | None,
    no_history: bool, log_level: str, log_json: bool,
) -> None:  # fmt: skip
    """Serve a web application that shows and operates a server.

    \b
      tidelog console                             open http://127.0.0.1:9899
      tidelog console --url redis://a,b,c         show a server group, or the cluster that it belongs to
      tidelog console --listen 0.0.0.0:9899 --tls-cert console.pem

    Users log in with an ACL user of the server. They see and change only what the ACL permits. The console writes a
    line about each login and each change to the audit log.

    The console records the numbers of the plots in the stream tidelog:console:history on the server, while a user who
    may append to it is logged in. The stream covers about 24 hours.
    """
    with needs("tidelog console", "console"):
        from tidelog.console.application import ConsoleOptions
        from tidelog.console.errors import ConsoleError
        from tidelog.console.process import run
    try:
        access = Access.of(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    configure(log_level, log_json)
    try:
        run(ConsoleOptions(access, listen, tls_cert, tls_key, without_tls, audit_log, not no_history), try_echo)
    except ConsoleError as error:
        raise click.ClickException(str(error)) from None
