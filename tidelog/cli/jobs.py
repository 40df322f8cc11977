"""``tidelog jobs``: manages the jobs of a server and runs engines."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from tidelog.cli.connect import Drive, driving, reported, url_option
from tidelog.cli.engine import check_extra, engine
from tidelog.cli.jobstatus import print_job, print_jobs
from tidelog.cli.progress import Progress
from tidelog.cli.resetting import print_resets, reset_options
from tidelog.client import calls, strings
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked, single
from tidelog.jobs import JobError, keys, snapshots
from tidelog.jobs.commits import commit_of
from tidelog.jobs.declare import Job
from tidelog.jobs.loading import load, load_module
from tidelog.jobs.registry import registry, resets
from tidelog.jobs.registry.overview import overview, owner, preview_reset
from tidelog.jobs.registry.registry import Decide, JobRegistry, JobSpec, RegistryChange
from tidelog.jobs.registry.status import decoded
from tidelog.jobs.registry.targets import describe, jobs_of
from tidelog.operating.tables import counted, table
from tidelog.operating.terminal import echo
from tidelog.operating.watch import StatusOptions, show_status, status_options
from tidelog.options.start import StartPosition
from tidelog.transport.access import Access
from tidelog.transport.call import Call

Ask = Drive
POLL_MS: Final = 5_000  # timeout of one TREAD of events
LEAVING: Final = 60.0  # seconds within which a removed job must end


@click.group("jobs")
def jobs_commands() -> None:
    """Manage jobs: functions over topics, run by Spark, exactly once.

    \b
      tidelog jobs add shop.jobs:count              register a job
      tidelog jobs add --all shop.jobs              register all jobs of a module
      tidelog jobs engine --state-dir /var/lib/jobs run jobs here; any number of engines share them
      tidelog jobs status --watch                   show the state and the progress of each job
      tidelog jobs logs count -f                    show starts, and failures with their tracebacks
      tidelog jobs pause count                      start no new epochs
      tidelog jobs resume count                     resume a paused job, or retry a failed one
      tidelog jobs reset count --to earliest        process everything again, with empty state
      tidelog jobs remove count

    A job is a function with @job in a Python module. "add" registers it in a stream on the server, which all engines
    follow. The current directory is searched first for modules.
    """


jobs_commands.add_command(engine)
_path = click.option("--path", multiple=True, type=click.Path(exists=True, file_okay=False),
                     help="A directory to search for modules before the current one. May be repeated.")  # fmt: skip


@jobs_commands.command()
@click.argument("targets", nargs=-1, metavar="[MODULE:JOB]...")
@click.option("--all", "module", metavar="MODULE", help="Add all jobs of this module.")
@click.option("--store", default="", metavar="URL", help="Object store for snapshots. Default: the engine's.")
@_path
@url_option
def add(targets: tuple[str, ...], module: str | None, store: str, path: tuple[str, ...], url: str) -> None:
    """Add jobs by MODULE:JOB, such as shop.jobs:count. Engines start them within seconds.

    An existing job with this name gets the new code and continues with its state, from the next epoch. The command
    fails if the inputs, the number of partitions or the type of the state differ. Engines reload the job's module and
    the changed modules of its directory; restart them if other packages have changed.

    Before anything is registered, the modules are imported, topics are compared with the server (missing ones are
    created), and the object store must be writable. All inputs must have the same number of partitions.
    """
    check_extra()
    if bool(targets) == (module is not None):
        raise click.UsageError("specify jobs as MODULE:JOB, or --all MODULE")
    with asking(url) as ask:
        found = _found(targets, module, _paths(path))
        if store:
            for _, job in found:
                snapshots.check(store, job.name)
        specs = [ask(describe(job, target, store)) for target, job in found]
        for spec in specs:
            registered, changed = _change(ask, registry.add(spec))
            echo(_summary(registered.specs[spec.name], changed))


@jobs_commands.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@url_option
def remove(name: str, yes: bool, url: str) -> None:
    """Remove the job NAME. Its outputs remain. Engines delete its snapshots and states, a minute later at the earliest.

    Its progress is deleted: if it is added again, it starts from scratch, as another generation. After it has ended,
    its groups on its inputs are destroyed, so that they no longer protect entries from eviction.
    """
    with asking(url) as ask:
        known: JobRegistry = ask(registry.read())
        # an earlier removal may have been interrupted
        spec: JobSpec | None = None if name in known.specs else ask(registry.removed(name))
        if spec is None:
            spec = known.find(name)
            if not yes:
                click.confirm(f"Remove {name} and its progress?", abort=True)
            _change(ask, registry.remove(name))
        engine_name = _until_ended(lambda: ask(owner(name)))
        if engine_name:
            raise click.ClickException(
                f"{name} is removed, but engine {engine_name} has not ended it yet, so its group"
                f" {keys.group(name)!r} still protects entries of its inputs. Repeat the command later: tidelog jobs"
                f" remove {name}"
            )
        ask(_cleared(spec))
    echo(f"{name}: removed")


@jobs_commands.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@url_option
def pause(names: tuple[str, ...], url: str) -> None:
    """Start no new epochs of jobs until "tidelog jobs resume". Unread entries are not evicted."""
    with asking(url) as ask:
        for name in names:
            _, changed = _change(ask, registry.pause(name))
            echo(f"{name}: paused" if changed else f"{name}: paused already")


@jobs_commands.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@url_option
def resume(names: tuple[str, ...], url: str) -> None:
    """Resume paused jobs, and retry failed ones."""
    with asking(url) as ask:
        for name in names:
            _change(ask, registry.resume(name))
            echo(f"{name}: resumed")


@jobs_commands.command()
@click.argument("name")
@reset_options
@click.option("--target", metavar="MODULE:JOB", help="Use this function for the new generation.")
@click.option("--store", default="", metavar="URL", help="Use another object store.")
@_path
@url_option
def reset(
    name: str, to: StartPosition, target: str | None, store: str, dry_run: bool, yes: bool, path: tuple[str, ...],
    url: str,
) -> None:  # fmt: skip
    """Restart the job NAME as a new generation with empty state.

    \b
    Values of --to:
    earliest   from the oldest entry
    latest     after the newest entry: only entries that are sent from now on
    ID         such as 1795354158671.0: after this entry
    TIME       such as 2026-11-21T08:00Z: from the first entry at or after that time

    Before you confirm, the command shows how many entries will be read again or skipped.

    Existing output remains, and entries that are read again produce output again. After the reset, the former
    generation can't publish anything, even if it is still running.
    """
    check_extra()
    with asking(url) as ask:
        old: JobSpec = ask(registry.read()).find(name)
        if dry_run or not yes:
            print_resets(
                ask(preview_reset(old, to)),
                {"partition": lambda each: str(each.partition), "input": lambda each: each.stream}, {},
            )  # fmt: skip
        if dry_run:
            return
        job = load(target or old.target, _paths(path))
        if job.name != name:
            raise JobError(f"{target} is the job {job.name!r}, not {name!r}")
        spec = ask(describe(job, target or old.target, store, ask(resets.begin(to))))
        if not yes:
            click.confirm(f"Reset {name} to {to} and delete its state?", abort=True)
        registered, _ = _change(ask, registry.reset(spec))
        _clear_former(ask, old, registered.specs[name])
        echo(f"{name}: generation {registered.specs[name].generation}, from {to}")


@jobs_commands.command("list")
@url_option
def list_jobs(url: str) -> None:
    """List the registered jobs."""
    with asking(url) as ask:
        found: JobRegistry = ask(registry.read())
    if not found.specs:
        echo("no jobs; add one: tidelog jobs add module:job")
        return
    rows = [
        [
            name, spec.kind, spec.target, spec.version, str(spec.generation), str(spec.partitions),
            ", ".join(spec.inputs) or "-", ", ".join(spec.outputs) or "-", spec.state or "-",
            "paused" if spec.paused else "",
        ]
        for name, spec in sorted(found.specs.items())
    ]  # fmt: skip
    head = ["job", "kind", "function", "version", "generation", "partitions", "reads", "writes", "state", ""]
    table(head, rows)


@jobs_commands.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@status_options
@url_option
def status(names: tuple[str, ...], watch: bool, interval: float, as_json: bool, url: str) -> None:
    """Show the state and the progress of jobs; with one NAME, all details of this job.

    \b
    status     starting, running, recovering, failing (is retried), failed ("tidelog jobs logs" shows the error,
               "tidelog jobs resume" retries), paused, or no engine (none has claimed the job yet)
    lag        unread entries of its inputs
    age        the age of the oldest unread entry
    in/s       rows read per second, in the last few seconds; out/s: rows written
    dead letters   open dead letters in its dead-letter queues
    snapshot   the age of the last snapshot
    """
    with asking(url) as ask:
        show_status(
            StatusOptions(watch, interval, as_json), lambda: ask(overview(names)),
            lambda seen: print_job(seen.jobs[0], seen.at) if len(names) == 1 else print_jobs(seen),
            lambda seen: seen.to_json(),
        )  # fmt: skip


@jobs_commands.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Also show new events as they arrive, until Ctrl-C.")
@click.option("-n", "--lines", "number", type=click.IntRange(0), default=20, show_default=True,
              help="Number of events.")  # fmt: skip
@url_option
def logs(name: str, follow: bool, number: int, url: str) -> None:
    """Show the events of the job NAME: starts, moves to other engines, failures with their tracebacks, recoveries, and
    failed snapshots. The newest thousand events are retained, also those of a removed job.
    """
    key = keys.events(name)
    with asking(url, POLL_MS) as ask:
        newest: list[Entry] = ask(single(calls.trevrange(key, count=number))) if number else []
        if not newest and not follow:
            ask(registry.read()).find(name)
        for entry in reversed(newest):
            echo(_event(entry))
        last: StreamId = newest[0].id if newest else ask(single(calls.tread(key, count=0, with_info=True))).info.last
        try:
            while follow:
                for entry in ask(single(calls.tread(key, last, block=POLL_MS))).entries:
                    echo(_event(entry))
                    last = entry.id
        except KeyboardInterrupt:
            return


def _event(entry: Entry) -> str:
    facts = entry.text("backslashreplace")
    first, newline, rest = facts.get("text", "").partition("\n")
    kind, engine_name = facts.get("kind", facts.get("event", "-")), facts.get("engine", "-")
    line = f"{entry.id.time:%Y-%m-%d %H:%M:%S}Z  {engine_name}  {kind}  {first}".rstrip()
    return line + newline + "\n".join(f"    {each}" for each in rest.splitlines())


# -- shared by the commands ------------------------------------------------------------------------------------
@contextmanager
def asking(url: str, block_ms: int = 0) -> Iterator[Ask]:
    """Yield a function that drives operations on the server. Errors become error messages of the CLI."""
    with reported(url), driving(Access.of(url), "tidelog-jobs-program", (JobError,), block_ms) as ask:
        yield ask


def _change(ask: Ask, decide: Decide) -> tuple[JobRegistry, RegistryChange | None]:
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    done: tuple[JobRegistry, RegistryChange | None] = ask(registry.change(decide, by), alone=True)
    return done


def _found(targets: Sequence[str], module: str | None, path: Sequence[str]) -> list[tuple[str, Job]]:
    if module is None:
        return [(target, load(target, path)) for target in targets]
    found = jobs_of(load_module(module, path))
    if not found:
        raise JobError(f"the module {module!r} has no jobs: declare one with @job(...)")
    return [(f"{module}:{attribute}", job) for attribute, job in found]


def _summary(spec: JobSpec, changed: RegistryChange | None) -> str:
    reads, writes = ", ".join(spec.inputs) or "nothing", ", ".join(spec.outputs) or "nothing"
    what = "unchanged" if changed is None else changed.kind
    parts = counted(spec.partitions, "partition")
    return f"{spec.name}: {what}; reads {reads}, writes {writes}, {parts}, version {spec.version}"


def _cleared(spec: JobSpec) -> Steps[None]:
    """Delete the progress of a job that has ended."""
    name, partitions = spec.name, range(spec.partitions)
    gone = [keys.status(name), keys.snapshots(name), keys.origin(name, spec.generation)]
    gone += commit_of(name, spec.generation).keys
    gone += [key(name, at) for key in (keys.log, keys.recovery) for at in partitions]
    requests: list[Call[Any]] = [Call(("UNLINK", *gone), int)]
    checked((yield [*requests, *_destroyed(name, _streams(spec))]))


def _clear_former(ask: Ask, old: JobSpec, new: JobSpec) -> None:
    """Delete what the new generation of a job does not use; otherwise it would never be deleted."""
    name = new.name
    ask(resets.clear(old, new))
    unread = _streams(old) - _streams(new)
    if not unread:
        return

    def runs() -> str:
        status = decoded(ask(single(strings.get(keys.status(name)))))
        return "" if status is not None and status.generation >= new.generation else ask(owner(name))

    engine_name = _until_ended(runs)  # a query moves its group when it ends
    if engine_name:
        echo(f"Engine {engine_name} has not ended generation {old.generation} yet", err=True)
    for call in _destroyed(name, unread):
        ask(single(call))


def _streams(spec: JobSpec) -> set[str]:
    return {f"{topic}:{at}" for topic in spec.inputs for at in range(spec.partitions)}


def _destroyed(name: str, streams: set[str]) -> list[Call[Any]]:
    return [calls.tgroup_destroy(stream, keys.group(name)) for stream in sorted(streams)]


def _until_ended(runs: Callable[[], str]) -> str:
    """Wait until no engine runs a job. Returns the engine that still runs it after LEAVING seconds."""
    until = time.monotonic() + LEAVING
    with Progress() as progress:
        while (engine_name := runs()) and (left := until - time.monotonic()) > 0:
            progress.show_text(f"waiting for engine {engine_name} to end the job: {left:.0f} s at most")
            time.sleep(0.1)
    return engine_name


def _paths(path: Sequence[str]) -> list[str]:
    return [*map(os.path.abspath, path), os.getcwd()]
