"""The option --url, and what becomes of a server's errors: what the commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import redis

from tidelog.client import DEFAULT_URL, Client
from tidelog.client.access import shown

F = TypeVar("F", bound=Callable[..., Any])


def url_option(command: F) -> F:
    """Adds --url, which every command that talks to a server has."""
    return click.option(
        "--url",
        envvar="TIDELOG_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="The server: redis://, rediss:// (TLS) or unix://, with user and password if it wants them.",
    )(command)


@contextmanager
def reported(url: str) -> Iterator[None]:
    """Errors of the server and of the connection become error messages of the program."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise click.ClickException(f"no answer from {_shown(url)}: {error}") from None
    except redis.ResponseError as error:
        raise click.ClickException(f"the server says: {error}") from None
    except ValueError as error:  # not a URL, or not an ID
        raise click.ClickException(str(error)) from None


@contextmanager
def connected(url: str) -> Iterator[Client]:
    """A client, with its errors ``reported``."""
    with reported(url), Client(url) as client:
        yield client


def _shown(url: str) -> str:
    """A URL without user and password."""
    scheme, found, rest = url.partition("://")
    return f"{scheme}{found}{shown(rest)}"
