"""Imports the Job that ``module:attribute`` names, in the process that runs it."""

from __future__ import annotations

import importlib
import linecache
import sys
import threading
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from tidelog.jobs.code import Stamp, sources, stamps
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError

_Stamps = dict[str, Stamp]  # of the files of a job's code, by module
_imported: dict[str, tuple[ModuleType, _Stamps]] = {}  # by the name of a job's module: its state at the import
_tried: dict[tuple[str, str], _Stamps] = {}  # by target and version: the files that turned out to have another version
_loading: Final = threading.RLock()  # an engine loads jobs in several threads


class _NotThereError(JobError):
    """The module has no such job. It may have been added after the import."""


def load(target: str, path: Sequence[str] = (), version: str = "") -> Job:
    """Return the job ``target``, which is ``module:attribute``. The directories in ``path`` are searched first.

    If this process has imported another ``version`` of the job, or its module without the job, the files of its code
    that have changed are imported again (``tidelog.jobs.code``), unless the same files were tried before. The version
    of the result is not checked: its own ``version`` and the markers identify the code that ran.

    Raises JobError if there is no such job, or if its module can't be imported; the text contains the traceback.
    """
    name = target.partition(":")[0]
    with _loading:
        try:
            found = _load(target, path)
        except _NotThereError:
            module = sys.modules[name]
            if _imported.get(name) == (module, stamps(module)):
                raise
            _forget(name)
            found = _load(target, path)
        if not version or found.version == version:
            return found
        now = stamps(sys.modules[name])
        if (target, version) in _tried and _tried[target, version] == now:
            return found
        _forget(name)
        found = _load(target, path)
        if found.version != version:
            _tried[target, version] = now
        return found


def _forget(name: str) -> None:
    """Unload a job's module, and all of its code that has changed or imports something that has changed."""
    importlib.invalidate_caches()
    linecache.checkcache()
    module = sys.modules[name]
    imported, before = _imported.pop(name, (None, {}))
    before = before if imported is module else {}
    code = sources(module)
    stale = {each for each, source in code.items() if before.get(each) != source.stamp} | {name}
    while more := {each for each, source in code.items() if each not in stale and source.imports & stale}:
        stale |= more
    for each in stale:
        gone = sys.modules.pop(each, None)
        package, _, part = each.rpartition(".")
        around = sys.modules.get(package)
        if around is not None and vars(around).get(part) is gone:
            delattr(around, part)  # or ``from package import part`` would find the old module


def _load(target: str, path: Sequence[str]) -> Job:
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise JobError(f"{target!r} does not name a job: use module:attribute, such as clicks.jobs:count")
    found: Any = load_module(name, path, f"job {target!r}: ")
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _NotThereError(f"job {target!r}: the module {name} has no {attribute!r}")
        found = getattr(found, part)
    if not isinstance(found, Job):
        raise _NotThereError(f"job {target!r}: it is a {type(found).__name__}, not a job: declare it with @job(...)")
    return found


def load_module(name: str, path: Sequence[str] = (), whose: str = "") -> ModuleType:
    """Import a module like ``load``. Raises JobError with ``whose``, at the start of its text, and the traceback."""
    missing = [folder for folder in path if folder not in sys.path]
    sys.path[:0] = missing
    if missing:
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise JobError(f"{whose}the module {name} cannot be imported:\n{_trace(error)}") from None
        searched = ", ".join(path) or "the Python installation"
        raise JobError(
            f"{whose}there is no module {error.name!r} in {searched}. Its directory must be on the "
            "path of the job, on every machine that runs tasks"
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may raise anything
        raise JobError(f"{whose}the module {name} cannot be imported:\n{_trace(error)}") from None
    if name not in _imported or _imported[name][0] is not module:
        _imported[name] = module, stamps(module)
        for found in vars(module).values():
            if isinstance(found, Job):
                _ = found.version  # computed now, because the files may change
    return module


def _trace(error: BaseException) -> str:
    """Return the traceback, without the frames of this file and of importlib."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == __file__ or "importlib" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
