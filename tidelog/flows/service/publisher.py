"""``FlowPublisher``: writes the status of a process to its tidelog server, and follows the desired state there.

Rule 1: the status is written every WRITE seconds if it has changed, and every REFRESH seconds in any case. It expires
        after KEPT_MS.
Rule 2: what others pause or resume in the desired state takes effect here within FOLLOW seconds. The state is read only
        if its digest has changed.
Rule 3: flows do not depend on either. If the server does not answer or denies a call, this is logged once and tried
        again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final
from uuid import uuid4

import msgspec

from tidelog.coordination import programs
from tidelog.flows.api.errors import FlowError
from tidelog.flows.service import flowstatus, views
from tidelog.flows.service.desired import Desired, DesiredDocument, DesiredStateError
from tidelog.flows.service.flowstatus import FlowProcessStatus, PublishedFlow
from tidelog.flows.service.host import DeployedFlow, FlowHost
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import DeniedError, ReplyError, is_denied

log = logging.getLogger("tidelog.flows")

FOLLOW: Final = 2.0  # s
WRITE: Final = 4.0  # s; a status of 5 KB costs 100 MB of log a day
REFRESH: Final = 10.0  # s
KEPT_MS: Final = 30_000
DENIED: Final = 60.0  # s after which a denied call is tried again
LEAVING: Final = 2.0  # s within which a process that stops removes its status


class FlowPublisher:
    """Publishes the flows of a host: ``async with FlowPublisher(host): ...``. Without a server, it does nothing."""

    def __init__(self, host: FlowHost) -> None:
        self.process = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self._host = host
        self._task: asyncio.Task[None] | None = None
        self._trouble = FailureLog(log)
        self._started = _now()
        self._listed = False  # in the desired state and among the programs of the server
        self._digest: bytes | None = b""  # of the desired state that is in effect
        self._before: DesiredDocument | None = None  # the same, decoded; None: that with which the host has started
        self._written = b""  # the last status, without its time
        self._written_at = -REFRESH  # loop time
        self._denied_until = 0.0  # loop time

    async def __aenter__(self) -> FlowPublisher:
        if self._host.desired is not None:
            self._task = asyncio.create_task(self._run(self._host.desired), name="flow publisher")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Remove the status. Must be called before the host is stopped."""
        await cancel_and_wait(self._task)
        desired = self._host.desired
        if desired is None or not self._listed:
            return
        try:
            async with asyncio.timeout(LEAVING):
                await desired.send(flowstatus.remove(desired.name, self.process))
                await desired.change(self._left)
        except (ReplyError, FlowError, OSError, TimeoutError) as error:
            log.debug("the status of this process expires by itself: %s", text_of(error))

    def _left(self, document: DesiredDocument) -> None:
        document.processes.pop(self.process, None)

    async def _run(self, desired: Desired) -> None:
        turn = 0
        while True:
            if self._host.problem:  # the desired state is not known yet
                await asyncio.sleep(0.2)
                continue
            if asyncio.get_running_loop().time() >= self._denied_until:
                await self._tried(lambda: self._list(desired))
                await self._tried(lambda: self._follow(desired))
                if turn % round(WRITE / FOLLOW) == 0:
                    await self._tried(lambda: self._write(desired))
            turn += 1
            await asyncio.sleep(FOLLOW)

    async def _tried(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except (ReplyError, DesiredStateError, DeniedError, programs.ProgramNamesError, OSError) as error:
            self._trouble.warn(f"the console can't show and control the flows of this process: {text_of(error)}")
            if isinstance(error, DeniedError) or is_denied(error):  # each denial is an entry of ACL LOG
                self._denied_until = asyncio.get_running_loop().time() + DENIED
        except Exception:
            log.exception("the status of the flows was not published")

    async def _list(self, desired: Desired) -> None:
        """Add this process to the desired state, and its name to the programs of the server."""
        if self._listed:
            return

        def listed(document: DesiredDocument) -> None:
            newest = sorted({**document.processes, self.process: self._started}.items(), key=lambda each: each[1])
            document.processes = dict(newest[-flowstatus.PROCESSES :])

        await desired.change(listed)
        self._listed = True
        await desired.drive(programs.record("flows", desired.name))

    async def _follow(self, desired: Desired) -> None:
        digest = await desired.send(flowstatus.digest(desired.key))
        if digest == self._digest:
            return
        document = await desired.read()
        await self._host.follow(self._before or self._host.started_with, document)
        self._digest, self._before = digest, document
        await self._write(desired)

    async def _write(self, desired: Desired) -> None:
        status = await self._status()
        content = msgspec.json.encode(msgspec.structs.replace(status, at=0))
        now = asyncio.get_running_loop().time()
        if content == self._written and now - self._written_at < REFRESH:
            return
        await desired.send(flowstatus.write(desired.name, status, KEPT_MS))
        self._written, self._written_at = content, now
        self._trouble.succeeded()

    async def _status(self) -> FlowProcessStatus:
        """Return the status of all flows. Other tasks run between two flows."""
        flows, size = [], 0
        for deployed in list(self._host.flows.values()):
            found = published(deployed, self._host)
            size += len(msgspec.json.encode(found))
            if size > flowstatus.SIZE:
                found = msgspec.structs.replace(found, graph=None, connectors=(), sources=())
            flows.append(found)
            await asyncio.sleep(0)
        return FlowProcessStatus(1, self.process, _now(), self._started, tuple(flows))


def published(deployed: DeployedFlow, host: FlowHost) -> PublishedFlow:
    """Return the status of a flow. It does not change while nothing happens: times are not ages."""
    flow = views.flow(deployed, deployed.name, host)
    found: dict[str, Any] = {
        "alias": flow["alias"], "status": flow["status"], "error": flow["error"], "instances": flow["instances"],
        "dead_letters": flow["dead_letters"] or "",
    }  # fmt: skip
    if deployed.instances:
        now, under_way = _now(), views.unsettled(deployed.instances)
        oldest = under_way["oldest_s"]
        found |= {
            "unsettled": under_way["count"], "oldest": 0 if oldest is None else _second(now, oldest),
            "where": under_way["where"], "stored": under_way.get("stored", {}),
            "connectors": [views.connector(deployed, deployed.name, each) for each in deployed.spec.connectors],
            "graph": views.graph(deployed, deployed.name),
            "sources": [
                {"alias": one["alias"], "source": each["source"], "reasons": [
                    reason | {"since": _second(now, reason["since_s"]) if reason["since_s"] else 0}
                    for reason in each["reasons"]
                ]}
                for one in views.breaker(deployed, deployed.name)["instances"] for each in one["sources"]
            ],
        }  # fmt: skip
    return msgspec.convert(found, PublishedFlow)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _second(now: int, age: float) -> int:
    """Return the time of an age in seconds, in ms since 1970, rounded to seconds."""
    return round((now - 1000 * age) / 1000) * 1000
