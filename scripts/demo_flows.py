"""Flows on real input: scripts/demo --flows runs it. It ends with status 1 if a guarantee is violated.

One process runs the two flows of examples/flows/readings.yaml: readings arrive over HTTP and are stored in a stream,
from which they are sent to an HTTP server that fails repeatedly. curl pauses the deliveries, and the process is killed.
At the end, the demo checks that nothing was lost, and takes a picture of the page that shows the flows.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parent.parent))

from examples.workers_readings import Reading
from scripts import screenshot
from scripts.demo_output import demo, promise, say, title, which_tidelog
from scripts.demo_workers import real_readings
from tidelog import Client
from tidelog.testing import free_port, running_server

ROOT: Final = Path(__file__).parent.parent
FILE: Final = "examples/flows/readings.yaml"
BATCH: Final = 50  # readings per request
SENDERS: Final = 4
EVERY: Final = 0.1  # seconds between two polls
HELD: Final = 1.5  # seconds for which deliveries are paused
PATIENCE: Final = 60.0  # timeout of each step, in seconds
TURNS: Final = (("answers 200", 2.0), ("answers 503", 0.7), ("answers 200", 1.5), ("is gone", 0.7))  # seconds of each
DRAWN: Final = "/[1-9][0-9]*.s/.test(document.querySelector('#graph')?.textContent ?? '')"  # a rate is not 0

Hour = tuple[str, int]  # city and day, hour: the identity of a reading


class Target:
    """An HTTP server for readings that is healthy, failing, and unreachable in turn."""

    def __init__(self) -> None:
        self.port = free_port()
        self.got: list[tuple[Hour, float]] = []
        self.answered: Counter[int] = Counter()  # requests by status
        self.state = ""
        self.times: Counter[str] = Counter()  # of each state
        self.lock = threading.Lock()  # of everything except the port
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._turns, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def answer(self, body: bytes) -> int:
        """Return the status of the response to a request. The readings are recorded before the response is sent."""
        status = 200 if self.state == "answers 200" else 503
        with self.lock:
            self.answered[status] += 1
            if status == 200:
                rows = map(json.loads, body.splitlines())
                self.got.extend(((row["day"], row["hour"]), row["celsius"]) for row in rows)
        return status

    def _turns(self) -> None:
        server: ThreadingHTTPServer | None = None
        number = 0
        while not self._end.is_set():
            self.state, seconds = TURNS[number % len(TURNS)]
            number += 1
            self.times[self.state] += 1
            if self.state == "is gone" and server is not None:
                close(server)
                server = None
            elif server is None:
                server = self._opened()
            self._end.wait(seconds)
        if server is not None:
            close(server)

    def _opened(self) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", self.port), handler(self))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server


def close(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()


def handler(target: Target) -> type[BaseHTTPRequestHandler]:
    """Return a request handler. Connections are closed after each request, so that the server can become unreachable.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(target.answer(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


class Flows:
    """The process that runs the flows, and its API."""

    def __init__(self, url: str, target: Target, log: Path) -> None:
        self.port, self._listen = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._listen}"
        self._log = log
        self._environment = os.environ | {
            "TIDELOG_URL": url, "PORT": str(self.port), "TARGET": f"http://127.0.0.1:{target.port}/readings",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tidelog.cli", "flow", "run", FILE, "--listen", f"127.0.0.1:{self._listen}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, cwd=ROOT, stdout=log, stderr=log)
        return self.process

    def ask(self, path: str) -> Any:
        """Return the response to GET, or None if the process does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._listen, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else None
        except OSError:
            return None
        finally:
            connection.close()

    @property
    def running(self) -> bool:
        found = self.ask("/v1/flows")
        return bool(found) and all(each["status"] == "running" for each in found)

    def reasons(self, flow: str) -> list[str]:
        """Return the reasons for which the flow is paused."""
        found = self.ask(f"/v1/flows/{flow}/breaker")
        if found is None:
            return []
        return [
            each["reason"] for instance in found["instances"] for of in instance["sources"] for each in of["reasons"]
        ]

    def unsettled(self, flow: str) -> int:
        found = self.ask(f"/v1/flows/{flow}/unsettled")
        return -1 if found is None else int(found["count"])

    def patch(self, flow: str, status: str) -> str:
        """Change the status with curl, as users do, and return the status in the response."""
        body = json.dumps({"status": status})
        path = f"{self.url}/v1/flows/{flow}"
        say(f"$ curl -s -XPATCH -H'Content-Type: application/json' {path} -d'{body}'")
        if (curl := shutil.which("curl")) is None:
            sys.exit("no curl here (Debian: apt-get install curl)")
        done = subprocess.run(
            [curl, "-s", "-XPATCH", "-HContent-Type: application/json", path, f"-d{body}"],
            capture_output=True, check=True,
        )  # fmt: skip
        return str(json.loads(done.stdout)["status"])

    def close(self) -> str:
        """Stop the process with SIGTERM, and return the end of its output."""
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


class Senders:
    """Threads that send readings. A request whose response is not 200 is sent again."""

    def __init__(self, port: int, rows: Sequence[Reading], seconds: float) -> None:
        self.answered = 0  # readings in requests with the response 200
        self.again = 0  # requests
        self._port = port
        self._lock = threading.Lock()
        requests = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
        self._pause = seconds * SENDERS / len(requests)
        self._threads = [
            threading.Thread(target=self._send, args=(requests[number::SENDERS],), daemon=True)
            for number in range(SENDERS)
        ]
        for each in self._threads:
            each.start()

    @property
    def busy(self) -> bool:
        return any(each.is_alive() for each in self._threads)

    def _send(self, requests: Iterable[Sequence[Reading]]) -> None:
        for rows in requests:
            lines = (json.dumps({"day": row.day, "hour": row.hour, "fahrenheit": row.fahrenheit}) for row in rows)
            body = "\n".join(lines).encode()
            while not self._taken(body):
                with self._lock:
                    self.again += 1
                time.sleep(0.2)
            with self._lock:
                self.answered += len(rows)
            time.sleep(self._pause)

    def _taken(self, body: bytes) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("POST", "/readings", body, {"Content-Type": "application/json"})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Watch:
    """Prints a line per second while it waits."""

    def __init__(self, client: Client, flows: Flows, target: Target) -> None:
        self.senders: Senders | None = None
        self._client, self._flows, self._target = client, flows, target
        self._began = self._shown = time.monotonic()
        self.seen: Counter[str] = Counter()  # reasons for which deliveries were paused, by polls

    def until(self, true: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                promise(False, f"{what} within {PATIENCE:g} s; the flows said: {self._flows.log}")
            time.sleep(EVERY)
            if self.senders is not None:
                self.look()

    def look(self) -> None:
        reasons = self._flows.reasons("deliver")
        self.seen.update(each.partition(":")[0] for each in reasons)
        now = time.monotonic()
        if now > self._shown + 1 and self.senders is not None:
            self._shown = now
            say(
                f"{now - self._began:5.1f} s   sent {self.senders.answered:6,}   kept {self.kept:6,}"
                f"   delivered {len(self._target.got):6,}   {' '.join(reasons)}"
            )

    def begin(self, senders: Senders) -> None:
        """Start the clock."""
        self.senders = senders
        self._began = self._shown = time.monotonic()

    @property
    def kept(self) -> int:
        return self._client.tlen("readings")

    def idle(self, total: int) -> bool:
        """Return whether everything was delivered and acknowledged."""
        (group,) = self._client.tgroup_list("readings")
        last = self._client.trevrange("readings", count=1)[0].id
        return group.offset == last and not group.pending and len(dict(self._target.got)) == total


@contextmanager
def running(url: str) -> Iterator[tuple[Flows, Target]]:
    with tempfile.TemporaryDirectory(prefix="tidelog-demo-") as folder:
        target = Target()
        flows = Flows(url, target, Path(folder) / "log")
        try:
            yield flows, target
        finally:
            flows.close()
            target.close()


# -- the scenes --------------------------------------------------------------------------------------------------
def play(rows: Sequence[Reading], seconds: float, picture: Path) -> None:
    """Play all scenes; ``seconds`` is the duration of the sending."""
    title("1. A server, one process with two flows: HTTP -> convert -> stream, stream -> gather -> HTTP")
    with running_server() as server, server.client() as client, running(server.url) as (flows, target):
        say(which_tidelog(client))
        say(f"$ tidelog flow run {FILE}")
        watch = Watch(client, flows, target)
        watch.until(lambda: flows.running, "both flows run")
        for name in ("take", "deliver"):
            say(f"{name}: process {flows.process.pid}, {flows.ask(f'/v1/flows/{name}')['status']}")
        disaster(flows, target, watch, rows, seconds, picture)
        title("3. Is anything lost, on the way in or on the way out?")
        reckon(client, rows, target, watch)


def disaster(
    flows: Flows, target: Target, watch: Watch, rows: Sequence[Reading], seconds: float, picture: Path
) -> None:
    title(f"2. {len(rows):,} readings are sent, {BATCH} a request; deliveries are paused, and the process is killed")
    turns = ", ".join(f"{name} for {each:g} s" for name, each in TURNS)
    say(f"the server that they are delivered to {turns}, and so on")
    senders = Senders(flows.port, rows, seconds)
    watch.begin(senders)
    look = threading.Thread(target=photographed, args=(f"{flows.url}/#deliver", picture), daemon=True)
    watch.until(lambda: len(target.got) >= len(rows) // 8, "an eighth is delivered")
    look.start()
    watch.until(lambda: not look.is_alive() and len(target.got) >= len(rows) // 4, "a quarter is delivered")
    pause(flows, target, watch)
    watch.until(lambda: senders.answered >= len(rows) * 2 // 3, "two thirds are sent")
    flows.process.send_signal(signal.SIGKILL)
    flows.process.wait()
    killed = time.monotonic()
    say(f"kill -9 of the process, after {senders.answered:,} readings; it is started again")
    flows.start()
    watch.until(lambda: flows.running, "both flows run again")
    say(f"both flows run again {time.monotonic() - killed:.1f} s later")
    watch.until(lambda: not senders.busy, "everything is sent")
    watch.until(lambda: watch.idle(len(rows)), "everything is delivered")
    say(f"all {senders.answered:,} readings are sent, and everything that was kept is delivered")


def pause(flows: Flows, target: Target, watch: Watch) -> None:
    """Pause deliveries for some time with curl."""
    promise(flows.patch("deliver", "paused") == "paused", "the answer says paused: nothing more leaves the stream")
    watch.until(lambda: flows.unsettled("deliver") == 0, "what was under way is settled")
    delivered, kept, end = len(target.got), watch.kept, time.monotonic() + HELD
    watch.until(lambda: time.monotonic() > end, "the pause is over")
    say(f"in {HELD:g} s {watch.kept - kept:,} more were kept, {len(target.got) - delivered:,} more were delivered")
    promise(len(target.got) == delivered and watch.kept > kept, "nothing was delivered, and the other flow went on")
    flows.patch("deliver", "running")


def photographed(url: str, picture: Path) -> None:
    """Take a picture of the page with its current rates."""
    program = screenshot.browser()
    if program is None:
        say(f"no browser here that takes a picture (Debian: apt-get install chromium); the page is {url}")
        return
    try:
        screenshot.photograph(program, url, DRAWN, picture)
    except OSError as error:
        say(f"no picture of the page: {error}")
        return
    say(f"a picture of the page at {url}: {picture}")


def reckon(client: Client, rows: Sequence[Reading], target: Target, watch: Watch) -> None:
    wanted = {(row.day, row.hour): round((row.fahrenheit - 32) / 1.8, 2) for row in rows}
    total = f"{sum(wanted.values()):,.2f} °C"
    values = (json.loads(entry[b"data"]) for page in client.pages("readings") for entry in page)
    kept = [((row["day"], row["hour"]), row["celsius"]) for row in values]
    assert watch.senders is not None
    say(f"kept: {len(kept):,} readings, {len(kept) - len(wanted):,} of them again; "
        f"{watch.senders.again} requests were not answered by 200, and sent again")  # fmt: skip
    promise(dict(kept) == wanted, f"each of {len(wanted):,} readings is in the stream; the sum is {total}")
    with target.lock:
        got, answered = list(target.got), dict(target.answered)
    say(f"delivered: {len(got):,} readings, {len(got) - len(wanted):,} of them again")
    say(f"requests answered by 200: {answered[200]:,}, by 503: {answered.get(503, 0):,}; "
        f"{target.times['is gone']} times the server was gone")  # fmt: skip
    say(f"meanwhile deliveries stood still because of: {', '.join(sorted(watch.seen)) or 'nothing'}")
    promise(dict(got) == wanted, f"each of {len(wanted):,} readings was delivered; the sum is {total}")
    (group,) = client.tgroup_list("readings")
    letters = sum(client.tlen(key) for key in client.redis.scan_iter("*flow.deliver.dead*"))
    promise(group.pending == 0 and letters == 0, "nothing is pending, and there is no dead letter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", action="store_true", help=argparse.SUPPRESS)  # set by scripts/demo
    parser.add_argument("--picture", type=Path, default=Path(tempfile.gettempdir()) / "tidelog-flows.png")
    args = parser.parse_args()
    with demo("Nothing is left running."):
        play(real_readings(), 15.0, args.picture)


if __name__ == "__main__":
    main()
