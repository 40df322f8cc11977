"""One flow: its graph, connectors, and groups, and why its sources do not send; pause, resume, and reset.

Rule 1: a pause or a resume is stored in the desired state, which each process follows within seconds.
Rule 2: a reset is that of ``tidelog flow reset``. It shows how many entries are read again before it is executed.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from time import monotonic
from typing import Any, Literal

from aiohttp import web

from tidelog.client import strings
from tidelog.client.steps import CallSender, Steps, arun, single
from tidelog.console import live
from tidelog.console.errors import PageError, UnavailableError, page_error
from tidelog.console.flows import DEFAULT, ERRORS, FlowReader, graph_of
from tidelog.console.pages.operations import operate, start_of
from tidelog.console.pages.programs import pause
from tidelog.console.pages.site import ConsoleSite, session_of
from tidelog.console.programs import REFUSED, PolledCalls
from tidelog.flows.service import streamgroups
from tidelog.flows.service.desired import DesiredDocument, changing, decoded, key_of
from tidelog.operating.tables import counted

Status = Literal["paused", "running"]


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = FlowPages(site)
    return [
        web.get("/programs/flow", pages.show),
        web.get("/programs/flow/live", pages.follow),
        web.post("/programs/flow/pause", pages.pause),
        web.post("/programs/flow/resume", pages.resume),
        web.post("/programs/flow/preview", pages.preview),
        web.post("/programs/flow/reset", pages.reset),
    ]


class FlowPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        """Show the flow ``name`` of ``process``. ``id``: which of its processes is drawn."""
        state = await self._state(request, FlowReader(session_of(request).connection))
        return self._site.page(request, "flow.html", **state)

    async def follow(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        return await live.stream(request, self._site.sessions, session, self._events(request))

    async def pause(self, request: web.Request) -> web.Response:
        return await self._set(request, "pause", "paused")

    async def resume(self, request: web.Request) -> web.Response:
        return await self._set(request, "resume", "running")

    async def preview(self, request: web.Request) -> web.Response:
        """Show the effect of a reset to ``to``, with a button that executes it."""
        to = str((await request.post()).get("to", ""))
        try:
            found = await arun(session_of(request).connection, _previewed(*_named(request), to))
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error) from None
        process, name = _named(request)
        return self._site.part("flow_preview.html", process=process, name=name, to=to, found=found)

    async def reset(self, request: web.Request) -> web.Response:
        to = str((await request.post()).get("to", ""))
        start_of(to)

        def steps() -> Steps[int]:
            found = yield from _previewed(*_named(request), to)
            if found:
                yield from streamgroups.reset(found)
            return len(found)

        count, problem = await self._operate(request, "reset", steps(), to=to)
        done = f"{counted(count or 0, 'group')} reset to {to}."
        return self._site.part("operation_done.html", problem=problem, done=done)

    async def _set(self, request: web.Request, action: str, status: Status) -> web.Response:
        """Store the desired status of the flow, or of its ``connector``."""
        process, name = _named(request)
        connector = str((await request.post()).get("connector", "")) or None
        reader = FlowReader(session_of(request).connection)
        try:
            seen = await reader.seen(process, name)
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error) from None
        known = {each.alias for running in seen.running for each in running.flow.connectors}
        if connector is not None and connector not in known:
            raise PageError(404, f"The flow has no connector {connector!r}.")

        def edit(document: DesiredDocument) -> None:
            document.set(name, name, status, connector)

        detail = {"connector": connector} if connector else {}
        _, problem = await self._operate(request, action, changing(process, edit), **detail)
        when = "within seconds" if seen.running else "after the next start, because no process runs it"
        return self._site.part(
            "operation_done.html", problem=problem, done=f"{connector or name} will be {status} {when}."
        )  # fmt: skip

    async def _operate(self, request: web.Request, action: str, steps: Steps[Any], **detail: Any) -> tuple[Any, str]:
        process, name = _named(request)
        return await operate(self._site, request, action, f"flow {process}/{name}", steps, ERRORS, **detail)

    async def _events(self, request: web.Request) -> AsyncIterator[live.Event]:
        sender: CallSender = PolledCalls(session_of(request).connection)
        reader, shown, drawn = FlowReader(sender), dict[str, str](), 0
        while True:
            began = monotonic()
            try:
                state = await self._state(request, reader)
            except PageError as error:
                yield "problem", str(error)
                await pause(monotonic() - began)
                continue
            parts = {
                name: self._site.renderer.part(f"flow_{name}.html", **state)
                for name in ("tiles", "state", "connectors", "groups")
            }
            yield "parts", {name: text for name, text in parts.items() if shown.get(name) != text}
            shown = parts
            if state["chosen"] is not None and state["chosen"].process.at != drawn:
                drawn = state["chosen"].process.at
                yield "graph", graph_of(state["chosen"])
            await pause(monotonic() - began)

    async def _state(self, request: web.Request, reader: FlowReader) -> dict[str, Any]:
        """Return the values of the templates. Raises PageError."""
        try:
            seen = await reader.seen(*_named(request))
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error) from None
        wanted = request.query.get("id", "")
        chosen = next((each for each in seen.running if each.process.process == wanted), None)
        chosen = chosen or next(iter(seen.running), None)
        return {
            "seen": seen, "row": reader.row_of(seen), "chosen": chosen, "graph": json.dumps(graph_of(chosen)),
            "now": int(time.time() * 1000),
        }  # fmt: skip


def _named(request: web.Request) -> tuple[str, str]:
    """Return the name of the process, and that of the flow."""
    return request.query.get("process", "") or DEFAULT, request.query.get("name", "")


def _previewed(process: str, name: str, to: str) -> Steps[list[streamgroups.GroupReset]]:
    raw = yield from single(strings.get(key_of(process)))
    sources = decoded(key_of(process), raw).sources.get(name, [])
    return (yield from streamgroups.preview(sources, start_of(to)))


def _refused(error: Exception) -> PageError | UnavailableError:
    return page_error(error) if isinstance(error, REFUSED) else PageError(409, str(error))
