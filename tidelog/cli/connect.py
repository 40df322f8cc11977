"""The option --url, and messages for the errors of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import click
import redis
from click.core import ParameterSource

from tidelog.client import DEFAULT_URL, Client
from tidelog.client.alone import run_alone
from tidelog.client.steps import Steps, drive
from tidelog.transport.access import Access, without_credentials
from tidelog.transport.errors import ReplyError, is_denied, is_temporary, message_of
from tidelog.transport.groupleaders import redis_errors
from tidelog.transport.leader import LeaderConnection

F = TypeVar("F", bound=Callable[..., Any])
Drive = Callable[..., Any]  # an operation, and whether it is driven alone; see ``driving``
ANSWER_MS: Final = 10_000  # timeout of connecting and of each reply


def url_option(command: F) -> F:
    """Add the option --url, which every command that uses a server has."""
    return click.option(
        "--url",
        envvar="TIDELOG_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="Server: redis://, rediss:// (TLS), unix://, redis+sentinel://, or several URLs separated by commas.",
    )(command)


def choose(url: str | None, declared: Access | None, given: bool, what: str) -> Access | None:
    """Return the server of a command: --url, or the server in the declaration of ``what``. None if there is neither.

    ``given`` is True if the server was declared with an Access, which has settings that a URL lacks. --url must then
    not name another server. If a URL was declared, the environment variable must not name another server, because the
    user would not notice it.

    Raises click.UsageError if the URL is invalid or contradicts the declaration.
    """
    if url is None:
        return declared
    try:
        wanted = Access.of(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if declared is None or declared.has(wanted):
        return declared or wanted
    context = click.get_current_context()
    silent = context.get_parameter_source("url") == ParameterSource.ENVIRONMENT
    if not given and not (silent and declared != Access()):
        return wanted
    option = f"TIDELOG_URL ({wanted.places})" if silent else f"--url ({wanted.places})"
    how = "leave it out" if not silent else "unset it" if given else "unset it, or give --url"
    raise click.UsageError(f"{what} is on {declared.places}, which {option} contradicts: {how}")


@contextmanager
def reported(url: str) -> Iterator[None]:
    """Convert errors of the server and the connection to error messages of the CLI."""
    try:
        yield
    except redis.RedisError as error:
        if isinstance(error, redis.ResponseError) or is_denied(error) or is_temporary(error):
            raise click.ClickException(f"the server replied: {message_of(error)}") from None
        if isinstance(error, redis.ConnectionError | redis.TimeoutError):
            raise click.ClickException(f"no answer from {_shown(url)}: {error}") from None
        raise click.ClickException(f"the server at {_shown(url)}: {error}") from None
    except ValueError as error:  # not a URL, or not an ID
        raise click.ClickException(str(error)) from None
    except (TypeError, LookupError, AttributeError) as error:
        if not _of_redis(error):
            raise
        text = f"the server at {_shown(url)} sent a reply of an unexpected form: is it a tidelog-server?"
        raise click.ClickException(text) from None


@contextmanager
def connected(where: str | Access) -> Iterator[Client]:
    """Connect a client whose errors are ``reported``."""
    place = where if isinstance(where, str) else where.places
    with reported(place), Client(where) as client:
        yield client


@contextmanager
def driving(
    access: Access, name: str, refusals: tuple[type[Exception], ...], block_ms: int = 0
) -> Iterator[Drive]:
    """Yield a function that drives operations on the leader. Errors, and ``refusals``, become messages of the CLI.

    name: of the connection. block_ms: how long a call may wait on the server. Operations with WATCH are driven with
    ``alone=True``, on a connection of their own: in a cluster of several groups, each request has another one.
    """
    quick = access.single_attempt(ANSWER_MS)
    servers = LeaderConnection(replace(quick, read_ms=quick.read_ms + block_ms), name)
    try:

        def ask(steps: Steps[Any], alone: bool = False) -> Any:
            if not alone:
                return drive(lambda calls: servers.ask(*calls), steps)
            with redis_errors(), Client(quick, client_name=name) as client:
                return run_alone(client, steps)

        yield ask
    except refusals as error:
        raise click.ClickException(str(error)) from None
    except ReplyError as error:
        raise click.ClickException(f"the server replied: {error}") from None
    except BrokenPipeError:  # nobody reads the output; an UnreachableError reports a broken connection
        raise
    except OSError as error:
        raise click.ClickException(f"no answer from {access.places}: {error.__cause__ or error}") from None
    finally:
        servers.close()


def _of_redis(error: BaseException) -> bool:
    """Return whether redis-py raised the error. It expects replies in the form of Redis and does not validate them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "redis"


def _shown(url: str) -> str:
    """Return a URL without user and password."""
    scheme, found, rest = url.partition("://")
    return f"{scheme}{found}{without_credentials(rest)}"
