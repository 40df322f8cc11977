"""The settings of members: directives for ``tidelog-server``, as ``--set`` and the words after ``--`` name them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.cluster.errors import ClusterError

Settings = Mapping[str, tuple[str, ...]]  # values by directive

#: Directives that ``cluster up`` chooses for each member, and the remedy.
_CHOSEN: Final = {
    **dict.fromkeys(("port", "bind"), "use the option --{}"),
    **dict.fromkeys(
        ("dir", "group", "group-member", "coordinator", "cluster-enabled", "cluster-name", "logfile", "pidfile",
         "daemonize", "supervised", "replicaof", "slaveof"),
        "\"cluster up\" chooses it",
    ),
    **dict.fromkeys(
        ("tls-port", "unixsocket", "replica-announce-port", "cluster-announce-port", "cluster-announce-tls-port"),
        "every member needs its own: start the members yourself, as docs/clusters.md describes for several machines",
    ),
}  # fmt: skip


def parse(assignments: Sequence[str], words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the settings of ``name=value`` texts, and of words such as ``--name value``. Raises ClusterError."""
    found: dict[str, tuple[str, ...]] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ClusterError(f"--set {text}: write --set name=value, such as --set appendfsync=everysec")
        try:
            found[_checked(name)] = tuple(shlex.split(value)) or ("",)
        except ValueError as error:
            raise ClusterError(f"--set {text}: {error}") from None
    name = ""
    for word in words:
        if word.startswith("--"):
            name = _checked(word[2:])
            found[name] = ()
        elif not name:
            raise ClusterError(f"{word!r} after --: write -- --name value, such as -- --appendfsync everysec")
        else:
            found[name] = (*found[name], word)
    for name, values in found.items():
        if not values:
            raise ClusterError(f"--{name} needs a value")
    return found


def config_lines(settings: Settings) -> str:
    """Return the settings as lines of a configuration file of ``tidelog-server``."""
    return "".join(f"{' '.join([name, *map(_quoted, values)])}\n" for name, values in settings.items())


def _quoted(value: str) -> str:
    safe = [
        f"\\{char}" if char in '"\\'
        else char if char.isascii() and char.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in value
    ]  # fmt: skip
    return f'"{"".join(safe)}"'


def _checked(name: str) -> str:
    name = name.strip().lower()
    if remedy := _CHOSEN.get(name):
        raise ClusterError(f"{name} cannot be set for all members: {remedy.format(name)}")
    return name
