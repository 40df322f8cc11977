"""Returns the coordinator for a URL.

    file:///var/lib/tide           a directory, for members on one machine
    etcd://host:2379,host:2379     an etcd cluster (`etcd` lists the options)

The members of a group use one URL.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from .directory import DirectoryCoordinator
from .interface import Coordinator, CoordinatorConfigError


def _file(rest: str, timeout: float, create: bool) -> Coordinator:
    host, slash, path = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "", rest)
    if host or not (slash or path.startswith("/")):
        raise CoordinatorConfigError(f"file:{rest} has a relative path: write file:///absolute/path")
    return DirectoryCoordinator(Path(unquote(slash + path)), timeout=timeout, create=create)


def _etcd(rest: str, timeout: float, create: bool) -> Coordinator:  # noqa: ARG001 - etcd has nothing to create
    from .etcd import EtcdCoordinator, address  # here: its packages are an extra

    return EtcdCoordinator(address(rest), timeout=timeout)


_SCHEMES: Final[dict[str, Callable[[str, float, bool], Coordinator]]] = {"etcd": _etcd, "file": _file}


def connect(url: str, *, timeout: float = 1.0, create: bool = True) -> Coordinator:
    """Return the coordinator that a URL names.

    ``timeout``: the seconds after which a call raises CoordinatorError; a fifth of the lease's duration leaves time
    for another attempt. ``create``: create the directory of `file:` if it is missing. Raises CoordinatorConfigError if
    the URL is wrong, or names something that is not a coordinator. The coordinator may be unavailable: then each call
    raises CoordinatorError until it is available.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in _SCHEMES:
        known = ", ".join(f"{name}:" for name in _SCHEMES)
        raise CoordinatorConfigError(f"{url!r} is not the URL of a coordinator: it begins with one of {known}")
    return _SCHEMES[scheme](rest, timeout, create)
