"""Which tidelog is measured: an installed one where there is one, else the checkout.

Python puts the current directory first on its path, so ``python -m benchmarks`` in a checkout would always import the
checkout's interpreted modules. An installation is recognised by the server's parts inside ``_tidelog_server``; an
editable one has none and runs the checkout. The environment variable TIDELOG_BENCH_ROOT names another folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
VARIABLE = "TIDELOG_BENCH_ROOT"


def find(path: Sequence[str], environment: Mapping[str, str]) -> Path:
    """The folder from which tidelog and ``_tidelog_server`` are imported."""
    if named := environment.get(VARIABLE):
        return Path(named).resolve()
    for entry in path:
        if Path(entry, "_tidelog_server", "respserver").is_dir():
            return Path(entry).resolve()
    return CHECKOUT


ROOT = find(sys.path, os.environ)
#: PYTHONPATH of processes that import tidelog, and maybe ``benchmarks``.
PYTHONPATH = os.pathsep.join(map(str, dict.fromkeys((ROOT, CHECKOUT))))
#: Where the server's parts are packages of the top level.
PARTS = ROOT / "_tidelog_server" if (ROOT / "_tidelog_server" / "respserver").is_dir() else ROOT


def import_from(folder: Path) -> None:
    """Let this process import from that folder first, and from the checkout last. To be called before the imports."""
    sys.path[:] = [str(folder), *(p for p in sys.path if Path(p).resolve() not in (folder, CHECKOUT)), str(CHECKOUT)]


def described() -> str:
    """``ROOT``, for people."""
    return f"the checkout {ROOT}" if ROOT == CHECKOUT else str(ROOT)
