"""``/metrics``: opens and closes its ports, and takes the snapshots that the thread of ``endpoint`` formats.

Rule 1: a snapshot is taken in slices of less than 2 ms (``slices``). Between them, clients are served, so that the
        numbers of one text can differ by some milliseconds.
Rule 2: a snapshot contains only numbers and names. The thread never reads the state of the server.
Rule 3: while the data is being replaced, streams and groups are left out.

Measured on 2026-11-26 with 100,000 streams, interpreted: the longest turn of the event loop takes 0.8 ms of CPU for the
first text and 0.6 ms for later ones (``python -m benchmarks.turns metrics``).
"""

from __future__ import annotations

import errno
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, Final

from respserver.clients.clients import Clients
from respserver.clients.users import Users
from respserver.config.conffile import ConfigError
from respserver.config.values import is_loopback
from respserver.metrics import keyvalues, values
from respserver.metrics.endpoint import MetricsEndpoint
from respserver.metrics.families import FAMILIES
from respserver.metrics.selection import StreamSelection, TakenTotals, walk
from respserver.metrics.slices import SlicedRun
from respserver.metrics.text import Buckets, Labels, lines, pieces
from respserver.metrics.values import ClientPages, Samples
from respserver.reporting import Reporting
from respserver.runtime.parts import RuntimeParts, ServerPart
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.memory import recount

OPEN: Final = "metrics-bind: every client that reaches metrics-port can read the names of streams and groups"
BACKLOG: Final = 16  # connections that the system queues
GROUPS: Final = 50  # changed groups whose memory is counted in a step


class MetricsSnapshot:
    """The numbers of one text."""

    def __init__(self) -> None:
        self.samples: Samples = defaultdict(list)
        self.histograms: list[tuple[Labels, Buckets]] = []
        self.streams = 0
        self.omitted = 0  # groups

    def text(self) -> Iterator[bytes]:
        """Yield the text in pieces. Called in another thread."""
        return pieces(self._lines())

    def _lines(self) -> Iterator[str]:
        for key, family in FAMILIES.items():
            histograms = self.histograms if key == "command_duration_seconds" else []
            yield from lines(family, self.samples.get(key, []), histograms)


class MetricsExporter(ServerPart):
    """The part of the server."""

    def __init__(
        self, parts: RuntimeParts, clients: Clients, users: Users, reporting: Reporting,
        member_status: Callable[[], dict[str, Any] | None],
    ) -> None:  # fmt: skip
        """``member_status``: returns the status of TMEMBER STATUS, or None without a server group."""
        super().__init__(parts)
        self._clients = clients
        self._users = users
        self._reporting = reporting
        self._member_status = member_status
        self._endpoint: MetricsEndpoint | None = None
        self._opened: tuple[int, list[str]] = (0, [])  # port and addresses
        self.ports: list[int] = []  # on which the endpoint listens
        self._selected_by: tuple[int, str] = (0, "")  # number and pattern of the selection
        self._selection: StreamSelection | None = None
        self._run: SlicedRun | None = None  # the snapshot in progress
        self._walk: SlicedRun | None = None  # a walk that renews the selection after a snapshot

    # -- configuration ---------------------------------------------------------------------------------------
    def watch(self) -> None:
        """Open the ports, and follow CONFIG SET. Raises ConfigError."""
        for name in ("metrics-port", "metrics-bind", "metrics-keys", "metrics-key-pattern"):
            self._config.on_change[name] = self.configure
        self.configure()

    def configure(self) -> None:
        """Apply the directives. Raises ConfigError; the endpoint is closed then."""
        config = self._config
        config.check_metrics_keys()
        selected_by = config.metrics_keys, config.metrics_key_pattern
        if selected_by != self._selected_by:
            self._selected_by, self._selection = selected_by, None
            waiting = self._run is not None
            self._cancel()
            if waiting:
                self._begin()
        wanted = config.metrics_port, list(config.metrics_bind)
        if wanted != self._opened:
            config.check_metrics_port(self._users.default.open)
            self.close()
            if config.metrics_port:
                self._open(*wanted)
            self._opened = wanted

    def _open(self, port: int, addresses: list[str]) -> None:
        listening: list[socket.socket] = []
        try:
            for address in addresses:
                sock = _listen(address, port)
                if sock is not None:
                    listening.append(sock)
            if not listening:
                raise ConfigError("metrics-bind: this machine has none of the addresses: set one that it has")
        except ConfigError:
            for sock in listening:
                sock.close()
            raise
        self.ports = [sock.getsockname()[1] for sock in listening]
        endpoint = MetricsEndpoint(self._request, self._may_serve, self._log_bug)
        self._endpoint = endpoint
        endpoint.start(listening)
        if not all(map(is_loopback, addresses)):
            self._logger.warning(OPEN)
        for address, number in zip(addresses, self.ports, strict=False):
            self._logger.notice(f"Metrics: http://{address.removeprefix('-')}:{number}/metrics")

    def close(self) -> None:
        """Close the ports and end the thread. Idempotent."""
        self._cancel()
        endpoint, self._endpoint = self._endpoint, None
        self._opened, self.ports = (0, []), []
        if endpoint is not None:
            endpoint.close()

    def _cancel(self) -> None:
        for run in (self._run, self._walk):
            if run is not None:
                run.cancel()
        self._run = self._walk = None

    # -- called in the thread ----------------------------------------------------------------------------------
    def _request(self) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._begin)

    def _may_serve(self, address: str) -> bool:
        local = address == "::1" or address.removeprefix("::ffff:").startswith("127.")
        return local or not (self._config.protected_mode and self._users.default.open)

    def _log_bug(self, error: Exception) -> None:
        self._logger.trace("Bug in the text of the metrics", error)

    # -- the snapshot ------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        if self._run is None and self._endpoint is not None:
            snapshot = MetricsSnapshot()
            self._run = SlicedRun(self._loop, self._steps(snapshot), partial(self._end, snapshot))

    def _end(self, snapshot: MetricsSnapshot, error: Exception | None) -> None:
        run, self._run = self._run, None
        endpoint, selection = self._endpoint, self._selection
        if endpoint is None or run is None:
            return
        if error is not None:
            self._logger.trace("Bug in the metrics", error)
            endpoint.deliver(None)
            return
        samples = snapshot.samples
        samples["metrics_streams_exported"].append(((), snapshot.streams))
        samples["metrics_groups_omitted"].append(((), snapshot.omitted))
        samples["metrics_snapshot_seconds"].append(((), run.seconds))
        samples["metrics_longest_step_seconds"].append(((), run.longest))
        if selection is not None:
            samples["metrics_streams_matching"].append(((), selection.matching))
            samples["metrics_selection_age_seconds"].append(((), perf_counter() - selection.taken_at))
        endpoint.deliver(snapshot.text)
        if selection is not None and not selection.cheap and selection.old and self._walk is None:
            self._walk = SlicedRun(self._loop, self._select(), self._walked)

    def _walked(self, error: Exception | None) -> None:
        self._walk = None
        if error is not None:
            self._logger.trace("Bug in the metrics", error)

    def _steps(self, snapshot: MetricsSnapshot) -> Iterator[None]:
        """Fill the snapshot."""
        samples, timings = snapshot.samples, self._timings
        client_walk, sessions = ClientPages(), self._clients.all()
        yield from values.all_clients(sessions, client_walk)
        while not recount(self._data.ks, GROUPS):
            yield
        if self._selection is None or self._selection.cheap:
            yield from self._select()
        selection = self._selection or StreamSelection()  # None: the data is being replaced
        stats = self._reporting.stats(client_walk.take(sessions), TakenTotals(selection.totals))
        yield
        yield from values.server(stats, samples)
        yield from values.commands(timings.histograms, timings.tracking, samples, snapshot.histograms)
        status = self._member_status()
        if status is not None:
            values.member(status, samples)
            yield
        ks = self._data.ks
        if self._gone(ks):
            return
        for what in keyvalues.collect(ks, selection.keys, self._clock.now(), samples):
            snapshot.streams += what == keyvalues.STREAM
            snapshot.omitted += what == keyvalues.OMITTED
            yield
            if self._gone(ks):
                return

    def _select(self) -> Iterator[None]:
        """Renew the selection."""
        ks, result = self._data.ks, StreamSelection()
        count, pattern = self._selected_by
        if self._gone(ks):
            return
        for _ in walk(ks, count, pattern.encode("utf-8", "surrogateescape"), result):
            yield
            if self._gone(ks):
                return
        self._selection = result

    def _gone(self, ks: Keyspace) -> bool:
        """Return whether the data was replaced, or is being replaced (Rule 3)."""
        return self._gates.loading or self._data.ks is not ks


def _listen(address: str, port: int) -> socket.socket | None:
    """Listen on an address, which may be missing on this machine if it has a leading dash. Raises ConfigError."""
    host = address.removeprefix("-")
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(
            {"*": "0.0.0.0", "::*": "::"}.get(host, host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE  # noqa: S104
        )[0]  # fmt: skip
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(name)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        if address.startswith("-") and error.errno != errno.EADDRINUSE:
            return None
        remedies = {
            errno.EADDRINUSE: "set metrics-port to a free port",
            errno.EADDRNOTAVAIL: "set metrics-bind to an address of this machine",
            errno.EACCES: "set metrics-port to 1024 or more, or allow this user lower ports",
        }
        remedy = remedies.get(error.errno or 0, "check metrics-bind and metrics-port")
        raise ConfigError(
            f"Could not serve metrics on {host} port {port}: {error.strerror or error}: {remedy}"
        ) from error
    return sock
