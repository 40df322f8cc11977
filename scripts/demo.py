"""The main features on real input, as a show: scripts/demo runs it. It ends with status 1 if a guarantee is violated.
"""

from __future__ import annotations

import argparse
import csv
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import redis
from vega_datasets import local_data

sys.path.append(str(Path(__file__).parent.parent))

from scripts.demo_keep import keep
from scripts.demo_output import demo, promise, say, sparkline, title, which_tidelog
from tidelog import Client, Entry, StreamId
from tidelog.cli.load import Loader, Row, read_rows
from tidelog.testing import Server, running_server

EVERY = 0.1  # seconds between two measurements
JOBS = 60
RETRY = 1500  # ms until an unacknowledged job is delivered to another reader


# -- measuring -------------------------------------------------------------------------------------------------
def measure() -> dict[str, Any]:
    """Measure this machine. Fields of disks and networks are omitted if there are none, as in a container."""
    fields = {"cpu": psutil.cpu_percent(), "memory": psutil.virtual_memory().percent}
    disk, net = psutil.disk_io_counters(), psutil.net_io_counters()
    if disk is not None:
        fields |= {"disk_read": disk.read_bytes, "disk_written": disk.write_bytes}
    if net is not None:
        fields |= {"net_received": net.bytes_recv, "net_sent": net.bytes_sent}
    return fields


class Sampler:
    """Appends a measurement every 100 ms, even while the server is down, and records the acknowledged ones."""

    def __init__(self, server: Server) -> None:
        self.acknowledged: list[StreamId] = []
        self.unanswered = 0  # sent, but the server died before it replied
        psutil.cpu_percent()  # the first call starts the measurement
        self._client = server.client()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += EVERY
            try:
                self.acknowledged.append(self._client.tappend("machine", measure()))
            except (redis.ConnectionError, redis.TimeoutError):
                self.unanswered += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


# -- the group's readers: processes of their own -----------------------------------------------------------------
def reader(url: str, name: str, hangs_after: int) -> None:
    """Read jobs from the group, process and acknowledge them, and print each one, until the process is killed."""
    done = 0
    with Client(url) as client:
        while True:
            batch = client.tread("jobs", count=2, block=0, group="workers", ttl=60_000, retry=RETRY, expire=60_000)
            if hangs_after and done >= hangs_after:
                print(name, "holds", *(entry["job"].decode() for entry in batch.entries), flush=True)
                time.sleep(3600)  # stuck; the demo kills the process here
            for entry in batch.entries:
                time.sleep(0.01)  # the work
                client.tack("jobs", "workers", entry)
                print(name, "did", entry["job"].decode(), flush=True)
                done += 1


class Readers:
    """Three reader processes and their output."""

    def __init__(self, url: str) -> None:
        self.told: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for name in "ABC":
            command = [sys.executable, __file__, "--reader", name, "--url", url]
            if name == "C":
                command += ["--hangs-after", "4"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self.processes[name] = process
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.told.put(line.split())

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)


# -- the scenes --------------------------------------------------------------------------------------------------
def temperatures(client: Client) -> int:
    """Load and draw a year of temperatures, and return the number of rows."""
    title("2. A data set: San Francisco's hourly temperatures of 2010 (vega_datasets: sf_temps)")
    path = local_data.sf_temps.filepath
    started = time.monotonic()
    loader = Loader(client, "sf_temps")
    with open(path, "rb") as file:
        for row in read_rows(file, "csv"):
            assert isinstance(row, Row), row
            loader.add(row)
    loader.flush()
    seconds = time.monotonic() - started
    say(f"TMAPPEND sf_temps FIELDS 2 temp date VALUES ...  {loader.rows:,} rows in {seconds:.2f} s, each batch on disk")
    entries = client.trange("sf_temps")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    promise([entry.text() for entry in entries] == rows, "TRANGE sf_temps - + gives every row back, in order")
    weeks = [entries[i : i + 168] for i in range(0, len(entries) - 167, 168)]
    means = [sum(float(entry["temp"]) for entry in week) / len(week) for week in weeks]
    say(f"{len(weeks)} weeks, {min(means):.0f} to {max(means):.0f} °F   {sparkline(means)}")
    return loader.rows


def time_range(client: Client, sampler: Sampler) -> None:
    title("3. A time range: what did this machine do in the last two seconds?")
    while len(sampler.acknowledged) < 2.5 / EVERY:
        time.sleep(EVERY)
    now = int(time.time() * 1000)
    entries = client.trange("machine", now - 2000, now)
    say(f"TRANGE machine {now - 2000} {now}   {len(entries)} entries")
    say(f"newest: {entries[-1].id}  " + "  ".join(f"{name}={value}" for name, value in entries[-1].text().items()))
    for name in ("cpu", "memory"):
        values = [float(entry[name]) for entry in entries]
        say(f"{name:<7} {min(values):5.1f} to {max(values):5.1f} %   {sparkline(values)}")
    within = all(now - 2000 <= entry.id.ms <= now for entry in entries)
    promise(within and len(entries) >= 15, "all of them from those two seconds")


def follow(client: Client, sampler: Sampler) -> None:
    title("4. Following: one TREAD ... BLOCK after another, each from where the last one ended")
    last = sampler.acknowledged[-1]
    say(f"TREAD machine {last} 100 BLOCK 1000")
    seen: list[Entry] = []
    late: list[float] = []
    while len(seen) < 15:
        batch = client.tread("machine", last, block=1000)
        late += [time.time() * 1000 - entry.id.ms for entry in batch.entries]
        seen += batch.entries
        last = batch.last_id or last
        if sys.stdout.isatty():  # a picture that grows
            print(f"\r   cpu {_cpu(seen)}", end="", flush=True)
    print(f"\r   cpu {_cpu(seen)}")
    say(f"{len(seen)} measurements, {sorted(late)[len(late) // 2]:.1f} ms after they were taken (median)")
    while sampler.acknowledged[-1] < seen[-1].id:  # this reader can see an entry before its writer receives the reply
        time.sleep(0.01)
    between = [at for at in sampler.acknowledged if seen[0].id <= at <= seen[-1].id]
    promise([entry.id for entry in seen] == between, "every measurement came, once, in order")


def _cpu(entries: list[Entry]) -> str:
    return sparkline(float(entry["cpu"]) for entry in entries)


def share(client: Client, url: str) -> None:
    title(f"5. Three readers share a stream, RETRY {RETRY} ms; one of them dies at work")
    readers = Readers(url)
    did: dict[str, list[str]] = {"A": [], "B": [], "C": []}
    held: list[str] = []
    rescued: list[str] = []
    killed = 0.0
    try:
        while not any(group.readers == len(readers.processes) for group in client.tgroup_list("jobs")):
            time.sleep(0.02)
        client.tmappend("jobs", ["job"], [(number,) for number in range(JOBS)])
        while sum(map(len, did.values())) < JOBS:
            name, what, *jobs = readers.told.get(timeout=20)
            if what == "holds":
                held = jobs
                readers.kill(name)
                killed = time.monotonic()
                say(f"reader {name} is killed (SIGKILL) with jobs {' and '.join(held)} in hand, not acknowledged")
                continue
            did[name] += jobs
            if jobs[0] in held:
                say(f"reader {name} is given job {jobs[0]} again, {time.monotonic() - killed:.1f} s after the kill")
                rescued += jobs
    finally:
        readers.close()
    say("jobs done: " + ", ".join(f"reader {name} {len(jobs)}" for name, jobs in did.items()))
    everything = sorted(int(job) for jobs in did.values() for job in jobs)
    promise(everything == list(range(JOBS)), f"all {JOBS} jobs were done, each acknowledged once")
    promise(sorted(rescued) == sorted(held) != [], "what the dead reader held was redelivered to the living")
    promise(client.tpending("jobs", "workers").count == 0, "nothing is pending")


def crash(server: Server, client: Client, sampler: Sampler, rows: int) -> None:
    title("6. kill -9 while the measurements go on")
    client.tappend("jobs", {"job": "in hand when the server dies"})
    client.tread("jobs", group="workers", ttl=60_000, retry=60_000)
    pending = client.tpending_range("jobs", "workers")
    (group,) = client.tgroup_list("jobs")
    acknowledged = len(sampler.acknowledged)
    server.kill()
    say(f"server killed; {acknowledged} measurements, {rows:,} temperatures, 1 job pending were acknowledged")
    time.sleep(0.5)
    started = time.monotonic()
    server.start()
    say(f"started again, answering after {time.monotonic() - started:.2f} s; it says:")
    for line in server.output[2:-1]:  # between "Server initialized" and "Ready to accept connections"
        say(f"   {line.partition(' * ')[2] or line}")
    resumed = len(sampler.acknowledged) + 3
    while len(sampler.acknowledged) < resumed:
        time.sleep(EVERY)
    sampler.stop()
    present = [entry.id for page in client.pages("machine") for entry in page]
    lost = set(sampler.acknowledged) - set(present)
    promise(not lost, f"all {len(sampler.acknowledged)} acknowledged measurements are there")
    promise(present == sorted(set(present)), "their IDs still increase, none is used twice")
    unknown = len(present) - len(sampler.acknowledged)
    unanswered = sampler.unanswered
    promise(0 <= unknown <= unanswered, f"nothing else is: {unanswered} had no answer, {unknown} of them got through")
    promise(client.tlen("sf_temps") == rows, f"all {rows:,} temperatures are there")
    same = client.tpending_range("jobs", "workers") == pending and client.tgroup_list("jobs")[0].offset == group.offset
    promise(same, "the group is where it was, and the job in hand is still pending")


def picture(sampler: Sampler) -> str:
    """Draw the times of acknowledged measurements, one character per 200 ms: the crash is a gap."""
    slots = {at.ms // 200 for at in sampler.acknowledged}
    return "".join("█" if slot in slots else "·" for slot in range(max(slots) - 39, max(slots) + 1))


def scenes(directory: Path) -> int:
    """Play all scenes on a server in this directory, and return its port."""
    title("1. A server on an empty directory")
    started = time.monotonic()
    with running_server(directory) as server, server.client() as client:
        say(f"tidelog-server --port {server.port} --dir {directory}")
        say(f"answers after {time.monotonic() - started:.2f} s")
        say(which_tidelog(client))
        say(f"appendfsync is {client.redis.config_get('appendfsync')['appendfsync']}")
        say("from here on, this machine's CPU, memory, disk and network go into `machine` every 100 ms")
        sampler = Sampler(server)
        try:
            rows = temperatures(client)
            time_range(client, sampler)
            follow(client, sampler)
            share(client, server.url)
            crash(server, client, sampler, rows)
        finally:
            sampler.stop()
        say(f"the last 8 seconds of measurements   {picture(sampler)}")
        return server.port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the server and a console running")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--hangs-after", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader:
        reader(args.url, args.reader, args.hangs_after)
        return

    with demo("" if args.keep else "Nothing is left running, nothing is left on disk."):
        play(args.keep)


def play(keeping: bool) -> None:
    """Play all scenes. With ``keeping``, the server and a console are left running."""
    directory = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    kept = False
    try:
        port = scenes(directory)
        if keeping:
            keep(directory, port)
            kept = True
    finally:
        if not kept:
            shutil.rmtree(directory)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONIOENCODING", "utf-8")  # for the readers
    main()
