"""Compiles modules at installation, and maps the packages of a checkout to those of an installation.

mypyc compiles the hot modules (HOT); otherwise the same files run interpreted. One C extension reads RESP into Arrow
buffers for Spark. Others encode and decode nodes, read sockets, prefetch the data of many keys, change strings, and
convert numbers to bytes. ``pip install .`` compiles if it finds a C compiler, and reports whether it did.
TIDELOG_COMPILE=1 makes a missing compiler an error; TIDELOG_COMPILE=0 disables compilation. An editable installation
runs the source files; it compiles the hot modules only with TIDELOG_COMPILE=1, next to the sources.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

# Top-level packages of a checkout that an installation keeps in a private package, because their names are too general
# for a user's site-packages (_tidelog_server/__init__.py).
HOME = "_tidelog_server"
PARTS = ("commands", "coordinator", "persistence", "replication", "resp", "respserver", "storage")

wish = os.environ.get("TIDELOG_COMPILE", "")
if wish not in ("", "0", "1"):
    sys.exit(f"TIDELOG_COMPILE is {wish!r}: it can be 1 (compile, or fail), 0 (don't), or empty (where it can be done)")
OPTIONAL = wish != "1"  # whether the build continues if a C extension cannot be compiled


def modules(folder: str) -> list[str]:
    """Return the paths of the modules in a directory and its subdirectories."""
    return sorted(str(path) for path in Path(folder).rglob("*.py") if path.name != "__init__.py")


def packages_of(*tops: str) -> list[str]:
    return find_packages(include=[pattern for top in tops for pattern in (top, f"{top}.*")])


# The modules on the path of a command. Compiling the others would only take time.
HOT = [
    "resp/decode.py", "resp/exact.py", "resp/inline.py", "resp/reply.py",
    *modules("storage"),
    "commands/context.py", "commands/declare.py", "commands/grammar.py", "commands/parse.py", "commands/slicing.py",
    "commands/session.py", "commands/slots.py",
    "commands/admin/connection.py", "commands/keys/counters.py", "commands/keys/setoptions.py",
    "commands/keys/strings.py", *modules("commands/redis_streams"), *modules("commands/streams"),
    "persistence/backlog.py", "persistence/checkpoint.py", "persistence/log.py", "persistence/wal.py",
    "respserver/runtime/data.py", "respserver/runtime/gates.py", "respserver/runtime/memory.py",
    "respserver/runtime/ownership.py", "respserver/server.py",
    "respserver/runtime/tickclient.py", "respserver/runtime/ticks.py", "respserver/runtime/withholding.py",
    "respserver/clients/clientsocket.py", "respserver/clients/connection.py", "respserver/clients/flowcontrol.py",
    "respserver/clients/input.py", "respserver/clients/output.py", "respserver/clients/sockets.py",
    "respserver/clients/state.py",
    *modules("respserver/execution"),
    "respserver/observe/slowlog.py", "respserver/observe/traffic.py",
]  # fmt: skip
if "TIDELOG_HOT" in os.environ:  # only these directories: a test of wheels that need not have all of them
    HOT = [path for folder in os.environ["TIDELOG_HOT"].split() for path in modules(folder)]
ROWS = Extension(
    "tidelog.arrow._rows", ["tidelog/arrow/_rows.c"],
    depends=[f"tidelog/arrow/_{name}.h" for name in ("arrow", "hash", "words")],  # which puts them into the sdist
    optional=OPTIONAL,
)  # fmt: skip
SECTION = Extension("tidelog.history._section", ["tidelog/history/_section.c"], optional=OPTIONAL)
CODED = Extension(
    f"{HOME}.storage.nodes._coded", ["storage/nodes/_coded.c"],
    depends=[f"storage/nodes/_coded{name}.h" for name in ("read", "write")],
    optional=OPTIONAL,
)  # fmt: skip
SOCKETS = Extension(f"{HOME}.respserver.clients._sockets", ["respserver/clients/_sockets.c"], optional=OPTIONAL)
SMALL = [  # numbers as bytes, for which a single client waits at each command; slots; prefetching; pages
    Extension(f"{HOME}.{name.replace('/', '.')}", [f"{name}.c"], optional=OPTIONAL)
    for name in (
        "commands/_slots", "persistence/_frame", "persistence/_overflow", "storage/keyspace/_prefetch",
        "storage/keyspace/_strings", "storage/model/_ids", "storage/model/_records",
    )
]  # fmt: skip


class Build(build_ext):
    """build_ext that first determines what can be compiled."""

    def run(self) -> None:
        editable = self.inplace or getattr(self, "editable_mode", False)
        if wish == "0":
            why_not = "TIDELOG_COMPILE=0"
        elif editable and wish != "1":
            why_not = "an editable install runs what is edited"
        else:
            why_not = self._missing()
        if why_not and wish == "1":
            sys.exit(f"TIDELOG_COMPILE=1, but nothing can be compiled here: {why_not}")
        if why_not:
            self.announce(f"tidelog: the hot modules run interpreted ({why_not})", logging.WARNING)
        else:
            from mypyc.build import mypycify

            self.announce(f"tidelog: compiling {len(HOT)} hot modules, which takes a minute or two", logging.WARNING)
            compiled = mypycify(
                ["--config-file=", "--explicit-package-bases", "--ignore-missing-imports", *HOT],
                opt_level="3", debug_level="0", group_name="tidelog",
            )  # fmt: skip
            for extension in compiled:  # including the library that they share
                # Python's own -Wall reports unavoidable warnings in generated code, and takes three quarters of gcc's
                # time.
                extension.extra_compile_args.append("-Wno-all")
                if not editable:
                    extension.name = f"{HOME}.{extension.name}"
            self.distribution.ext_modules += compiled
            self.swig_opts = None  # otherwise the second call of finalize_options() fails
            self.finalize_options()
        super().run()

    def _missing(self) -> str:
        """Return why nothing can be compiled; empty if it can."""
        with tempfile.TemporaryDirectory() as scratch:
            probe = Path(scratch, "probe.c")
            probe.write_text("#include <Python.h>\nint probe(void) { return PY_VERSION_HEX != 0; }\n")
            trial = build_ext(Distribution({"ext_modules": [Extension("probe", [str(probe)])]}))
            trial.build_lib = trial.build_temp = scratch
            try:
                trial.ensure_finalized()
                trial.run()
            except Exception as error:  # noqa: BLE001 - any error would stop the real build as well
                return f"no C compiler that finds Python.h: {error}"
        try:
            import mypyc.build  # noqa: F401
        except ImportError:
            return "mypy is not installed"
        return ""


setup(
    packages=[*packages_of(HOME, "pyspark_tidelog", "tidelog"), *(f"{HOME}.{name}" for name in packages_of(*PARTS))],
    package_dir={f"{HOME}.{part}": part for part in PARTS},
    ext_modules=[] if wish == "0" else [CODED, ROWS, SECTION, SOCKETS, *SMALL],
    cmdclass={"build_ext": Build},
)
