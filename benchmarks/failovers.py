"""``python -m benchmarks.failovers``: how long a writer waits while the leader of a server group changes.

Rule 1: three members run on this machine, with ``appendfsync always`` and ``replica-acks insync``. One client appends
one entry at a time. After an error it tries the next member, 3 ms later.
Rule 2: the pause is the longest time between two acknowledged appends.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import click
import redis

from benchmarks import facts
from benchmarks.entries import SENSOR, append_words, pack
from benchmarks.servers import Peer, installations

MEMBERS = 3
PATIENCE = 60.0
RETRY = 0.003  # seconds
AFTER = 0.5  # seconds of appends after the change


class PausedWriter:
    """Appends to the leader, in a thread. ``acknowledged``: the times of its appends, in seconds."""

    def __init__(self, members: list[Peer]) -> None:
        self.acknowledged: list[float] = []
        self._ports = [member.port for member in members]
        self._command = pack(*append_words(members[0], "failovers"), *SENSOR)
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over = True
        self._thread.join()

    def _run(self) -> None:
        at, sock = 0, None
        while not self._over:
            reply = b""
            with contextlib.suppress(OSError):
                if sock is None:
                    sock = socket.create_connection(("127.0.0.1", self._ports[at]), PATIENCE)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(self._command)
                reply = sock.recv(256)
            if reply and not reply.startswith(b"-"):
                self.acknowledged.append(time.perf_counter())
                continue
            if sock is not None:
                sock.close()
            sock, at = None, (at + 1) % len(self._ports)
            time.sleep(RETRY)


def until(met: Callable[[], bool], what: str) -> None:
    end = time.perf_counter() + PATIENCE
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if met():
                return
        if time.perf_counter() > end:
            raise click.ClickException(f"not within {PATIENCE:.0f} seconds: {what}")
        time.sleep(0.02)


def role(member: Peer) -> bytes:
    with member.client() as client:
        found: bytes = client.execute_command("ROLE")[0]
        return found


def complete(members: list[Peer]) -> bool:
    """Whether all members are in the in-sync set."""
    for member in members:
        with member.client() as client:
            if client.info("replication")["group_in_sync"] != MEMBERS:
                return False
    return True


@contextlib.contextmanager
def group(coordinator: str, lease: int) -> Iterator[tuple[list[Peer], Callable[[Peer], None]]]:
    """The members, all in sync, and a function that starts one again."""
    (installed,) = installations(peer=False)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as top:
        name, members = f"bench-{Path(top).name}", []
        for number in range(MEMBERS):
            directory = Path(top, f"m{number}")
            directory.mkdir()
            members.append(Peer(installed.name, installed.command, directory, "always", None))

        def start(member: Peer) -> None:
            member.start(
                "--group", name, "--group-member", member.directory.name, "--group-lease", str(lease),
                "--coordinator", coordinator or f"file://{top}/coordinator", "--replica-acks", "insync",
            )  # fmt: skip

        try:
            for member in members:
                start(member)
            until(lambda: complete(members), "all members are in sync")
            yield members, start
        finally:
            for member in members:
                with contextlib.suppress(AssertionError):
                    member.kill()


def paused(members: list[Peer], writer: PausedWriter, start: Callable[[Peer], None], kill: bool) -> float:
    """Change the leader; return the longest pause in seconds, once all members are in sync again."""
    until(lambda: bool(writer.acknowledged), "an append")
    (leader,) = [member for member in members if role(member) == b"master"]
    others = [member for member in members if member is not leader]
    began = time.perf_counter()
    if kill:
        leader.kill()
    else:
        with leader.client() as client:
            client.execute_command("FAILOVER")
    until(lambda: any(role(member) == b"master" for member in others), "another leader")
    led = time.perf_counter()
    until(lambda: writer.acknowledged[-1] > led + AFTER, "an append to the new leader")
    times = [at for at in writer.acknowledged if at > began - 1]
    if kill:
        start(leader)
    until(lambda: complete(members), "all members are in sync again")
    return max(after - before for before, after in pairwise(times))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=10, show_default=True, help="Changes of the leader of each kind.")
@click.option("--coordinator", default="", help="Such as etcd://127.0.0.1:2379. Without it: a directory (file:).")
@click.option("--lease", default=5000, show_default=True, help="group-lease, in milliseconds.")
def main(rounds: int, coordinator: str, lease: int) -> None:
    """Measure the longest pause of a writer at planned failovers and at kills of the leader."""
    click.echo(facts.summary(facts.machine(), facts.described(installations(peer=False))))
    for kind in ("planned failover", "killed leader"):
        with group(coordinator, lease) as (members, start):
            writer = PausedWriter(members)
            pauses = [paused(members, writer, start, kind == "killed leader") for _ in range(rounds)]
            writer.stop()
        shown = ", ".join(f"{1000 * pause:.0f}" for pause in pauses)
        click.echo(f"{kind}: pause of the writer, ms: median {1000 * median(pauses):.0f}, all: {shown}")


if __name__ == "__main__":
    main()
