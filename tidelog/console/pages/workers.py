"""One app: its workers, processors, partitions and timers; pause, resume, and reset.

Rule: operations are those of ``tidelog app``. A reset shows how many entries are read again before it is executed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from time import monotonic
from typing import Any

import msgspec
from aiohttp import web

from tidelog.client.steps import CallSender, Steps, arun
from tidelog.console import live
from tidelog.console.apps import DECLARED, ERRORS, PARTITIONS, AppReader, row_of, why
from tidelog.console.errors import PageError, UnavailableError, page_error
from tidelog.console.pages.operations import operate, start_of
from tidelog.console.pages.programs import ShownPages, pause
from tidelog.console.pages.site import ConsoleSite, session_of
from tidelog.console.programs import REFUSED, PolledCalls
from tidelog.operating.tables import counted
from tidelog.workers.coordination.declaration import AppDeclaration
from tidelog.workers.operate import control
from tidelog.workers.operate.timerstatus import read_timers


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = AppPages(site)
    return [
        web.get("/programs/app", pages.show),
        web.get("/programs/app/live", pages.follow),
        web.post("/programs/app/pause", pages.pause),
        web.post("/programs/app/resume", pages.resume),
        web.post("/programs/app/preview", pages.preview),
        web.post("/programs/app/reset", pages.reset),
    ]


class AppPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site
        self._shown: ShownPages[AppReader] = ShownPages()

    async def show(self, request: web.Request) -> web.Response:
        session, began = session_of(request), monotonic()
        reader = AppReader(session.connection)
        state = await self._state(request, reader)
        self._shown.keep(session, request.query.get("name", ""), reader, began)
        return self._site.page(request, "app.html", **state)

    async def follow(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        return await live.stream(request, self._site.sessions, session, self._events(request))

    async def pause(self, request: web.Request) -> web.Response:
        """Pause ``processor``: all of it, ``partition``, or ``key``."""
        declared, name, partition, key = await self._chosen(request)
        reason = f"by {session_of(request).user} in the console"
        steps = control.pause(declared, name, partition, key, reason)
        done, problem = await self._operate(request, "pause", declared, name, steps, partition, key)
        text = f"{', '.join(done)} paused." if done else "It was paused already."
        return self._site.part("operation_done.html", problem=problem, done=text)

    async def resume(self, request: web.Request) -> web.Response:
        declared, name, partition, key = await self._chosen(request)
        steps = control.resume(declared, name, partition, key)
        done, problem = await self._operate(request, "resume", declared, name, steps, partition, key)
        text = f"{', '.join(done[:20])} resumed." if done else "There was nothing to resume."
        return self._site.part("operation_done.html", problem=problem, done=text)

    async def preview(self, request: web.Request) -> web.Response:
        """Show the effect of a reset to ``to``, with a button that executes it."""
        declared, name, partition, _ = await self._chosen(request)
        given = await request.post()
        to, force = str(given.get("to", "")), "force" in given
        steps = control.preview_reset(declared, name, start_of(to), partition, force)
        try:
            found = await arun(session_of(request).connection, steps)
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error) from None
        return self._site.part(
            "app_preview.html", name=declared.name, processor=name, to=to, partition=partition, force=force, found=found
        )  # fmt: skip

    async def reset(self, request: web.Request) -> web.Response:
        declared, name, partition, _ = await self._chosen(request)
        given = await request.post()
        to, force = start_of(str(given.get("to", ""))), "force" in given
        steps = control.reset(declared, name, to, partition, force)
        moved, problem = await self._operate(request, "reset", declared, name, steps, partition, None, to=str(to))
        text = "" if problem else f"{counted(len(moved), 'partition')} reset to {to}."
        return self._site.part("operation_done.html", problem=problem, done=text)

    async def _operate(
        self, request: web.Request, action: str, declared: AppDeclaration, name: str, steps: Steps[Any],
        partition: int | None, key: str | None, **detail: Any,
    ) -> tuple[Any, str]:  # fmt: skip
        where: dict[str, Any] = {"partition": partition} if partition is not None else {}
        where |= {"key": key} if key is not None else {}
        target = f"app {declared.name}/{name}"
        return await operate(self._site, request, action, target, steps, ERRORS, **where, **detail)

    async def _chosen(self, request: web.Request) -> tuple[AppDeclaration, str, int | None, str | None]:
        """Return the app, and the form fields ``processor``, ``partition`` and ``key``. Raises PageError."""
        given = await request.post()
        number, key = str(given.get("partition", "")).strip(), str(given.get("key", ""))
        if number and not (number.isascii() and number.isdigit() and len(number) < 7):
            raise PageError(400, "The partition must be a whole number.")
        declared = await self._declared(request, AppReader(session_of(request).connection))
        name = str(given.get("processor", ""))
        try:
            declared.select([name])
        except ERRORS as error:
            raise PageError(404, str(error)) from None
        return declared, name, int(number) if number else None, key or None

    async def _declared(self, request: web.Request, reader: AppReader) -> AppDeclaration:
        try:
            return await reader.declaration(request.query.get("name", ""))
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error) from None

    async def _events(self, request: web.Request) -> AsyncIterator[live.Event]:
        session, shown = session_of(request), dict[str, str]()
        sender, page = PolledCalls(session.connection), self._shown.take(session, request.query.get("name", ""))
        reader = AppReader(sender) if page is None else page.reader.continued(sender)
        if page is not None:
            yield "parts", {}
            await pause(page.took)
        while True:
            began = monotonic()
            try:
                state = await self._state(request, reader, sender)
            except PageError as error:
                yield "problem", str(error)
                await pause(monotonic() - began)
                continue
            took = monotonic() - began
            part = self._site.renderer.part
            parts = {"tiles": part("app_tiles.html", **state), "timers": part("app_timers.html", **state)}
            for each in state["processors"]:
                parts[f"processor-{each['status'].name}"] = part("app_processor.html", each=each, **state)
            yield "parts", {name: text for name, text in parts.items() if shown.get(name) != text}
            shown = parts
            await pause(took)

    async def _state(self, request: web.Request, reader: AppReader, sender: CallSender | None = None) -> dict[str, Any]:
        """Return the values of the templates. Raises PageError."""
        declared = await self._declared(request, reader)
        try:
            seen, rates = await reader.status(declared)
            shown = msgspec.structs.replace(declared, timers=declared.timers[:DECLARED])
            timers = await arun(sender or session_of(request).connection, read_timers(shown))
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error) from None
        processors = []
        for each, known in zip(seen.processors, declared.processors, strict=False):  # the first DECLARED
            partitions = sorted(each.partitions, key=lambda one: (-one.unfinished, one.partition))[:PARTITIONS]
            processors.append({
                "status": each, "declared": known, "row": row_of(seen, each, rates[each.name]),
                "partitions": sorted(partitions, key=lambda one: one.partition),
            })  # fmt: skip
        workers = sorted({name for each in seen.processors for name in each.alive})
        return {
            "app": declared, "seen": seen, "processors": processors, "workers": workers, "timers": timers, "why": why,
            "now": seen.at,
        }  # fmt: skip


def _refused(error: Exception) -> PageError | UnavailableError:
    return page_error(error) if isinstance(error, REFUSED) else PageError(409, str(error))
