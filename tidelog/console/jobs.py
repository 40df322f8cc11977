"""Jobs: their status, snapshots, events, and rows. The data is that of ``tidelog jobs status`` and ``jobs logs``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.client import calls, strings
from tidelog.client.entries import Entry
from tidelog.client.steps import CallSender, Steps, arun, checked
from tidelog.console.infotext import text
from tidelog.console.programs import REFUSED, SHOWN, Level, ProgramList, ProgramRow
from tidelog.jobs import keys
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.overview import JobOverview, JobsOverview, overview
from tidelog.jobs.snapshots.catalog import JobSnapshots, decode
from tidelog.topics.settings import TopicError

EVENTS: Final = 20  # newest events of a job that a page shows
ERRORS: Final = (JobError, TopicError)  # of operations on jobs
_LEVELS: Final[dict[str, Level]] = {"running": "good", "failed": "bad", "failing": "bad"}  # of others: wait


@dataclass(frozen=True)
class JobDetails:
    """A job with its snapshots and its newest events."""

    at: int  # ms since 1970, by the server's clock
    job: JobOverview
    snapshots: JobSnapshots
    snapshots_problem: str
    events: list[Entry]  # newest first
    engines: tuple[str, ...]


class JobReader:
    """Reads jobs with one sender of calls."""

    def __init__(self, sender: CallSender) -> None:
        self._sender = sender

    async def rows(self) -> ProgramList:
        """Return the rows of all jobs, at most SHOWN."""
        try:
            names = sorted((await arun(self._sender, registry.read())).specs)
            if not names:
                return ProgramList()
            seen: JobsOverview = await arun(self._sender, overview(names[:SHOWN]))
        except (*REFUSED, *ERRORS) as error:
            return ProgramList(problem=f"The jobs can't be listed: {error}")
        return ProgramList([row_of(each) for each in seen.jobs], total=len(names))

    async def details(self, name: str) -> JobDetails:
        """Return the details of a job. Raises JobError if it does not exist."""
        return await arun(self._sender, _details(name))


def _details(name: str) -> Steps[JobDetails]:
    seen = yield from overview([name])
    stored, events = yield [strings.get(keys.snapshots(name)), calls.trevrange(keys.events(name), count=EVENTS)]
    snapshots, problem = JobSnapshots(), ""
    try:
        (stored,) = checked([stored])
        snapshots = decode(name, stored)
    except (*REFUSED, JobError) as error:
        problem = str(error)
    (job,) = seen.jobs
    if snapshots.generation != job.spec.generation:
        snapshots = JobSnapshots()
    return JobDetails(seen.at, job, snapshots, problem, events if isinstance(events, list) else [], seen.engines)


def row_of(job: JobOverview) -> ProgramRow:
    """Return the row of a job."""
    state, report = job.state, job.report
    level: Level = _LEVELS.get(state, "wait")
    reasons = []
    if state == "no engine":
        level = "bad" if job.lag else "wait"
        reasons.append("no engine has claimed it")
    if report is not None and report.error and level != "good":
        reasons.append(first(report.error))
    if report is not None and report.version != job.spec.version and report.engine == job.engine:
        reasons.append(f"it runs version {text(report.version)}, and {text(job.spec.version)} was added")
    if job.snapshots.error:
        level = "bad"
        reasons.append(f"snapshots fail: {job.snapshots.error}")
    lag = job.lag if job.spec.inputs else None
    return ProgramRow("job", job.spec.name, "", state, level, tuple(reasons), lag, job.lag_ms, job.throughput)


def first(error: str) -> str:
    """Return the most informative line: the last one of a traceback, otherwise the first one."""
    lines = error.splitlines() or [""]
    line = lines[-1] if any(each.startswith("Traceback") for each in lines) else lines[0]
    return text(line if len(line) <= 300 else f"{line[:300]}…")
