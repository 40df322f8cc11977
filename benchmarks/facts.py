"""On what the figures were taken: the machine, the servers as they describe themselves, and where they come from."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measured
from benchmarks.servers import CORES, Installation, peers_of

# Fields of INFO
ASKED = ("tidelog_version", "tidelog_compiled", "redis_version", "valkey_version", "python_version", "executable")


def machine() -> dict[str, object]:
    """CPU, cores, memory, kernel, Python of the load, the disk under the data directories, and the time."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _after("/proc/cpuinfo", "model name"),
        "cores": len(CORES),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "disk": disk(Path(tempfile.gettempdir())),
        "load_at_start": os.getloadavg()[0],
    }


class Others:
    """What everybody else on the machine took: seconds of a core for each second, since the last look.

    At least: kernels differ in whose the time of network interrupts is, and it is left out here. All that a benchmark
    starts is its child, and has ended when somebody looks.
    """

    def __init__(self) -> None:
        self._then = self._now()

    def share(self) -> float:
        then, self._then = self._then, self._now()
        wall, busy, ours = (now - before for now, before in zip(self._then, then, strict=True))
        return max(0.0, (busy - ours) / wall) if wall else 0.0

    def _now(self) -> tuple[float, float, float]:
        """Wall clock, all processes' seconds, and ours with those of children."""
        ticks = Path("/proc/stat").read_text().split(maxsplit=4)[1:4]  # user, nice, system
        times = os.times()
        return times.elapsed, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), sum(times[:4])


def described(installed: Sequence[Installation]) -> dict[str, dict[str, str]]:
    """What each server says of itself, and where it was imported from if it is ours."""
    found = {}
    with peers_of(installed, "no") as peers:
        for peer in peers:
            peer.start()
            with peer.client() as client:
                info = client.info("server")
            found[peer.name] = {name: str(info[name]) for name in ASKED if name in info}
            if peer.ours and not peer.redis:
                found[peer.name]["from"] = measured.described()
    return found


def disk(folder: Path) -> str:
    """The file system and device of a folder; whether it spins, where the kernel says."""
    out = subprocess.run(
        ["df", "--output=source,fstype", str(folder)], capture_output=True, text=True, check=False
    ).stdout.split()
    if len(out) < 4:
        return "unknown"
    device, kind = out[-2:]
    rotational = Path(f"/sys/class/block/{Path(device).name}/queue/rotational")
    turns = rotational.read_text().strip() if rotational.exists() else ""
    kind += {"0": ", not rotational", "1": ", rotational"}.get(turns, "")
    return f"{device} ({kind})"


def _after(file: str, word: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(word):
            return line.partition(":")[2].strip()
    return platform.machine()


def summary(facts: dict[str, object], servers: dict[str, dict[str, str]], places: bool = True) -> str:
    """The machine in a line, then a line for each server. ``places``: with paths, which mean something only here."""
    lines = [f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, disk {facts['disk']}"]
    for name, says in servers.items():
        if "tidelog_version" in says:
            parts = [f"{name}: tidelog {says['tidelog_version']}", f"Python {says.get('python_version', '?')}"]
            if "tidelog_compiled" in says:
                parts.append("compiled" if says["tidelog_compiled"] == "1" else "interpreted")
            if places and "from" in says:
                parts.append(f"from {says['from']}")
            if places and "executable" in says:
                parts.append(f"run by {says['executable']}")
            lines.append(", ".join(parts))
        elif "nats_version" in says:
            lines.append(f"nats-server {says['nats_version']}")
        else:
            product = "valkey" if "valkey_version" in says else "redis"  # Valkey reports a redis_version, too
            lines.append(f"{name}: {product}-server {says.get(f'{product}_version', '?')}")
    return "\n".join(lines)
