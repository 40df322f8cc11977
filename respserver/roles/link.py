"""A replica's link to its leader: what this server says of itself, and what becomes of what the leader sends.

``replication.follow`` speaks with the leader; this is where its batches, copies and messages meet the server's data.

Rule 1: a batch is applied where this log ends, whole, or not at all. A log that is found to differ from the leader's is
never patched: everything is copied anew.
Rule 2: nothing is acknowledged that is not in this server's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from ssl import SSLContext

from commands.session import LEADER, Session, TransportStats
from persistence.history import History
from persistence.incoming import Incoming
from replication.follow import Follower
from replication.frames import LinkError
from replication.handshake import Introduction
from replication.link import Link as Socket
from respserver.clients.clients import Clients
from respserver.clients.listen import shown
from respserver.clients.pubsub import PubSub
from respserver.clock import Clock
from respserver.config.config import Config
from respserver.data import Data
from respserver.gates import Gates
from respserver.observe.logs import Logger
from respserver.observe.stats import RoleStats
from respserver.roles.replicas import Replicas
from respserver.ticks import Ticks
from storage.replay import replay

COMPARED = 1 << 20  # bytes of its end by which a replica's log is compared to its leader's
ACKNOWLEDGE_MS = 1000  # a replica says by itself how far it is


class LeaderTransport:
    """The link as one of the clients, for CLIENT LIST and CLIENT KILL (``commands.session.Transport``)."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    def kill(self) -> None:
        self.socket.kill()

    def unblock(self, error: bool) -> bool:  # noqa: ARG002 - it never waits
        return False

    def push(self, data: bytes) -> None:
        """It subscribes to nothing."""

    def stats(self) -> TransportStats:
        return TransportStats()


class LeaderLink:
    """Used on the event loop only. Implements ``FollowerOwner``."""

    def __init__(
        self, config: Config, clock: Clock, data: Data, gates: Gates, ticks: Ticks, clients: Clients, pubsub: PubSub,
        replicas: Replicas, logger: Logger, replace_data: Callable[[], Coroutine[object, object, None]],
        stop: Callable[[bool, bool], None], on_change: Callable[[], None], on_failure: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        """``replace_data`` opens the directory's data in place of that in memory; ``stop(save, now)`` ends the server;
        ``on_change`` and ``on_failure`` hear of the link's state and of attempts that failed."""
        self._config = config
        self._clock = clock
        self._data = data
        self._gates = gates
        self._ticks = ticks
        self._clients = clients
        self._pubsub = pubsub
        self._replicas = replicas
        self._logger = logger
        self._replace_data = replace_data
        self._stop_server = stop
        self._on_change = on_change
        self._on_failure = on_failure
        self.takeover = False  # a FAILOVER: the one that is followed is asked to lead
        self._follower: Follower | None = None
        self._bytes_in = 0
        self._applied = 0  # log offset after the last batch applied
        self._distrust = False  # a batch could not be applied: only a full copy helps
        self._asked = False  # the leader waits for an acknowledgement
        self._told = (0, 0)  # what was acknowledged last: log offset, and that on disk
        self._told_at = 0  # ms (monotonic)
        self._ending: set[asyncio.Future[None]] = set()  # links that were stopped, and a copy that is being opened
        self._session: Session | None = None  # as CLIENT LIST shows it

    # -- beginning and end ---------------------------------------------------------------------------------------
    @property
    def up(self) -> bool:
        return self._follower is not None and self._follower.up

    @property
    def syncing(self) -> bool:
        """A full copy is coming in."""
        return self._follower is not None and self._follower.state == "sync"

    def leads_to(self, host: str, port: int) -> bool:
        """Whether that is the leader it follows."""
        follower = self._follower
        return follower is not None and (follower.host.lower(), follower.port) == (host.lower(), port)

    def start(self, host: str, port: int) -> None:
        """Look for that leader."""
        self._follower = Follower(self, host, port)

    def stop(self) -> None:
        """Follow nobody."""
        follower, self._follower = self._follower, None
        if follower is None:
            return
        self._show(None)
        try:
            task = follower.stop()
        except OSError as error:
            self._logger.warning(f"A copy that is not wanted can't be removed, the server ends: {error}")
            self._stop_server(False, True)
            return
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def trust(self) -> None:
        """This server leads: its log is what it is."""
        self._distrust = False

    async def settled(self) -> None:
        """Whatever earlier links left under way has ended."""
        while self._ending:
            await asyncio.wait(set(self._ending))

    # -- what the leader is told ---------------------------------------------------------------------------------
    def introduction(self) -> Introduction:
        config, disk = self._config, self._data.disk
        if self._gates.loading:
            raise LinkError("this server opens its data")
        if not self._ticks.settle():
            raise LinkError("this server's disk takes no writes: it asks again when it does")
        port = config.tls_port if config.tls_replication and config.tls_port else config.port
        who = Introduction(
            "?", -1, config.replica_announce_port or port or config.tls_port, config.replica_announce_ip,
            config.masteruser, config.masterauth.encode("utf-8", "surrogateescape"),
        )  # fmt: skip
        who.failover = self.takeover
        if not self._distrust:
            # the one that is to take over knows this server by its present ID
            who.replid = disk.history.id if who.failover else disk.history.ask(disk.offset)
            who.offset, who.history = disk.offset, disk.signature()
            who.longer = disk.piece(COMPARED) if who.history is not None else None
        return who

    def asked(self) -> None:
        if not self._asked:
            self._asked = True
            self._ticks.after(self._answer)

    def _answer(self) -> None:
        """The tick is over: its batch is durable, or waits for the disk; then on_time() comes back to it."""
        if self._asked and not self._ticks.stalled:
            self._asked = False
            self._acknowledge()

    def _acknowledge(self) -> None:
        disk, follower = self._data.disk, self._follower
        if follower is None or not follower.up:
            return
        if disk.offset != self._applied and not self._data.ks.log and not self._ticks.stalled:
            self._distrust = True  # what was logged is not what came
            follower.fail(LinkError(f"this log ends at {disk.offset} instead of {self._applied}: copied anew"))
            return
        self._told = disk.offset, disk.synced
        self._told_at = self._clock.mono()
        follower.acknowledge(*self._told)

    def on_time(self, mono: int) -> None:
        """Some ten times a second."""
        follower = self._follower
        if follower is None:
            return
        if mono - self._told_at >= ACKNOWLEDGE_MS:
            self._told_at = mono
            follower.on_time()
            self._acknowledge()
        elif self._told[0] > self._told[1] and self._data.disk.synced > self._told[1]:
            self._acknowledge()  # what it has is on disk now
        self._answer()
        follower.hold(self._ticks.stalled)

    # -- what the leader sends -----------------------------------------------------------------------------------
    def batch(self, offset: int, batch: bytes) -> None:
        if offset != self._applied:
            raise LinkError(f"a batch at log offset {offset} instead of {self._applied}")
        try:
            replay(self._data.ks, batch)
        except Exception as error:  # whatever it is: part of the batch must not stay
            self._distrust = True
            self._logger.warning(f"A batch of the leader can't be applied: {error!r}; everything is copied anew")
            self._reload("this server's data is copied anew")  # part of the batch may be in memory
            raise LinkError("a batch that can't be applied") from error
        self._applied = offset + len(batch)
        self._ticks.queue()
        if self._ticks.stalled and self._follower is not None:
            self._follower.hold(True)

    def continued(self, replid: str) -> None:
        disk = self._data.disk
        self._applied = disk.offset
        if replid != disk.history.id:
            before = disk.history.id, list(disk.history.previous)
            disk.history.follow(replid, disk.offset)
            try:
                disk.save_history(leads=False)
            except OSError:
                disk.history.id, disk.history.previous = before
                raise
            self._replicas.drop_all("the leader has another replication ID")

    async def copied(self, replid: str) -> None:
        await asyncio.shield(self._reload("this server's data is replaced by a copy of its leader's"))
        if self._gates.loading:
            raise LinkError("the copy can't be opened")
        self._distrust = False
        self._logger.notice(f"The copy is in use: log offset {self._data.disk.offset}, ID {replid}")

    def _reload(self, why: str) -> asyncio.Future[None]:
        """Begin to open what is in the data directory, in place of what is in memory."""
        self._data.ks.log.clear()
        self._data.ks.ready.clear()
        self._gates.load(True)
        self._replicas.drop_all(why)
        task = asyncio.ensure_future(self._open_again())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _open_again(self) -> None:
        try:
            await self._replace_data()
        except Exception as error:  # noqa: BLE001 - a bug, too, must not leave a server that is loading for ever
            self._logger.warning(f"The data directory can't be opened again, the server ends: {error!r}")
            self._stop_server(False, False)
            return
        self._applied = self._data.disk.offset
        self._gates.load(False)

    def incoming(self) -> Incoming:
        return Incoming(Path(self._config.dir), self._config.tail_size)

    def history_of(self, replid: str) -> History:
        return History(replid, [], self._data.disk.history.boot)

    def received_bytes(self, count: int) -> None:
        self._bytes_in += count

    def received_message(self, channel: bytes, text: bytes) -> None:
        self._pubsub.deliver(channel, text)
        self._replicas.message(channel, text)

    # -- how the link is -----------------------------------------------------------------------------------------
    def patience(self) -> float:
        return self._config.repl_timeout

    def tls(self) -> SSLContext | None:
        if not self._config.tls_replication:
            return None
        from respserver.clients.tls import build_client_context  # ssl takes its time to load

        return build_client_context(self._config)

    def link_changed(self) -> None:
        follower = self._follower
        if follower is None:
            return
        self._show(follower)
        if follower.up:
            self.asked()
        self._on_change()

    def link_failed(self, error: Exception) -> None:
        self._on_failure(error)

    def note(self, text: str) -> None:
        self._logger.notice(text)

    def warn(self, text: str) -> None:
        self._logger.warning(text)

    def _show(self, follower: Follower | None) -> None:
        """The link among the clients, while there is one."""
        if self._session is not None:
            self._clients.remove(self._session)
            self._session = None
        if follower is None or follower.link is None or follower.state not in ("sync", "connected"):
            return
        transport = follower.link.transport
        session = Session(
            self._clients.next_id(), shown(transport.get_extra_info("peername"), ""),
            shown(transport.get_extra_info("sockname"), ""), self._clock.now(),
        )  # fmt: skip
        session.replica = LEADER
        session.transport = LeaderTransport(follower.link)
        self._session = session
        self._clients.add(session)

    def describe(self, stats: RoleStats) -> None:
        """Enter what is known of the link."""
        stats.bytes_in = self._bytes_in
        link = self._follower
        if link is None:
            return
        now = asyncio.get_running_loop().time()
        stats.host, stats.port, stats.state = link.host, link.port, link.state
        stats.last_io = int(now - link.last_io) if link.last_io else -1
        stats.syncing = link.state == "sync"
        stats.sync_total, stats.sync_read = link.sync_total, link.sync_read
        stats.sync_last_io = stats.last_io if stats.syncing else -1
        stats.down_since = -1 if link.up else int(now - link.down_since)
