"""``tidelog jobs``: which jobs there are, what they are doing, and what people do to them."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import click

from tidelog.cli.connect import url_option
from tidelog.cli.engine import engine
from tidelog.cli.jobstatus import print_job, print_jobs
from tidelog.cli.output import echo
from tidelog.cli.report import table
from tidelog.client import calls, strings
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked, single
from tidelog.jobs import JobError, keys, snapshots
from tidelog.jobs.declare import Job
from tidelog.jobs.engine.connection import ANSWER_MS, LOST, EngineConnection
from tidelog.jobs.loading import load, load_module
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.overview import overview, owner
from tidelog.jobs.registry.registry import Decide, JobRegistry, JobSpec, RegistryChange
from tidelog.jobs.registry.status import decoded
from tidelog.jobs.registry.targets import describe, jobs_of
from tidelog.transport.access import Access
from tidelog.transport.call import Call

Ask = Callable[[Steps[Any]], Any]
POLL_MS: Final = 5_000  # that one TREAD of events waits
LEAVING: Final = 60.0  # seconds that a removed job may take to end


@click.group("jobs")
def jobs_commands() -> None:
    """Functions over topics, run by Spark, exactly once: what runs, and what you do to it.

    \b
      tidelog jobs add shop.jobs:count              from now on there is this job
      tidelog jobs add --all shop.jobs              all jobs of a module
      tidelog jobs engine --state-dir /var/lib/jobs run jobs, here; any number of engines share them
      tidelog jobs status --watch                   what each is doing, and how far it is
      tidelog jobs logs count -f                    starts, failures with their tracebacks
      tidelog jobs pause count                      no new epoch, until
      tidelog jobs resume count                     also for a job that has failed: it is tried again
      tidelog jobs reset count --from earliest      everything once more, with empty state
      tidelog jobs remove count

    A job is a function with @job in a Python module. "add" writes into the registry, a stream on the server; engines
    follow it. The current folder is looked in first for modules.
    """


jobs_commands.add_command(engine)
_url = url_option
_path = click.option("--path", multiple=True, type=click.Path(exists=True, file_okay=False),
                     help="A folder to look for modules in, before the current one. May be repeated.")  # fmt: skip


@jobs_commands.command()
@click.argument("targets", nargs=-1, metavar="[MODULE:JOB]...")
@click.option("--all", "module", metavar="MODULE", help="All jobs of this module.")
@click.option("--store", default="", metavar="URL", help="Object store for snapshots; default: the engine's.")
@_path
@_url
def add(targets: tuple[str, ...], module: str | None, store: str, path: tuple[str, ...], url: str) -> None:
    """Add jobs: MODULE:JOB, such as shop.jobs:count. Engines begin them within seconds.

    A job of this name that is there already gets the new code and goes on with its state, from the next epoch. One with
    other inputs, another number of partitions, or another type of state can't: that is refused. Engines import the
    module anew for that, but not what it imports: restart them where that is what has changed.

    Before anything is written: modules are imported, topics are compared with the server (those that aren't there are
    made), inputs must have as many partitions each, and the object store must be writable.
    """
    if bool(targets) == (module is not None):
        raise click.UsageError("name jobs, MODULE:JOB, or say --all MODULE")
    with asking(url) as ask:
        found = _found(targets, module, _paths(path))
        if store:
            for _, job in found:
                snapshots.check(store, job.name)
        specs = [ask(describe(job, target, store)) for target, job in found]
        for spec in specs:
            registered, changed = _change(ask, registry.add(spec))
            echo(_told(registered.specs[spec.name], changed))


@jobs_commands.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
@_url
def remove(name: str, yes: bool, url: str) -> None:
    """Remove the job NAME. What it has put out stays. Engines remove its snapshots and states, from a minute later on.

    Its progress is forgotten: added again, it begins anew, as another generation. Its groups on its inputs are
    destroyed when it has ended, so that they hold no entries back any more.
    """
    with asking(url) as ask:
        known: JobRegistry = ask(registry.read())
        # one that was removed before may have left something, where that was interrupted
        spec: JobSpec | None = None if name in known.specs else ask(registry.removed(name))
        if spec is None:
            spec = known.find(name)
            if not yes:
                click.confirm(f"Remove {name}, and forget how far it is?", abort=True)
            _change(ask, registry.remove(name))
        engine_name = _until_ended(lambda: ask(owner(name)))
        if engine_name:
            raise click.ClickException(
                f"{name} is removed. But engine {engine_name} has not ended it yet, so its group"
                f" {keys.group(name)!r} is still on its inputs, and holds entries back. Say it again later: tidelog"
                f" jobs remove {name}"
            )
        ask(_cleared(spec))
    echo(f"{name}: removed")


@jobs_commands.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_url
def pause(names: tuple[str, ...], url: str) -> None:
    """Let jobs begin no new epoch, until "tidelog jobs resume". Their inputs wait: they are not evicted."""
    with asking(url) as ask:
        for name in names:
            _, changed = _change(ask, registry.pause(name))
            echo(f"{name}: paused" if changed else f"{name}: paused already")


@jobs_commands.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_url
def resume(names: tuple[str, ...], url: str) -> None:
    """Let jobs go on: those that are paused, and those that have failed, which are tried again."""
    with asking(url) as ask:
        for name in names:
            _change(ask, registry.resume(name))
            echo(f"{name}: resumed")


@jobs_commands.command()
@click.argument("name")
@click.option("--from", "start", required=True, metavar="earliest|latest|TIME", help="Where it begins.")
@click.option("--target", metavar="MODULE:JOB", help="Another function than before.")
@click.option("--store", default="", metavar="URL", help="Another object store than before.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@_path
@_url
def reset(
    name: str, start: str, target: str | None, store: str, yes: bool, path: tuple[str, ...], url: str
) -> None:  # fmt: skip
    """Begin the job NAME anew: another generation, with empty state.

    \b
    earliest   with the oldest entries there are
    latest     with what is sent from now on
    TIME       such as 2026-11-21T08:00Z: with entries from then on

    What was put out stays, and from "earliest" it is put out once more. Nothing of the former generation is published
    from this moment, whatever still runs.
    """
    begin = _start(start)
    with asking(url) as ask:
        old: JobSpec = ask(registry.read()).find(name)
        job = load(target or old.target, _paths(path))
        if job.name != name:
            raise JobError(f"{target} is the job {job.name!r}, not {name!r}")
        if begin == "latest":
            begin = _iso(ask(single(strings.server_time())))
        spec = ask(describe(job, target or old.target, store, begin))
        if not yes:
            click.confirm(f"Reset {name} to {start}, and forget its state?", abort=True)
        registered, _ = _change(ask, registry.reset(spec))
        _clear_former(ask, old, registered.specs[name])
        echo(f"{name}: generation {registered.specs[name].generation}, from {start}")


@jobs_commands.command("list")
@_url
def list_jobs(url: str) -> None:
    """List the jobs of the registry."""
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
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each look.")
@_url
def status(names: tuple[str, ...], watch: bool, interval: float, as_json: bool, url: str) -> None:
    """Show what jobs are doing, and how far they are; with one NAME, everything about it.

    \b
    state      starting, running, recovering; failing: it is tried again; failed: "tidelog jobs logs" says why, and
               "resume" tries again; paused; no engine: none has taken it (yet)
    behind     entries of its inputs that it has not read
    age        of the oldest of them
    in/s       rows that it read and put out, in the last seconds
    snapshot   age of the last one
    """
    with asking(url) as ask:
        try:
            while True:
                seen = ask(overview(names))
                if watch and not as_json and sys.stdout.isatty():
                    click.clear()
                if as_json:
                    echo(seen.written())
                elif len(names) == 1:
                    print_job(seen.jobs[0], seen.at)
                else:
                    print_jobs(seen)
                if not watch:
                    return
                if not as_json:
                    echo()
                time.sleep(interval)
        except KeyboardInterrupt:
            return


@jobs_commands.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Then new ones as they come, until Ctrl-C.")
@click.option("-n", "--lines", "number", type=click.IntRange(0), default=20, show_default=True, help="The newest.")
@_url
def logs(name: str, follow: bool, number: int, url: str) -> None:
    """Show what happened to the job NAME: starts, moves, failures with their tracebacks, recoveries, snapshots that
    failed. The newest thousand are kept, also of a job that was removed.
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


# -- what the commands share -----------------------------------------------------------------------------------
@contextmanager
def asking(url: str, block_ms: int = 0) -> Iterator[Ask]:
    """What drives operations on the server, with errors as messages of the program."""
    try:
        access = Access.of(url)
        line = EngineConnection(access, "tidelog-jobs-program", ANSWER_MS + block_ms)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    try:
        yield line.drive
    except JobError as error:
        raise click.ClickException(str(error)) from None
    except LOST as error:
        if isinstance(error, OSError):
            raise click.ClickException(f"no answer from {access.places}: {error.__cause__ or error}") from None
        raise click.ClickException(f"the server replied: {error}") from None
    finally:
        line.close()


def _change(ask: Ask, decide: Decide) -> tuple[JobRegistry, RegistryChange | None]:
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    done: tuple[JobRegistry, RegistryChange | None] = ask(registry.change(decide, by))
    return done


def _found(targets: Sequence[str], module: str | None, path: Sequence[str]) -> list[tuple[str, Job]]:
    if module is None:
        return [(target, load(target, path)) for target in targets]
    found = jobs_of(load_module(module, path))
    if not found:
        raise JobError(f"the module {module!r} has no jobs: declare one with @job(...)")
    return [(f"{module}:{attribute}", job) for attribute, job in found]


def _told(spec: JobSpec, changed: RegistryChange | None) -> str:
    reads, writes = ", ".join(spec.inputs) or "nothing", ", ".join(spec.outputs) or "nothing"
    what = "unchanged" if changed is None else changed.kind
    parts = "1 partition" if spec.partitions == 1 else f"{spec.partitions} partitions"
    return f"{spec.name}: {what}; reads {reads}, writes {writes}, {parts}, version {spec.version}"


def _cleared(spec: JobSpec) -> Steps[None]:
    """Forget how far a job was: it has ended."""
    name, partitions = spec.name, range(spec.partitions)
    gone = [keys.status(name), keys.snapshots(name), keys.origin(name, spec.generation)]
    gone += [key(name, at) for key in (keys.log, keys.recovery) for at in partitions]
    asked: list[Call[Any]] = [Call(("UNLINK", *gone), int)]
    checked((yield [*asked, *_destroyed(name, _streams(spec))]))


def _clear_former(ask: Ask, old: JobSpec, new: JobSpec) -> None:
    """Forget what the new generation of a job does not go on with: the old one's would be there for ever."""
    name = new.name
    gone = [keys.origin(name, old.generation)]
    gone += [key(name, at) for key in (keys.log, keys.recovery) for at in range(new.partitions, old.partitions)]
    ask(single(Call(("UNLINK", *gone), int)))
    unread = _streams(old) - _streams(new)
    if not unread:
        return

    def runs() -> str:
        status = decoded(ask(single(strings.get(keys.status(name)))))
        return "" if status is not None and status.generation >= new.generation else ask(owner(name))

    engine_name = _until_ended(runs)  # a query moves its group when it ends
    if engine_name:
        echo(f"Engine {engine_name} has not ended generation {old.generation} yet", err=True)
    ask(_all(_destroyed(name, unread)))


def _streams(spec: JobSpec) -> set[str]:
    return {f"{topic}:{at}" for topic in spec.inputs for at in range(spec.partitions)}


def _destroyed(name: str, streams: set[str]) -> list[Call[Any]]:
    return [calls.tgroup_destroy(stream, keys.group(name)) for stream in sorted(streams)]


def _all(asked: Sequence[Call[Any]]) -> Steps[None]:
    checked((yield asked))


def _until_ended(runs: Callable[[], str]) -> str:
    """Wait until no engine runs a job; the one that still does, after LEAVING seconds."""
    until = time.monotonic() + LEAVING
    while (engine_name := runs()) and time.monotonic() < until:
        time.sleep(0.1)
    return engine_name


def _paths(path: Sequence[str]) -> list[str]:
    return [*map(os.path.abspath, path), os.getcwd()]


def _start(text: str) -> str:
    if text in ("earliest", "latest"):
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not earliest, latest or a time: {error}", param_hint="--from") from None
    if at.tzinfo is None:
        raise click.BadParameter(f"{text!r} needs its zone, such as {text}Z", param_hint="--from")
    return text


def _iso(ms: int) -> str:
    return datetime.fromtimestamp((ms + 1) / 1000, UTC).isoformat(timespec="milliseconds")
