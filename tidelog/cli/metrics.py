"""The options --metrics and --metrics-host of the commands that run workers and engines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def metrics_options(command: F) -> F:
    """Add the options to a command, which gets them as ``metrics`` and ``metrics_host``."""
    host = click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address for /metrics.")
    port = click.option(
        "--metrics", type=click.IntRange(0, 65535), metavar="PORT", help="Serve /metrics for Prometheus."
    )
    return port(host(command))


def serve(stack: ExitStack, serving: Callable[[], AbstractContextManager[int]], port: int, host: str) -> None:
    """Serve metrics until the stack is closed. Raises ClickException if the port is not available."""
    try:
        stack.enter_context(serving())
    except ImportError:
        raise click.ClickException("--metrics needs prometheus-client: pip install 'tidelog[jobs]'") from None
    except OSError as error:
        raise click.ClickException(f"--metrics {port}: {host}:{port} is not available: {error}") from None
