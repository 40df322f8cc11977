"""The tutorials of CONTRIBUTING.md work. Their steps are applied to a copy of the checkout, which runs their commands.

The text in front of a code block says what to do with it: ``New file `PATH```, ``In `PATH`, before `LINE`, insert``, or
``In `PATH`, replace`` one block ``with`` the next one. Blocks of sh are run. The tutorials depend on each other, so one
copy serves all of them, in their order.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
NEW = re.compile(r"New file\s+`(\S+?)`:$")
INSERT = re.compile(r"In\s+`(\S+?)`,\s+before\s+(?:`([^`\n]+)`|`` ([^\n]+) ``),\s+insert$")
REPLACE = re.compile(r"In\s+`(\S+?)`,\s+replace$")
TUTORIALS = re.findall(r"^## (Your first \w+)$", PAGE, re.MULTILINE)


def section(heading: str) -> str:
    start = PAGE.index(f"## {heading}\n")
    end = PAGE.find("\n## ", start + 1)
    return PAGE[start : end if end >= 0 else len(PAGE)]


def copy_of_checkout(target: Path) -> None:
    """Copy the files that git knows, or all that an unpacked archive has; and the C modules and bytecode made here."""
    skipped = shutil.ignore_patterns(".git", ".venv", ".compiled", ".*_cache", ".hypothesis", "build")
    shutil.copytree(ROOT, target, ignore=skipped, symlinks=True)  # with the times of the files: the bytecode is valid


def apply(tutorial: str, checkout: Path) -> None:
    """Carry out the steps of a tutorial in their order."""
    blocks = list(BLOCK.finditer(tutorial))
    done = 0  # the blocks that an earlier one has used
    for number, block in enumerate(blocks):
        before = tutorial[blocks[number - 1].end() if number else 0 : block.start()].rstrip()
        code = code_of(block)
        assert code.strip(), f"{tutorial[:30]}: an empty block"
        if number < done:
            continue
        if block[2] == "sh":
            run(code, checkout)
        elif new := NEW.search(before):
            path = checkout / new[1]
            assert not path.exists(), path
            path.write_text(code)
        elif insert := INSERT.search(before):
            anchor = insert[2] or insert[3]
            edit(checkout / insert[1], anchor, code + anchor)
        elif replace := REPLACE.search(before):
            edit(checkout / replace[1], code.rstrip(), code_of(blocks[number + 1]).rstrip())
            done = number + 2
        else:
            pytest.fail(f"the text in front of this block does not say what to do with it:\n{code}")


def code_of(block: re.Match[str]) -> str:
    """Return the code without the indent of the list that it is in."""
    return re.sub(rf"^{block[1]}", "", block[3], flags=re.MULTILINE)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path} contains this {text.count(old)} times:\n{old}"
    path.write_text(text.replace(old, new))


def run(commands: str, checkout: Path) -> None:
    bin_directory = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(checkout)}
    environment.pop("PYTEST_ADDOPTS", None)
    for command in commands.strip().splitlines():
        ended = subprocess.run(
            [*command.replace("-m pytest", "-m pytest -q -n 0 -p no:cacheprovider").split()],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{command}\n{ended.stdout[-4000:]}\n{ended.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorials_work(tmp_path: Path) -> None:
    assert len(TUTORIALS) == len(re.findall(r"^## Your first", PAGE, re.MULTILINE)) >= 2
    checkout = tmp_path / "checkout"
    copy_of_checkout(checkout)
    for heading in TUTORIALS:
        apply(section(heading), checkout)
    run("python -m pytest tests/test_project.py", checkout)
