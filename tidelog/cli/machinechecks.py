"""The checks of ``tidelog doctor`` of this machine: software, limits, kernel settings, clock, disk, data directory.

Rule 1: a check changes nothing. The disk is measured with a file that has no name (O_TMPFILE) and disappears when it
        is closed.
Rule 2: a value that the system does not report is ``unknown``, which is not a problem: other systems than Linux, and
        containers, lack many of these files.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import tidelog
from tidelog.cli.diagnosis import Finding, judged
from tidelog.operating.tables import size
from tidelog.serverprogram import server_command, server_environment

OPEN_FILES: Final = 10_064  # maxclients, and what the server needs besides its clients
MAPS: Final = 65_530  # the default of Linux
SLOW_CLOCKS: Final = {"acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies", "xen"}  # a reading is a system call
# The server maps its files into memory and locks them, which these file systems do not support reliably.
REMOTE: Final = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb2", "smb3", "smbfs", "virtiofs"}
VOLATILE: Final = {"ramfs", "tmpfs"}
LEAST_FREE: Final = 1 << 30  # bytes
NEARLY_FULL: Final = 0.05  # share of the disk, unless more than AMPLE bytes are free
AMPLE: Final = 10 << 30  # bytes
SYNCS: Final = 20  # measured at most
MEASURING: Final = 1.0  # seconds that the measurement takes at most, apart from its last sync
SLOW_SYNC: Final = 0.010  # seconds; a solid state disk takes 0.1 to 3 ms
MARKER: Final = "tidelog.format"  # the file that every data directory has
REINSTALL: Final = (
    "install a compiled wheel, or a C compiler and Python's headers; then: pip install --force-reinstall tidelog"
)


def machine_findings(directory: Path | None, root: Path = Path("/")) -> Iterator[Finding]:
    """Run all checks. ``directory``: of the data; None: it is not on this machine. ``root``: of /proc and /sys."""
    yield from _software()
    yield from _limits()
    yield from _kernel(root)
    if directory is None:
        yield Finding("data directory", "unknown", "not found on this machine: name it with --dir, or run this there")
    else:
        yield from _data(directory)
        yield from _disk(directory, root)


# -- software ---------------------------------------------------------------------------------------------------------
def _software() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("versions", "ok", f"tidelog {tidelog.__version__}, Python {platform.python_version()}, {system}")
    yield _packages()
    yield _program()


def _packages() -> Finding:
    try:
        required = [text for text in metadata.requires("tidelog") or () if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        return Finding("packages", "unknown", "tidelog is not installed: it runs from a checkout")
    found, missing = [], []
    for requirement in required:
        name = requirement[: next((at for at, c in enumerate(requirement) if c in "<>=!~;[ "), len(requirement))]
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    value = ", ".join(found) + (f"; missing: {', '.join(missing)}" if missing else "")
    return judged("packages", value, f"pip install {' '.join(missing)}", problem=bool(missing))


def _program() -> Finding:
    """Start ``tidelog-server --version``: other processes cannot import the server's modules."""
    try:
        done = subprocess.run(
            [*server_command(), "--version"],
            env=server_environment(), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        text = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:] or [type(error).__name__]
        return Finding("server program", "problem", text[0], "pip install --force-reinstall tidelog")
    known = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return compiled_finding("server program", f"tidelog-server {known['v']}", known["compiled"], known["coded_nodes"])


def compiled_finding(check: str, name: str, compiled: str, coded_nodes: str) -> Finding:
    """Judge how a server is compiled. ``compiled``, ``coded_nodes``: "1" or "0", as in INFO."""
    how = "compiled" if compiled == "1" else "interpreted: appends reach 60 to 80 % of the speed"
    if coded_nodes != "1":
        how += "; without the C extension that encodes nodes"
    return judged(check, f"{name}, {how}", REINSTALL, problem=compiled != "1" or coded_nodes != "1")


# -- limits -----------------------------------------------------------------------------------------------------------
def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judged(
        "open files", f"{_limit(soft)}, at most {_limit(hard)} (of this shell)",
        f"ulimit -Hn {OPEN_FILES}, or LimitNOFILE={OPEN_FILES} in the systemd unit: maxclients is reduced otherwise",
        problem=hard != resource.RLIM_INFINITY and hard < OPEN_FILES,
    )  # fmt: skip
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    yield judged(
        "address space", _limit(space) if space == resource.RLIM_INFINITY else size(space),
        "ulimit -v unlimited: the server maps its files into memory. Set maxmemory to limit its memory",
        problem=space != resource.RLIM_INFINITY,
    )  # fmt: skip


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def _kernel(root: Path) -> Iterator[Finding]:
    yield _setting(
        root / "proc/sys/vm/max_map_count", "memory maps", lambda value: int(value) < MAPS,
        f"sysctl vm.max_map_count={MAPS}: allocations fail at the limit",
    )  # fmt: skip
    yield _setting(
        root / "proc/sys/vm/overcommit_memory", "memory overcommit", lambda value: value == "2",
        "sysctl vm.overcommit_memory=0: with 2, the system refuses memory while some is free, and the server ends",
    )  # fmt: skip
    yield _setting(
        root / "sys/kernel/mm/transparent_hugepage/enabled", "huge pages", lambda value: value == "always",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: huge pages increase latency and memory use",
    )  # fmt: skip
    yield _setting(
        root / "sys/devices/system/clocksource/clocksource0/current_clocksource", "clock source",
        lambda value: value in SLOW_CLOCKS,
        "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource: every command reads the clock",
    )  # fmt: skip


def _setting(file: Path, check: str, problem: Callable[[str], bool], action: str) -> Finding:
    try:
        value = file.read_text().strip()
    except OSError as error:
        return Finding(check, "unknown", f"{file}: {error.strerror}")
    if "[" in value:  # the chosen one of several words
        value = value.partition("[")[2].partition("]")[0]
    return judged(check, value, action, problem=problem(value))


# -- data directory ---------------------------------------------------------------------------------------------------
def _data(directory: Path) -> Iterator[Finding]:
    check = "data directory"
    above = _existing(directory)
    owner = f"chown it to the user of the server, which is {_user()} if you start it"
    if not directory.exists():
        value = f"{directory} does not exist yet"
        if not os.access(above, os.W_OK | os.X_OK):
            yield Finding(check, "problem", f"{value}, and {above} is not writable", f"create it, and {owner}")
        else:
            yield Finding(check, "ok", value)
    elif not directory.is_dir():
        yield Finding(check, "problem", f"{directory} is not a directory", "set dir to a directory")
    elif not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(check, "problem", f"{directory} is not readable and writable", owner)
    else:
        names = os.listdir(directory)
        if MARKER in names:
            yield Finding(check, "ok", f"{directory}, {size(_used(directory))}")
        else:
            others = sorted(name for name in names if name != "lost+found")
            value = f"{directory} has other files, such as {others[0]}" if others else f"{directory} is empty"
            yield judged(check, value, "set dir to a new directory", problem=bool(others))


def _existing(directory: Path) -> Path:
    """Return the directory, or the nearest one above it that exists."""
    return next(each for each in (directory, *directory.parents) if each.is_dir())


def _used(directory: Path) -> int:
    """Return the size of the files on the disk, in bytes. Files that are removed in the meantime do not count."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += 512 * os.lstat(os.path.join(folder, name)).st_blocks
            except OSError:
                continue
    return total


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container can run with any user ID
        return str(os.geteuid())


# -- disk -------------------------------------------------------------------------------------------------------------
class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    point: str  # where it is mounted
    device: str  # major:minor
    kind: str  # of the file system, such as ext4


def _disk(directory: Path, root: Path) -> Iterator[Finding]:
    there = _existing(directory)
    yield _file_system(there, root)
    yield _free(there)
    yield _sync_time(there)


def _file_system(there: Path, root: Path) -> Finding:
    mount = _mount_of(there, root)
    if mount is None:
        return Finding("file system", "unknown", "the system has no /proc/self/mountinfo")
    value = f"{mount.kind} at {mount.point}{_disk_kind(mount.device, root)}"
    if mount.kind in REMOTE or mount.kind.startswith("fuse."):
        action = "set dir to a local disk: memory maps and locks are not reliable on this file system"
    elif mount.kind in VOLATILE:
        action = "set dir to a disk: this file system is in memory, and its files are lost at a restart of the machine"
    elif mount.kind in ("overlay", "aufs"):
        action = "mount a volume at the data directory: the files of a container are lost with the container"
    else:
        action = ""
    return judged("file system", value, action, problem=bool(action))


def _mount_of(there: Path, root: Path) -> Mount | None:
    """Return the mount that contains a path: the last one with the longest mount point."""
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    path, found = there.resolve(), None
    for line in lines:
        words, _, rest = line.partition(" - ")
        _, _, device, _, point = words.split()[:5]
        point = point.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")  # \040: a blank
        if path.is_relative_to(point) and (found is None or len(point) >= len(found.point)):
            found = Mount(point, device, rest.split()[0])
    return found


def _disk_kind(device: str, root: Path) -> str:
    """Return the kind of a disk for the output; empty if the system does not report it."""
    block = root / "sys/dev/block" / device
    for queue in (block / "queue", block.resolve().parent / "queue"):  # of a disk, and of the disk of a partition
        try:
            rotates = (queue / "rotational").read_text().strip() == "1"
        except OSError:
            continue
        return ", rotating or virtual disk" if rotates else ", solid state or virtual disk"
    return ""


def _free(there: Path) -> Finding:
    disk = shutil.disk_usage(there)
    short = disk.free < LEAST_FREE or (disk.free < AMPLE and disk.free < NEARLY_FULL * disk.total)
    value = f"{size(disk.free)} of {size(disk.total)}"
    return judged("free space", value, "add space: the server refuses writes if the disk is full", problem=short)


def _sync_time(there: Path) -> Finding:
    """Measure how long a write of 4 KB and its sync take, which every append waits for (``appendfsync always``)."""
    try:
        taken = sync_times(there)
    except (OSError, AttributeError) as error:  # O_TMPFILE: not on every file system and system
        return Finding("sync", "unknown", f"not measured: {getattr(error, 'strerror', None) or error}")
    middle = statistics.median(taken)
    return judged(
        "sync", f"{1000 * middle:.2f} ms (median of {len(taken)}), {1000 * max(taken):.2f} ms at most",
        "use a faster disk, or set appendfsync everysec, which can lose the last second: each append waits for a sync",
        problem=middle > SLOW_SYNC,
    )  # fmt: skip


def sync_times(there: Path) -> list[float]:
    """Return the durations of syncs in a directory, in seconds. Raises OSError, or AttributeError if not on Linux."""
    file = os.open(there, os.O_TMPFILE | os.O_WRONLY, 0o600)
    try:
        taken: list[float] = []
        end = time.monotonic() + MEASURING
        while len(taken) < SYNCS and (not taken or time.monotonic() < end):
            began = time.perf_counter()
            os.write(file, bytes(4096))
            _sync(file)
            taken.append(time.perf_counter() - began)
        return taken
    finally:
        os.close(file)


def _sync(file: int) -> None:
    if sys.platform == "linux":
        os.fdatasync(file)
    else:
        os.fsync(file)
