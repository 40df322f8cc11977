"""``tidelog gateway``: streams over HTTP, for programs without a Redis client."""

from __future__ import annotations

import click

from tidelog.cli.connect import url_option
from tidelog.cli.extras import needs
from tidelog.cli.logs import configure, logging_options
from tidelog.cli.metrics import metrics_options
from tidelog.gateway import DEFAULT_LISTEN
from tidelog.operating.terminal import try_echo
from tidelog.transport.access import Access


@click.command("gateway")
@url_option
@click.option("--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, show_default=True, help="Address to listen on.")
@click.option("--tls-cert", type=click.Path(), help="Certificate of the gateway, PEM; the address is then https://.")
@click.option("--tls-key", type=click.Path(), help="Key of the certificate, PEM. Default: in the file of --tls-cert.")
@click.option("--without-tls", is_flag=True, help="Let other machines connect without TLS.")
@click.option("--cors-origin", "cors_origins", metavar="ORIGIN", multiple=True,
              help="Let pages of this origin send requests, such as https://shop.example.org; *: all. Repeatable.")
@click.option("--max-readers", type=click.IntRange(1), default=20_000, show_default=True,
              help="Maximum number of event streams and of requests that wait.")
@click.option("--max-readers-per-user", type=click.IntRange(1), default=10_000, show_default=True,
              help="The same for one user.")
@metrics_options
@logging_options("info")
def gateway(
    url: str, listen: str, tls_cert: str | None, tls_key: str | None, without_tls: bool, cors_origins: tuple[str, ...],
    max_readers: int, max_readers_per_user: int, metrics: int | None, metrics_host: str, log_level: str, log_json: bool,
) -> None:  # fmt: skip
    """Serve streams over HTTP, for programs without a Redis client.

    \b
      tidelog gateway                             serve http://127.0.0.1:9897/v1/streams/KEY
      tidelog gateway --url redis://a,b,c         serve the streams of a server group
      tidelog gateway --listen 0.0.0.0:9897 --tls-cert gateway.pem

    Requests authenticate as ACL users of the server, and its ACL decides what they may read and write. On the
    loopback interface, requests without credentials are those of the default user without a password.

    \b
      curl localhost:9897/v1/streams/orders                                     read
      curl -N -H 'Accept: text/event-stream' localhost:9897/v1/streams/orders   follow
      curl --json '{"fields": {"item": "tea"}}' localhost:9897/v1/streams/orders    append

    docs/gateway.md describes all requests. GET /v1/openapi.json returns an OpenAPI document of them.
    """
    with needs("tidelog gateway", "gateway"):
        from tidelog.gateway.application import GatewayOptions
        from tidelog.gateway.errors import GatewayError
        from tidelog.gateway.process import run
    try:
        access = Access.of(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    configure(log_level, log_json)
    options = GatewayOptions(
        access, listen, tls_cert, tls_key, without_tls, cors_origins, max_readers, max_readers_per_user, metrics,
        metrics_host,
    )  # fmt: skip
    try:
        run(options, try_echo)
    except GatewayError as error:
        raise click.ClickException(str(error)) from None
