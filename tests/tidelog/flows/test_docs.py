"""docs/flows.md: its files are right, its commands run, its tables name every key, route and command there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.tidelog import doctables
from tidelog.cli.flow import flow_commands
from tidelog.flows.declare import FlowOptions
from tidelog.flows.files import read_files
from tidelog.flows.files.document import PARTS, SECTIONS, FileHeader
from tidelog.flows.service import api, tap
from tidelog.flows.service.openapi import ROUTES
from tidelog.options.units import Duration
from tidelog.testing import Server, free_port

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "flows.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"# shows (.*)$")
LONG = 30.0  # s that a line may take to show what it should


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page has, under the names in their first lines."""
    for language, code in BLOCKS:
        if language in ("yaml", "python"):
            name = re.match(r"# (\S+)\n", code)
            assert name is not None, code
            (tmp_path / name[1]).write_text(code)
    return tmp_path


def rows(title: str) -> dict[str, str]:
    return doctables.rows(TEXT, title)


# -- what runs -----------------------------------------------------------------------------------------------
class Shell:
    """Runs lines as the page has them; those that end in & go on in the background."""

    def __init__(self, folder: Path, url: str) -> None:
        program = folder / "tidelog"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelog.cli "$@"\n')
        program.chmod(0o755)
        self._port = free_port()
        self._folder = folder
        self._environment = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TIDELOG_URL": url,
            "TIDELOG_FLOWS": f"http://127.0.0.1:{self._port}",
        }  # fmt: skip
        self._background: list[subprocess.Popen[bytes]] = []

    def __call__(self, line: str) -> None:
        """The port of the page may be taken here: another one is in its place."""
        line = line.replace("localhost:9898", f"localhost:{self._port}")
        if line.endswith(" &"):
            command = f"exec {line.removesuffix(' &')} --listen 127.0.0.1:{self._port}"
            self._background.append(
                subprocess.Popen(["sh", "-c", command], cwd=self._folder, env=self._environment, stdin=subprocess.PIPE)
            )
            return
        shown = SHOWN.search(line)
        end = time.monotonic() + LONG
        while True:
            done = subprocess.run(
                ["sh", "-c", line], cwd=self._folder, env=self._environment, timeout=LONG, capture_output=True,
                text=True,
            )  # fmt: skip
            if done.returncode == 0 and (shown is None or shown[1] in done.stdout):
                return
            assert time.monotonic() < end, (line, done.stdout, done.stderr)
            time.sleep(0.1)

    def end(self, *, tell: bool = True) -> list[int]:
        """Wait for what runs in the background. tell: by SIGTERM, that it is to end."""
        for each in self._background:
            if tell and each.poll() is None:
                each.terminate()
            assert each.stdin is not None
            each.stdin.close()
        return [each.wait(LONG) for each in self._background]


def of_language(name: str) -> list[list[str]]:
    return [code.splitlines() for language, code in BLOCKS if language == name]


def test_its_commands_show_what_it_says(folder: Path, tidelog_server: Server) -> None:
    echo, patches, orders, tests = of_language("sh")
    assert shutil.which("curl"), "this page's commands need curl"
    shell = Shell(folder, tidelog_server.url)
    try:
        for line in (*echo, *tests):
            shell(line)
        shell("tidelog flow run echo.yaml &")
        shell("tidelog flow status main  # shows running")
        for line, shows in zip(patches, ("running", "paused", "running"), strict=True):
            shell(f'{line}  # shows "status":"{shows}"')
        assert shell.end() == [0]
        shell = Shell(folder, tidelog_server.url)
        for line in orders:
            shell(line)
        assert shell.end(tell=False) == [0]  # nothing is left to run
    finally:
        shell.end()


def test_its_flow_in_python(folder: Path) -> None:
    code = "import live, subprocess\nfrom tidelog.cli.program import main\n"
    code += "try: main(['flow', 'run', 'live:live', '--listen', 'none'])\n"
    code += "except SystemExit as end: print(end.code)\nprint(live.found[0], len(live.found))\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"}, timeout=LONG,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "0\n{'double': 22} 989\n", done.stderr


def test_its_example_of_a_failed_test(folder: Path) -> None:
    (said,) = [code.strip() for language, code in BLOCKS if not language and code.startswith("totals.yaml")]
    text = (folder / "totals.yaml").read_text().replace("amount: 7.5", "amount: 8")
    (folder / "totals.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "flow", "test", "totals.yaml"], cwd=folder, timeout=LONG,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.strip().splitlines()[1:] == said.splitlines()


def test_its_examples_of_errors(folder: Path) -> None:
    (said,) = [code.strip() for language, code in BLOCKS if not language and code.startswith("flows.yaml")]
    text = (folder / "orders.yaml").read_text().replace("group:", "gruop:").replace("# orders.yaml\nname: shop\n", "\n")
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "gruop" in line)
    (folder / "flows.yaml").write_text("\n".join(["", *lines] if at == 5 else lines))
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "flow", "check", "flows.yaml"], cwd=folder, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": str(ROOT), "TIDELOG_URL": "redis://localhost:1"},
    )  # fmt: skip
    assert re.sub(r":\d+:", ":7:", done.stderr.splitlines()[0]) == said


# -- the tables ----------------------------------------------------------------------------------------------
def default(value: object) -> set[str]:
    """How a default may be written."""
    if isinstance(value, Duration):
        return {f"`{value:g}s`", f"`{value * 1000:g}ms`"}
    if isinstance(value, bool) or value is None:
        return {f"`{str(value).lower()}`", "`null`" if value is None else "", "none" if value is None else ""}
    return {f"`{value}`"}


@pytest.mark.parametrize(
    ("title", "kind", "more"),
    [
        ("| key of a file |", FileHeader, set(SECTIONS)),
        ("| key of a flow |", FlowOptions, set(PARTS)),
    ],
)
def test_every_key_is_there_with_its_default(title: str, kind: type[msgspec.Struct], more: set[str]) -> None:
    documented = rows(title)
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    assert documented.keys() == fields.keys() | more
    for name, text in documented.items():
        if name in more or (kind is FileHeader and text != "none"):
            continue
        assert text in default(fields[name].default), name


def test_every_route_is_there() -> None:
    documented = rows("| route |")
    assert documented.keys() - {"GET /"} == {f"{each.method} {each.path}" for each in ROUTES}


def test_every_command_is_there() -> None:
    documented = {name.removeprefix("tidelog flow ") for name in rows("| command |")}
    assert documented == set(flow_commands.commands)


def test_figures() -> None:
    assert f"`{api.DEFAULT}`" in TEXT
    assert (tap.RATE, tap.SHOWN, tap.TAPS) == (10, 1000, 16)


# -- links, examples -----------------------------------------------------------------------------------------
def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "flows").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_right(path: Path) -> None:
    """As the installed program looks at them, in a checkout."""
    command = [sys.executable, "-P", "-m", "tidelog.cli", "flow", "check", str(path.relative_to(ROOT))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TIDELOG_URL": "redis://localhost:6379"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("no errors\n")


def test_three_instances_share_a_group() -> None:
    path = ROOT / "examples" / "flows" / "orders.yaml"
    spec = read_files([path], server="redis://localhost:6379").flows["orders"]
    assert spec.instances == 3
    assert spec.connectors["in"].given["group"] == "shop"
