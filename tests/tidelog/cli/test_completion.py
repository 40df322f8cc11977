"""tidelog completion: real shells complete commands, options, and file names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.program import main

pytestmark = pytest.mark.slow  # each test starts programs
# bash and fish have functions that complete a line. zsh completes only on a terminal.
BASH = """
eval "$(tidelog completion bash)"
complete_line() {
    COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1) COMPREPLY=()
    case $1 in *' ') COMP_WORDS+=('') ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _tidelog_completion tidelog
    echo "${COMPREPLY[@]}"
}
complete -p tidelog | grep -q _tidelog_completion || exit 1
for line in "tidelog ba" "tidelog dump --li" "tidelog flow ru"; do
    complete_line "$line"
done
"""
FISH = """
tidelog completion fish | source
for line in "tidelog ba" "tidelog dump --li" "tidelog flow ru"
    echo (complete -C $line | string replace -r '\\t.*' '')
end
"""
EXPECTED = ["backup backups", "--limit", "run"]
ZSH = """
import os, pty, select, sys, time

pid, terminal = pty.fork()
if pid == 0:
    os.execvpe("zsh", ["zsh", "-f"], os.environ | {"PS1": "> ", "TERM": "dumb"})
seen = ""

def until(text, lasting=60):
    global seen
    end = time.monotonic() + lasting
    while text not in seen:
        if time.monotonic() > end or not select.select([terminal], [], [], lasting)[0]:
            sys.exit(f"{text!r} did not appear: {seen!r}")
        seen += os.read(terminal, 65536).decode()
    seen = seen.partition(text)[2]

os.write(terminal, b"autoload -U compinit; compinit -u -D; eval \\"$(tidelog completion zsh)\\"; echo rea''dy\\n")
until("ready")
os.write(terminal, b"tidelog topics sh\\t")
until("show")
os.write(terminal, b"\\x15tidelog dump --li\\t")
until("--limit")
os.close(terminal)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Has a program ``tidelog``, and a directory for a shell's files."""
    program = tmp_path / "bin/tidelog"
    program.parent.mkdir()
    code = 'from tidelog.cli.program import main; main(prog_name="tidelog")'
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    return os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_real_shell_completes(shell: str, environment: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here (Debian: apt-get install {shell})")
    if shell == "zsh":
        command = [sys.executable, "-c", ZSH]
    else:
        command = [
            shell,
            *(["--norc", "--noprofile"] if shell == "bash" else []),
            "-c",
            {"bash": BASH, "fish": FISH}[shell],
        ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    if shell != "zsh":
        assert [" ".join(sorted(line.split())) for line in done.stdout.splitlines()] == EXPECTED


def test_another_shell_is_refused() -> None:
    result = CliRunner().invoke(main, ["completion", "csh"])
    assert result.exit_code == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in result.output


@pytest.mark.parametrize("line", ["tidelog flow ", "tidelog flow run "])
def test_a_missing_extra_completes_nothing(line: str, environment: dict[str, str]) -> None:
    code = 'import sys; sys.modules["yaml"] = None; from tidelog.cli.program import main; main(prog_name="tidelog")'
    requested = {"COMP_WORDS": line, "COMP_CWORD": "2", "_TIDELOG_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | requested,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
