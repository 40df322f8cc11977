"""One job: epochs, partitions, state, snapshots, and events; pause, resume, and reset.

Rule: operations are those of ``tidelog jobs``. A reset keeps the registered code, because the console has none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from time import monotonic
from typing import Any, Final

from aiohttp import web

from tidelog.client.steps import CallSender, Steps, arun
from tidelog.console import live
from tidelog.console.errors import PageError, UnavailableError, page_error
from tidelog.console.jobs import ERRORS, JobReader, first, row_of
from tidelog.console.pages.operations import operate, start_of
from tidelog.console.pages.programs import pause
from tidelog.console.pages.site import ConsoleSite, session_of
from tidelog.console.programs import REFUSED, PolledCalls
from tidelog.jobs.registry import registry, resets
from tidelog.jobs.registry.overview import preview_reset

PARTITIONS: Final = 64  # of a job that a page shows


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = JobPages(site)
    return [
        web.get("/programs/job", pages.show),
        web.get("/programs/job/live", pages.follow),
        web.post("/programs/job/pause", pages.pause),
        web.post("/programs/job/resume", pages.resume),
        web.post("/programs/job/preview", pages.preview),
        web.post("/programs/job/reset", pages.reset),
    ]


class JobPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        state = await self._state(request, session_of(request).connection)
        return self._site.page(request, "job.html", **state)

    async def follow(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        return await live.stream(request, self._site.sessions, session, self._events(request))

    async def pause(self, request: web.Request) -> web.Response:
        steps = registry.change(registry.pause(_name(request)), _by(request))
        done, problem = await self._operate(request, "pause", steps)
        text = "" if problem else "The job is paused." if done[1] is not None else "It was paused already."
        return self._site.part("operation_done.html", problem=problem, done=text)

    async def resume(self, request: web.Request) -> web.Response:
        """Resume the job, or retry it if it has failed."""
        steps = registry.change(registry.resume(_name(request)), _by(request))
        _, problem = await self._operate(request, "resume", steps)
        return self._site.part("operation_done.html", problem=problem, done="The job is resumed.")

    async def preview(self, request: web.Request) -> web.Response:
        """Show the effect of a reset to ``to``, with a button that executes it."""
        name, to = _name(request), str((await request.post()).get("to", ""))

        def steps() -> Steps[Any]:
            spec = (yield from registry.read()).find(name)
            return (yield from preview_reset(spec, start_of(to)))

        try:
            found = await arun(session_of(request).connection, steps())
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error) from None
        return self._site.part("job_preview.html", name=name, to=to, found=found)

    async def reset(self, request: web.Request) -> web.Response:
        name, to = _name(request), start_of(str((await request.post()).get("to", "")))
        new, problem = await self._operate(request, "reset", resets.reset(name, to, _by(request)), to=str(to))
        text = "" if problem else f"Generation {new.generation} starts from {to}, with empty state."
        return self._site.part("operation_done.html", problem=problem, done=text)

    async def _operate(self, request: web.Request, action: str, steps: Steps[Any], **detail: Any) -> tuple[Any, str]:
        return await operate(self._site, request, action, f"job {_name(request)}", steps, ERRORS, **detail)

    async def _events(self, request: web.Request) -> AsyncIterator[live.Event]:
        sender, shown = PolledCalls(session_of(request).connection), dict[str, str]()
        while True:
            began = monotonic()
            try:
                state = await self._state(request, sender)
            except PageError as error:
                yield "problem", str(error)
                await pause(monotonic() - began)
                continue
            parts = {
                name: self._site.renderer.part(f"job_{name}.html", **state)
                for name in ("tiles", "state", "partitions", "log")
            }
            yield "parts", {name: text for name, text in parts.items() if shown.get(name) != text}
            shown = parts
            await pause(monotonic() - began)

    async def _state(self, request: web.Request, sender: CallSender) -> dict[str, Any]:
        """Return the values of the templates. Raises PageError."""
        try:
            details = await JobReader(sender).details(_name(request))
        except (*REFUSED, *ERRORS) as error:
            raise _refused(error, 404) from None
        job = details.job
        partitions = sorted(job.partitions, key=lambda one: (-one.lag, one.partition))[:PARTITIONS]
        last = max((each.epoch for each in job.partitions if each.epoch is not None), default=None)
        if last is None and job.report is not None and job.spec.kind == "frame":
            last = job.report.epoch
        return {
            "details": details, "job": job, "spec": job.spec, "report": job.report, "row": row_of(job), "epoch": last,
            "partitions": sorted(partitions, key=lambda one: one.partition), "first": first, "now": details.at,
        }  # fmt: skip


def _name(request: web.Request) -> str:
    return request.query.get("name", "")


def _by(request: web.Request) -> str:
    """Return who makes a change, for the registry."""
    return f"{session_of(request).user} in the console"


def _refused(error: Exception, status: int = 409) -> PageError | UnavailableError:
    return page_error(error) if isinstance(error, REFUSED) else PageError(status, str(error))
