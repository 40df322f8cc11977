"""A storm: several flows in one process of ``tidelog flow run``, a server, an HTTP peer. Events come in all the time,
while processes and connections are killed, flows are paused, drained and replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import redis

from tests.tidelog.flows.stormflows import Case, Delivery, document
from tests.tidelog.flows.stormpeer import WAYS, Peer
from tidelog.client import Client
from tidelog.flows.connectors.files.tailing import FilePosition, rotated
from tidelog.flows.connectors.positionfile import load_position
from tidelog.testing import Server, free_port

ROOT: Final = Path(__file__).parents[3]
PROGRESS: Final = 60.0  # s in which something must move while flows come to their end
FLOWING: Final = 5.0  # s
MEMORY: Final = 400 << 20  # bytes that a process of flows may have
BACKLOG: Final = 3000  # events of a flow that were sent and not delivered, before more are sent


class Storm:
    """``cases`` as flows of one process."""

    def __init__(self, server: Server, folder: Path, chance: random.Random, cases: list[Case]) -> None:
        self.counts: Counter[str] = Counter()  # what was done
        self.wrong: list[str] = []
        self.memory = 0  # bytes: the most that a process had
        self.cases = {each.name: each for each in cases}
        self._server, self._folder, self._chance = server, folder, chance
        self._peer = Peer(self.cases, chance)
        self._process: asyncio.subprocess.Process | None = None
        self._log = folder / "flows.log"
        self._api = ""
        self._over = False
        self._resting = False
        self._starting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Storm:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=45))
        await self._peer.open()
        for case in self.cases.values():
            case.peer = self._peer.url
            if case.over_http:
                case.ports = [free_port() for _ in case.sources]
        (self._folder / "flows.yaml").write_text(document(self.cases.values()))
        for case in self.cases.values():
            case.deployed = not case.by_api
        self._api = f"127.0.0.1:{free_port()}"
        await self.start()
        for each in self.cases.values():
            self._tasks.append(asyncio.create_task(self._send(each)))
        self._tasks.append(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._session.close()
        await self._peer.close()

    # -- the process -----------------------------------------------------------------------------------------
    async def start(self) -> None:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()

    async def _start(self) -> None:
        words = ["flow", "run", "flows.yaml", "--url", self._server.url, "--listen", self._api]
        words += ["--allow-local", "--stay", "--name", self._folder.name]
        environment = {name: value for name, value in os.environ.items() if name != "TIDELOG_URL"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidelog.cli", *words, cwd=self._folder, stderr=log, stdout=log,
                env=environment | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    async def listening(self) -> None:
        """Wait until all flows are there, whatever their status."""
        await self._until(self._all_there, "the flows did not start")
        for case in self.cases.values():
            if case.by_api:
                await self._until(lambda: self._deployed(case), f"{case} can't be deployed")  # noqa: B023

    async def flowing(self) -> None:
        """Wait until each flow has taken something more, for a while: one may be paused, or wait for its sinks."""
        before = {name: len(each.sent) for name, each in self.cases.items()}
        end = time.monotonic() + FLOWING
        while time.monotonic() < end and any(len(each.sent) <= before[name] for name, each in self.cases.items()):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)

    async def _all_there(self) -> bool:
        status, body = await self.ask("GET", "/v1/flows")
        there = {each["alias"] for each in body if each["instances"]} if status == 200 else set()
        return there >= {each.name for each in self.cases.values() if each.deployed}

    async def _deployed(self, case: Case) -> bool:
        if not case.deployed:
            status, body = await self.ask("PUT", f"/v1/flows/{case.name}", case.given())
            case.deployed = status in (200, 201)
            if status == 201 and not body["kept"]:
                self.wrong.append(f"{case}: deployed and not kept: {body}")
        return case.deployed

    async def end(self, number: int, again: bool = False) -> int:
        """Send a signal, or two, and wait until the process has ended. Others may do the same. Its exit status."""
        process = self._process
        assert process is not None
        for _ in range(1 + again):
            with suppress(ProcessLookupError):
                process.send_signal(number)
            if again:
                await asyncio.sleep(self._chance.choice([0.0, 0.1, 0.3]))
        async with asyncio.timeout(60):
            code = await process.wait()
        if code:
            self._hurt()
        return code

    def _hurt(self) -> None:
        for each in self.cases.values():
            each.hurts += 1

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    # -- asking ----------------------------------------------------------------------------------------------
    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(0, None): there is no process, or it went away meanwhile."""
        try:
            async with self._session.request(method, f"http://{self._api}{path}", json=body) as answer:
                found = await answer.json()
                if answer.status == 500:
                    self.wrong.append(f"{method} {path}: {found}")
                return answer.status, found
        except (aiohttp.ClientError, OSError):
            return 0, None

    async def _redis(self, work: Callable[[Client], Any]) -> Any:
        """ConnectionError: there is no server."""

        def do() -> Any:
            with self._server.client() as client:
                return work(client)

        try:
            return await asyncio.to_thread(do)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise ConnectionError(str(error)) from error

    # -- events come in --------------------------------------------------------------------------------------
    async def _send(self, case: Case) -> None:
        while not self._over:
            if self._resting or len(case.sent) - self._passed(case) > BACKLOG * min(case.unsettled, 200) / 200:
                await asyncio.sleep(0.05)
                continue
            count = self._chance.choice([1, 5, 20, 60])
            numbers = list(range(case.next, case.next + count))
            case.next += count
            if case.over_http:
                await asyncio.gather(*(self._post(case, each) for each in numbers))
            elif case.source.startswith("file"):
                self._append(case, numbers)
            else:
                await self._fill(case, numbers)
            await asyncio.sleep(self._chance.choice([0.02, 0.1, 0.3]))

    def _passed(self, case: Case) -> int:
        """How many were delivered, roughly: of a flow that may fall behind."""
        return len(case.sent) if case.unsettled > 50 and "http" not in map(case.kind, case.sinks) else case.seen

    async def _fill(self, case: Case, numbers: list[int]) -> None:
        for source in case.sources:
            rows = [[json.dumps(case.event(each))] for each in numbers if case.source_of(each) == source]
            while rows:
                try:
                    await self._redis(lambda client: client.tmappend(case.stream(source), ["data"], rows))  # noqa: B023
                    break
                except ConnectionError:
                    case.resent += len(rows)
                    await asyncio.sleep(0.1)
        case.sent.update(numbers)

    def _append(self, case: Case, numbers: list[int]) -> None:
        for source in case.sources:
            path = case.file(source)
            with path.open("a") as file:
                lines = [json.dumps(case.event(each)) for each in numbers if case.source_of(each) == source]
                file.writelines(f"{line}\n" for line in lines)
            known = path.with_name(f"{path.name}.position").exists()  # a file that was rotated before is never read
            if known and path.stat().st_size > 40_000 and self._chance.random() < 0.3:
                self.counts["rotated"] += 1
                path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))
        case.sent.update(numbers)

    async def _post(self, case: Case, number: int) -> None:
        """Until it is answered as it should be."""
        port = case.ports[number % len(case.ports)]
        while not self._over:
            try:
                async with self._session.post(f"http://127.0.0.1:{port}/in", json=case.event(number)) as answer:
                    status, text = answer.status, await answer.text()
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.1)
                continue
            except (aiohttp.ClientError, OSError):
                status, text = 0, ""
            if status == 200:
                if case.source == "http":
                    self._look_at_once(case, number)
                case.sent.add(number)
                return
            if status == 422:
                if case.source == "http" and case.shape == "failing" and number % 13 == 0:
                    case.refused.add(number)
                    case.sent.add(number)
                    return
                self.wrong.append(f"{case}: {number} was answered by 422: {text}")
            elif status not in (0, 503, 504, 404):
                self.wrong.append(f"{case}: {number} was answered by {status}: {text}")
            if status != 404 and "nothing is taken" not in text and "too many requests" not in text:
                case.resent += 1
            await asyncio.sleep(self._chance.uniform(0.05, 0.3))

    def _look_at_once(self, case: Case, number: int) -> None:
        """It was answered by 200: it is there already."""
        if all(case.kind(each) == "http" for each in case.sinks):
            early = case.missing(case.delivered, set(), [number])
            self.wrong += [f"{case}: {each} was answered by 200 too early" for each in early]

    # -- what is watched -------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        """Memory, and how much is under way."""
        while not self._over:
            process = self._process
            if process is not None and process.returncode is None:
                self.memory = max(self.memory, memory(process.pid))
            status, flows = await self.ask("GET", "/v1/flows")
            for each in flows if status == 200 else ():
                case = self.cases[each["alias"]]
                stages = len(case.sources) * (2 if case.has_wal else 1)
                most = case.unsettled * case.instances * stages
                if not case.over_http and each["unsettled"] > most:
                    self.wrong.append(f"{case}: {each['unsettled']} events under way, {most} are the most")
                if case.unsettled <= 50 or "http" in map(case.kind, case.sinks):
                    with suppress(ConnectionError):
                        await self.delivered(case)
                if each["status"] == "failed":
                    self.wrong.append(f"{case}: failed: {each['error']}")
            await asyncio.sleep(0.5)

    # -- what is done ----------------------------------------------------------------------------------------
    async def act(self, *names: str) -> None:
        """Do things at the same time, and wait until they are done."""
        for name in names:
            self.counts[name] += 1
        await asyncio.gather(*(self._late(getattr(self, f"_do_{name}")) for name in names))

    async def _late(self, do: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._chance.choice([0.0, 0.0, 0.05, 0.2]))
        await do()

    def _some(self) -> Case:
        return self._chance.choice(list(self.cases.values()))

    async def _do_kill(self) -> None:
        await self.end(signal.SIGKILL)
        await asyncio.sleep(self._chance.choice([0.0, 0.5]))
        await self.start()

    async def _do_early(self) -> None:
        """A process is killed while it begins."""
        await self.end(signal.SIGKILL)
        await self.start()
        await asyncio.sleep(self._chance.uniform(0.3, 1.5))
        await self.end(signal.SIGKILL)
        await self.start()

    async def _do_drain(self) -> None:
        if not await self._all_there():
            return
        code = await self.end(signal.SIGTERM)
        self.counts[f"drained {code}"] += 1
        if code not in (0, 1, -signal.SIGTERM, -signal.SIGKILL):  # others may have killed it, or it had just begun
            self.wrong.append(f"SIGTERM: exit status {code}")
        await self.start()

    async def _do_twice(self) -> None:
        """Two SIGTERMs, one after the other."""
        await self.end(signal.SIGTERM, again=True)
        await self.start()

    async def _do_server(self) -> None:
        self._hurt()
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._chance.choice([0.0, 0.3, 1.5]))
        await asyncio.to_thread(self._server.start)

    async def _do_links(self) -> None:
        """All connections of the server are cut."""
        self._hurt()
        with suppress(ConnectionError):
            await self._redis(lambda client: client.redis.execute_command("CLIENT", "KILL", "TYPE", "normal"))

    async def _do_peer(self) -> None:
        self._peer.behave(self._chance.choice(WAYS), self._chance.choice([0.1, 0.5, 1.0]))
        await asyncio.sleep(self._chance.choice([0.3, 1.0, 2.5]))
        self._peer.behave("ok")

    async def _do_flap(self) -> None:
        """The peer is not there, for short times."""
        for _ in range(self._chance.choice([1, 3])):
            self._hurt()
            await self._peer.close()
            await asyncio.sleep(self._chance.choice([0.1, 0.6]))
            await self._peer.open()
            await asyncio.sleep(self._chance.choice([0.05, 0.4]))

    async def _do_coma(self) -> None:
        """The process stands still for longer than its entries are its own."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._hurt()
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self._chance.choice([0.5, 2.0]))
            process.send_signal(signal.SIGCONT)

    async def _do_pauses(self) -> None:
        """Flows are paused and resumed, one after the other. Nothing is sent while one is paused."""
        for _ in range(self._chance.choice([2, 5])):
            case = self._some()
            status, body = await self.ask("PATCH", f"/v1/flows/{case.name}", {"status": "paused"})
            if status == 200:
                before = await self._emitted(case)
                if body["status"] != "paused":
                    self.wrong.append(f"{case}: paused, and it is {body['status']}")
                await asyncio.sleep(self._chance.choice([0.0, 0.1, 0.3]))
                after = await self._emitted(case)
                if before is not None and after is not None and before[0] == after[0]:
                    # A flow whose replacement ends meanwhile counts from 0 again.
                    more = {name: count for name, count in after[1].items() if count > before[1].get(name, 0)}
                    if more:
                        self.wrong.append(f"{case}: sent although it is paused: {before} {more}")
            await self.ask("PATCH", f"/v1/flows/{case.name}", {"status": "running"})

    async def _emitted(self, case: Case) -> tuple[str, dict[str, int]] | None:
        """(the process and how often the flow was replaced, events sent by each source)"""
        process = self._process
        status, body = await self.ask("GET", f"/v1/flows/{case.name}/connectors")
        if status != 200 or process is None:
            return None
        sent = {
            each["alias"]: sum(each["counts"]["source"].get(name, 0) for name in ("out", "again"))
            for each in body if each["source"]
        }  # fmt: skip
        return f"{process.pid} {self.counts['replace']}", sent

    async def _do_parts(self) -> None:
        """Connectors are paused and resumed."""
        case = self._some()
        status, body = await self.ask("GET", f"/v1/flows/{case.name}/connectors")
        if status != 200:
            return
        name = self._chance.choice([each["alias"] for each in body])
        await self.ask("PATCH", f"/v1/flows/{case.name}/connectors/{name}", {"status": "paused"})
        await asyncio.sleep(self._chance.choice([0.0, 0.5]))
        await self.ask("PATCH", f"/v1/flows/{case.name}/connectors/{name}", {"status": "running"})

    async def _do_replace(self) -> None:
        case = self._some()
        status, body = await self.ask("PUT", f"/v1/flows/{case.name}", case.given())
        if status != 200 or not all(each["complete"] for each in body["drained"]):
            case.hurts += 1
        if status not in (0, 200, 409, 503):
            self.wrong.append(f"{case}: PUT was answered by {status}: {body}")
        self.counts[f"replaced {status}"] += 1

    async def _do_undeploy(self) -> None:
        """A flow that came over HTTP goes, and comes again."""
        case = next((each for each in self.cases.values() if each.by_api and each.deployed), None)
        if case is None:
            return
        case.deployed = False
        status, body = await self.ask("DELETE", f"/v1/flows/{case.name}")
        if status != 200 or not all(each["complete"] for each in body["drained"]):
            case.hurts += 1
        self.counts[f"deleted {status}"] += 1
        for _ in range(20):
            if await self._deployed(case):
                break
            await asyncio.sleep(0.05)

    # -- the end ---------------------------------------------------------------------------------------------
    async def calm(self) -> None:
        """No more events, until all that were sent are delivered and settled. Then the process drains."""
        self._resting = True
        self._peer.behave("ok")
        await self._peer.open()
        await asyncio.to_thread(self._server.start)
        await self.start()
        await self.listening()
        for case in self.cases.values():
            await self._until(lambda: self._resumed(case), f"{case} can't be resumed")  # noqa: B023
        await self._until(self._finished, "not all was delivered")
        code = await self.end(signal.SIGTERM)
        if code:
            self.wrong.append(f"the last drain: exit status {code}")

    async def _resumed(self, case: Case) -> bool:
        status, _ = await self.ask("PATCH", f"/v1/flows/{case.name}", {"status": "running"})
        if status != 200:
            return False
        _, body = await self.ask("GET", f"/v1/flows/{case.name}/connectors")
        for each in body or ():
            await self.ask("PATCH", f"/v1/flows/{case.name}/connectors/{each['alias']}", {"status": "running"})
        return True

    async def _finished(self) -> bool:
        for case in self.cases.values():
            if case.over_http and len(case.sent) < case.next:
                return False
            if (await self.ask("GET", f"/v1/flows/{case.name}/unsettled"))[1].get("count"):
                return False
            if await self._pending(case):
                return False
            delivered = await self.delivered(case)
            if case.missing(delivered, await self._dead(case), case.sent):
                return False
        return True

    async def _pending(self, case: Case) -> list[str]:
        """What sources owe."""
        found = []
        for at, source in enumerate(case.sources):
            if case.source in ("stream", "instances"):
                key = case.stream(source)
                groups = await self._redis(lambda client: client.tgroup_list(key))  # noqa: B023
                info = await self._redis(lambda client: client.tinfo(key))  # noqa: B023
                found += [f"{key}: {each.pending} pending" for each in groups if each.pending]
                if not groups or groups[0].offset < info.last:
                    found.append(f"{key}: not read to its end")
            elif case.source.startswith("file"):
                path = case.file(source)
                position = load_position(Path(f"{path}.position"), FilePosition)
                if position is None or not path.exists():
                    path.touch()
                    found.append(f"{path}: no position")
                else:
                    ends = [(each.stat().st_ino, each.stat().st_size) for each in (*rotated(path), path)]
                    last = max((at for at, (_, size) in enumerate(ends) if size), default=0)
                    if (position.inode, position.offset) not in ends[last:]:  # or empty files after it
                        found.append(f"{path}: {position} of {ends[-1]}")
            if case.has_wal:
                key = f"flow:{case.name}:wal:log{at}"
                if count := await self._redis(lambda client: client.tlen(key)):  # noqa: B023
                    found.append(f"{key}: {count} entries")
        return found

    async def delivered(self, case: Case) -> Counter[Delivery]:
        found = Counter(case.delivered)
        for sink in case.sinks:
            kind = case.kind(sink)
            if kind == "stream":
                texts = await self._redis(
                    lambda client: [entry["data"] for page in client.pages(f"{case.name}:{sink}") for entry in page]  # noqa: B023
                )
            elif kind == "file":
                path = case.file(sink)
                files = [*rotated(path), path] if path.exists() else rotated(path)
                texts = [line for each in files for line in each.read_text().splitlines()]
            else:
                continue
            for text in texts:
                try:
                    value = json.loads(text)
                except ValueError:
                    self.counts["torn lines"] += 1
                    continue
                found.update(case.found(sink, value))
        case.seen = len(found)
        return found

    async def _dead(self, case: Case) -> Counter[int]:
        def letters(client: Client) -> Counter[int]:
            key = f"flow.{case.name}.dead:0"
            return Counter(json.loads(entry["data"])["n"] for page in client.pages(key) for entry in page)

        found: Counter[int] = await self._redis(letters)
        return found

    async def _until(self, true: Callable[[], Awaitable[bool]], what: str) -> None:
        end = time.monotonic() + PROGRESS
        seen = None
        while not await self._truly(true):
            now = [len(case.sent) for case in self.cases.values()], [case.seen for case in self.cases.values()]
            if now != seen:
                seen, end = now, time.monotonic() + PROGRESS
            if time.monotonic() > end:
                raise AssertionError("\n".join([what, *await self.told()]))
            if self._process is not None and self._process.returncode is not None:
                raise AssertionError(f"the process ended by itself, status {self._process.returncode}")
            await asyncio.sleep(0.1)

    async def _truly(self, true: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await true()
        except ConnectionError:
            return False

    async def told(self) -> list[str]:
        """How it is, for people."""
        lines = []
        for case in self.cases.values():
            with suppress(ConnectionError):
                missing = case.missing(await self.delivered(case), await self._dead(case), case.sent)
                lines += [f"{case}: sent {len(case.sent)} of {case.next}, missing {len(missing)}: {missing[:10]}"]
                lines += await self._pending(case)
            for path in ("", "/breaker", "/unsettled", "/connectors"):
                lines.append(json.dumps((await self.ask("GET", f"/v1/flows/{case.name}{path}"))[1]))
        return lines

    async def check(self) -> str:
        """Everything was delivered, nothing else was, and not too often. Counts, for people."""
        shown = []
        for case in self.cases.values():
            delivered = await self.delivered(case)
            dead = await self._dead(case)
            missing = case.missing(delivered, dead, case.sent)
            assert not missing, f"{case}: lost {missing[:20]}"
            unwanted = case.unwanted(delivered)
            assert not unwanted, f"{case}: {unwanted[:20]}"
            assert not (owed := await self._pending(case)), owed
            again = delivered.total() - len(delivered)
            assert again <= case.duplicates_most, f"{case}: {again} duplicates, {case.duplicates_most} are the most"
            letters = dead.total() - len(dead)
            assert letters <= case.duplicates_most, f"{case}: {letters} letters twice, {case.duplicates_most} at most"
            assert not dead or case.shape in ("failing", "hopeless"), f"{case}: dead letters {dead}"
            shown.append(f"{case}: {len(case.sent)} events, {again} duplicates of {case.duplicates_most}")
        assert not self.wrong, "\n".join(self.wrong[:20])
        log = self.log()
        # a process that starts while its parent is killed ends with EOFError
        assert log.count("Traceback") == log.count(", in spawn_main"), log[-20_000:]
        for told in ("settled twice", "unsettled:", "never retrieved", "Task was destroyed"):
            assert told not in log, log[-20_000:]
        assert self.memory < MEMORY
        return "\n".join([*shown, f"{dict(self.counts)}, {self.memory >> 20} MB"])


def memory(pid: int) -> int:
    """Bytes that a process has in memory; 0: there is none, or nobody says."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0
