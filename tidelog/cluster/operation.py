"""``tidelog cluster up`` and ``down``."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidelog.cluster import ports
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.folder import ClusterFolder
from tidelog.cluster.member import server_words
from tidelog.cluster.plan import ClusterPlan
from tidelog.cluster.processes import RunningProcess
from tidelog.cluster.settings import config_lines
from tidelog.cluster.supervisor import ClusterSupervisor
from tidelog.operating.systemd import notify
from tidelog.operating.tables import counted
from tidelog.serverprogram import server_command, server_environment

PORT: Final = 7000
BIND: Final = "127.0.0.1"
NAMED: Final = 3  # members in the URL that is printed; a client finds the others
STARTS_WITHIN: Final = 60.0  # s for a program that checks the settings
Say = Callable[[str], None]


@dataclass(frozen=True)
class UpOptions:
    """The options of ``cluster up``. None: as before, or the default for a new cluster."""

    directory: Path
    groups: int | None = None  # default: one for each core
    replicas: int | None = None  # of each group; default: 0
    port: int | None = None  # of the first member
    bind: str | None = None
    settings: Mapping[str, tuple[str, ...]] | None = None  # added to those of the plan


def up(options: UpOptions, say: Say, progress: Say) -> None:
    """Run a cluster until SIGTERM, SIGINT or SIGHUP. Raises ClusterError."""
    folder = ClusterFolder(options.directory)
    folder.exists()
    with folder.supervised():
        before = folder.load() if folder.exists() else None
        plan = _planned(options, before)
        adopted = _check(folder, before, plan)
        if plan != before:
            folder.save(plan)
        for line in _introduction(folder, before, plan, adopted):
            say(line)

        def started() -> None:
            for line in _addresses(folder, plan):
                say(line)
            notify("READY=1")

        with asyncio.Runner() as runner:
            runner.run(ClusterSupervisor(folder, plan, say, progress).run(started))
    say("Stopped.")


def _planned(options: UpOptions, before: ClusterPlan | None) -> ClusterPlan:
    """Return the plan of a cluster. Raises ClusterError."""
    if before is None:
        cores = len(os.sched_getaffinity(0))
        new = ClusterPlan(options.port or PORT, options.bind or BIND, 0, settings=options.settings or {})
        return new.extended(options.groups or cores, options.replicas or 0)
    groups, replicas = options.groups, options.replicas
    plan = before.extended(
        len(before.groups) if groups is None else groups, before.replicas if replicas is None else replicas
    )
    return replace(
        plan, port=options.port or plan.port, bind=options.bind or plan.bind,
        settings={**plan.settings, **(options.settings or {})},
    )  # fmt: skip


def _check(folder: ClusterFolder, before: ClusterPlan | None, plan: ClusterPlan) -> list[str]:
    """Return the members that run already. Raises ClusterError if the members can't be started."""
    running = [each.name for each in plan.members if _runs(folder, each.name)]
    if running and before is not None:
        changed = [
            option
            for option, same in (
                ("--port", before.port == plan.port), ("--bind", before.bind == plan.bind),
                ("--set", before.settings == plan.settings),
            )
            if not same
        ]  # fmt: skip
        if changed:
            raise ClusterError(
                f"{', '.join(running[:3])} are running with other settings, so {changed[0]} would not apply to them:"
                f" stop them first (tidelog cluster down --dir {folder.path})"
            )
    if before is not None and before.created and not (folder.path / "coordinator").is_dir():
        raise ClusterError(
            f"{folder.path / 'coordinator'} is missing, which has the state of the groups and the map: restore it from"
            " a backup of the directory"
        )
    ports.check(plan.bind, (each for each in plan.members if each.name not in running))
    _check_settings(folder, plan)
    return running


def _runs(folder: ClusterFolder, member: str) -> bool:
    process = folder.member(member)
    if process is not None:
        process.close()
    return process is not None


def _check_settings(folder: ClusterFolder, plan: ClusterPlan) -> None:
    """Raise ClusterError if the server does not accept the settings."""
    words = server_words(folder, plan, plan.members[0])
    try:
        done = subprocess.run(
            [*server_command(), *words, "--test-config"], input=config_lines(plan.flags), capture_output=True,
            text=True, timeout=STARTS_WITHIN, env=server_environment(), check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(f"tidelog-server can't be started: {error}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("***")]
        why = "; ".join(said[-2:]) or f"exit code {done.returncode}"
        raise ClusterError(f"tidelog-server refuses the settings of the members: {why}")


def _introduction(
    folder: ClusterFolder, before: ClusterPlan | None, plan: ClusterPlan, adopted: list[str]
) -> list[str]:  # fmt: skip
    count = len(plan.groups)
    of = f"of {plan.replicas + 1} members" if plan.replicas else "of one member"
    doing = "Creating" if before is None else "Starting"
    lines = [f"{doing} a cluster in {folder.path}: {counted(count, 'group')} {of}"]
    if adopted:
        lines.append(f"{counted(len(adopted), 'member')} run already, and are supervised from now on")
    return lines


def _addresses(folder: ClusterFolder, plan: ClusterPlan) -> list[str]:
    """Return the lines about a cluster that runs."""
    urls = [ports.url(plan.bind, each.port) for each in plan.members]
    clients = ",".join([urls[0], *(url.removeprefix("redis://") for url in urls[1:NAMED])])
    where = shlex.quote(str(folder.path))
    return [
        f"Members  {len(urls)}, on {_ports(plan)}",
        f"Clients  {clients}",
        f"Status   tidelog cluster status --dir {where}",
        "Press Ctrl-C to stop.",
    ]


def _ports(plan: ClusterPlan) -> str:
    numbers = sorted(each.port for each in plan.members)
    return f"the ports {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"port {numbers[0]}"


# -- down ----------------------------------------------------------------------------------------------------------
def down(directory: Path, say: Say, progress: Say) -> None:
    """Stop a cluster that another process runs, or that runs without its supervisor. Raises ClusterError."""
    folder = ClusterFolder(directory)
    plan = folder.load()
    supervisor = folder.supervisor()
    if supervisor is not None:
        say(f"Stopping the cluster in {directory}, which process {supervisor.pid} runs ...")
        supervisor.send(signal.SIGTERM)
        asyncio.run(_until_stopped(folder, plan, supervisor, progress))
    with folder.supervised():
        left = asyncio.run(_stop_members(folder, plan, say, progress))
    if supervisor is None and not left:
        raise ClusterError(f"the cluster in {directory} does not run")
    say("Stopped.")


async def _until_stopped(folder: ClusterFolder, plan: ClusterPlan, process: RunningProcess, progress: Say) -> None:
    ending = asyncio.create_task(process.ended())
    while not ending.done():
        running = sum([_runs(folder, each.name) for each in plan.members])
        progress(f"stopping: {running} of {len(plan.members)} members are running")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.shield(ending)
    process.close()


async def _stop_members(folder: ClusterFolder, plan: ClusterPlan, say: Say, progress: Say) -> int:
    """Stop the members that run without a supervisor; return how many there were."""
    supervisor = ClusterSupervisor(folder, plan, say, progress)
    names = supervisor.adopt()
    if names:
        say(f"Stopping {counted(len(names), 'member')} without a supervisor ...")
    await supervisor.stop(names)
    return len(names)
