"""``module:attribute`` becomes a Job, in the process that runs it."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError

_Stamp = tuple[int, int, int]  # of a module's file: inode, size, time
_tried: dict[tuple[str, str], _Stamp | None] = {}  # by target and version: the file that turned out to be another one


def load(target: str, path: Sequence[str] = (), version: str = "") -> Job:
    """The job at ``target``, ``module:attribute``, looked for in the folders of ``path`` before others.

    If this process has imported another ``version`` of it, its module is imported anew, unless its file is one that was
    tried in vain: it may have changed since. What it imports stays as it is. Whether that is the version wanted is not
    checked: markers say what ran.

    JobError where there is none, or where its module can't be imported; the text has the traceback.
    """
    found = _load(target, path)
    if version and found.version != version:
        name = target.partition(":")[0]
        stamp = _stamp(name)
        if (target, version) in _tried and _tried[target, version] == stamp:
            return found
        importlib.invalidate_caches()
        linecache.checkcache()
        del sys.modules[name]
        found = _load(target, path)
        if found.version != version:
            _tried[target, version] = stamp
    return found


def _stamp(module: str) -> _Stamp | None:
    """By which a module's file is known to be the same; None where it has none."""
    try:
        about = os.stat(getattr(sys.modules[module], "__file__", None) or "")
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _load(target: str, path: Sequence[str]) -> Job:
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise JobError(f"{target!r} does not name a job: write module:attribute, such as clicks.jobs:count")
    found: Any = load_module(name, path, f"job {target!r}: ")
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise JobError(f"job {target!r}: the module {name} has no {attribute!r}")
        found = getattr(found, part)
    if not isinstance(found, Job):
        raise JobError(f"job {target!r}: that is {type(found).__name__}, not a job: declare it with @job(...)")
    return found


def load_module(name: str, path: Sequence[str] = (), whose: str = "") -> ModuleType:
    """Import a module, as ``load`` does. JobError, which begins with ``whose``, if it can't be; with its traceback."""
    missing = [folder for folder in path if folder not in sys.path]
    sys.path[:0] = missing
    if missing:
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise JobError(f"{whose}the module {name} can't be imported:\n{_trace(error)}") from None
        looked = ", ".join(path) or "where Python is installed"
        raise JobError(
            f"{whose}there is no module {error.name!r} in {looked}. The folder that it is in must be on the "
            "path of the job, on every machine that runs tasks"
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises
        raise JobError(f"{whose}the module {name} can't be imported:\n{_trace(error)}") from None
    for found in vars(module).values():
        if isinstance(found, Job):
            _ = found.version  # from the file, which may change later
    return module


def _trace(error: BaseException) -> str:
    """The traceback, without the frames of this file and of importlib."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == __file__ or "importlib" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
