"""A Spark cluster on this machine for tests: a master and workers as processes, and the executors that they started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.waiting import eventually

#: JVMs that start in seconds.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")


class Standalone:
    """A standalone master; ``worker`` starts one. All of them listen on 127.0.0.1 only."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder, self._ends = folder, ends
        log = self._start("master", "master.Master", {})[1]
        found = eventually(lambda: _MASTER.search(log.read_text()), seconds=60)
        self.url: str = found[1]

    def worker(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """One of one core, which gives its environment to its executors; when the master knows it."""
        work = str(self._folder / name)
        words = ["--cores", "1", "--memory", "1g", "--work-dir", work, self.url]
        process, log = self._start(name, "worker.Worker", environment, *words)
        eventually(lambda: "Successfully registered with master" in log.read_text(), seconds=60)
        return process

    def _start(
        self, name: str, what: str, environment: dict[str, str], *words: str
    ) -> tuple[subprocess.Popen[bytes], Path]:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self._folder / f"{name}.log"
        given = os.environ | environment | {
            "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.13",
        }  # fmt: skip
        command = ["java", *QUICK.split(), "-Xmx200m", "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{what}",
                   "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *words]  # fmt: skip
        with log.open("w") as out:
            process = subprocess.Popen(command, env=given, stdout=out, stderr=out, start_new_session=True)
        self._ends.callback(end, process)
        return process, log


def home(folder: Path) -> Path:
    """A SPARK_HOME for ``local-cluster``, whose executors work in a folder of it: not in that of the package."""
    import pyspark

    made = folder / "spark"
    made.mkdir()
    for name in ("bin", "jars", "python"):
        (made / name).symlink_to(Path(pyspark.__file__).parent / name)
    return made


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """A master, without workers. It ends with all that it started."""
    with ExitStack() as ends:
        yield Standalone(folder, ends)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for it and the executors that it started; their Python workers notice that, and end."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def executors(ancestor: int) -> dict[int, str]:
    """The executors below a process: their process IDs, and what Spark calls them."""
    found = {pid: words for pid, words in below(ancestor).items() if "--executor-id" in words}
    return {pid: words[words.index("--executor-id") + 1] for pid, words in found.items()}


def below(ancestor: int) -> dict[int, list[str]]:
    """The processes that a process started, or that they started: their command lines by ID."""
    parents: dict[int, int] = {}
    lines: dict[int, list[str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            lines[pid] = (folder / "cmdline").read_text().split("\0")
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended

    def descends(pid: int) -> bool:
        parent = parents.get(pid)
        return parent is not None and (parent == ancestor or descends(parent))

    return {pid: words for pid, words in lines.items() if descends(pid)}
