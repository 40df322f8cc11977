"""Clients in use: what they send on connecting, replayed byte for byte; redis-py, redis-cli, redis-benchmark at work.

The bytes of redis-py 8.1, redis-cli and redis-benchmark 7.0 were recorded from them; those of node-redis, ioredis and
lettuce are written from what is known of their handshakes.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio

from respserver.testing import RunningServer
from tests.waiting import until
from tests.wire.rawclient import Raw, pack

HELLO_3 = b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"
REDIS_PY_NAME = b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$8\r\nLIB-NAME\r\n$8\r\nredis-py\r\n"
REDIS_PY_VERSION = b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$7\r\nLIB-VER\r\n$5\r\n8.1.0\r\n"
MAINTENANCE = (
    b"*5\r\n$6\r\nCLIENT\r\n$19\r\nMAINT_NOTIFICATIONS\r\n$2\r\nON\r\n"
    b"$20\r\nmoving-endpoint-type\r\n$13\r\ninternal-fqdn\r\n"
)


def greeting(reply: Any) -> bool:
    """HELLO 3's map; node-redis and redis-py fail without it."""
    return isinstance(reply, dict) and reply[b"proto"] == 3 and reply[b"server"] == b"redis"


def ok(reply: Any) -> bool:
    return bool(reply == b"OK")


def refused(reply: Any) -> bool:
    """An error that begins with ERR: every client that asks for maintenance messages goes on without them."""
    return isinstance(reply, str) and reply.startswith("ERR unknown subcommand")


def ready(reply: Any) -> bool:
    """ioredis waits until INFO says that nothing is being loaded."""
    text = reply if isinstance(reply, bytes) else b""
    return b"\r\nloading:0\r\n" in text and b"\r\nredis_version:8." in text


def setting(name: bytes) -> Callable[[Any], bool]:
    """redis-benchmark prints it."""
    return lambda reply: isinstance(reply, list) and len(reply) == 2 and reply[0] == name


CONNECTS: dict[str, list[tuple[bytes, list[Callable[[Any], bool]]]]] = {
    # what is sent at once -> what each reply must be
    "redis-py resp3": [
        (HELLO_3, [greeting]), (MAINTENANCE, [refused]), (REDIS_PY_NAME, [ok]), (REDIS_PY_VERSION, [ok]),
    ],
    "redis-py resp2": [(REDIS_PY_NAME, [ok]), (REDIS_PY_VERSION, [ok])],
    "redis-py asyncio resp2": [(REDIS_PY_NAME + REDIS_PY_VERSION, [ok, ok])],
    "node-redis": [
        (
            HELLO_3
            + pack("CLIENT", "SETINFO", "LIB-VER", "5.8.0")
            + pack("CLIENT", "SETINFO", "LIB-NAME", "node-redis")
            + pack("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "external-ip"),
            [greeting, ok, ok, refused],
        )
    ],
    "ioredis": [
        (b"*1\r\n$4\r\ninfo\r\n", [ready]),
        (b"*3\r\n$6\r\nclient\r\n$7\r\nsetname\r\n$3\r\napp\r\n*2\r\n$6\r\nselect\r\n$1\r\n0\r\n", [ok, ok]),
    ],
    "lettuce": [
        (pack("HELLO", "3", "SETNAME", "app"), [greeting]),
        (
            pack("CLIENT", "SETINFO", "lib-name", "Lettuce")
            + pack("CLIENT", "SETINFO", "lib-ver", "6.8.0.RELEASE/1a2b3c4"),
            [ok, ok],
        ),
    ],
    "redis-cli -3": [(HELLO_3, [greeting])],
    "redis-benchmark": [
        (
            b"*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$4\r\nsave\r\n*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$10\r\nappendonly\r\n",
            [setting(b"save"), setting(b"appendonly")],
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize("client", CONNECTS)
@pytest.mark.parametrize("cut", [0, 1, 7], ids=["whole", "byte by byte", "in pieces"])
def test_connecting(hand: RunningServer, client: str, cut: int) -> None:
    with Raw(hand.port) as raw:
        for sent, wanted in CONNECTS[client]:
            for at in range(0, len(sent), cut or len(sent)):
                raw.sock.sendall(sent[at : at + (cut or len(sent))])
            for check in wanted:
                reply = raw.read()
                assert check(reply), reply
        assert raw("PING") == b"PONG"


def test_what_lettuce_falls_back_on(c: Raw) -> None:
    """It tries RESP2 where HELLO answers one of these two, and gives up on anything else."""
    assert c("HELLO", 4).startswith("NOPROTO ")
    assert c("HELLOX", 3).startswith("ERR unknown command")
    assert c("PING") == b"PONG"


# -- redis-py ----------------------------------------------------------------------------------------------------
@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def r(server: RunningServer, request: pytest.FixtureRequest) -> Any:
    with redis.Redis(port=server.port, protocol=request.param) as client:
        yield client


def test_redis_py_transactions(r: Any) -> None:
    with r.pipeline(transaction=True) as pipe:
        assert pipe.set("k", 1).incr("k").execute_command("TAPPEND", "s", "a", "b").execute()[:2] == [True, 2]
        pipe.watch("k")
        r.set("k", 10)
        pipe.multi()
        pipe.incr("k")
        with pytest.raises(redis.WatchError):
            pipe.execute()
        pipe.set("k", "x").incr("k").set("l", 1)
        with pytest.raises(redis.ResponseError, match="not an integer"):
            pipe.execute()
    assert r.get("l") == b"1"

    def append_zero(pipe: Any) -> None:
        value = pipe.get("l")
        pipe.multi()
        pipe.set("m", value + b"0")

    assert r.transaction(append_zero, "l") == [True]
    assert r.get("m") == b"10"


def test_redis_py_pipelines(r: Any) -> None:
    with r.pipeline(transaction=False) as pipe:
        for number in range(5000):
            pipe.execute_command("TAPPEND", "s", "n", number)
        ids = pipe.execute()
    assert len(set(ids)) == 5000
    entries = r.execute_command("TRANGE", "s", "-", "+")
    assert [int(entry[2]) for entry in entries] == list(range(5000))


def test_redis_py_publish_and_subscribe(r: Any) -> None:
    with r.pubsub() as listener:
        listener.subscribe("a", "b")
        listener.psubscribe("c*")
        assert [listener.get_message(timeout=5)["type"] for _ in range(3)] == ["subscribe", "subscribe", "psubscribe"]
        assert [r.publish(name, "x") for name in ("a", "b", "c1", "d")] == [1, 1, 1, 0]
        messages = [listener.get_message(timeout=5) for _ in range(3)]
        assert [(m["type"], m["channel"]) for m in messages] == [
            ("message", b"a"), ("message", b"b"), ("pmessage", b"c1"),
        ]  # fmt: skip
        listener.ping()
        assert listener.get_message(timeout=5)["type"] == "pong"
        listener.unsubscribe()
        listener.punsubscribe()
        assert [listener.get_message(timeout=5)["data"] for _ in range(3)] == [2, 1, 0]
    assert r.pubsub_channels() == []


def test_redis_py_scans(r: Any) -> None:
    r.mset({f"k:{number}": number for number in range(1000)})
    r.execute_command("TAPPEND", "s", "a", "b")
    assert sorted(r.scan_iter()) == sorted([b"s", *(b"k:%d" % number for number in range(1000))])
    assert len(set(r.scan_iter(match="k:1*", count=7))) == 111
    assert list(r.scan_iter(_type="stream")) == [b"s"]


def test_redis_py_waits(r: Any) -> None:
    """A blocking read in a thread, served by another connection of the same pool."""
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(r.execute_command("TREAD", "s", "", 1, "BLOCK", 10_000)))
    reader.start()
    while r.info("clients")["blocked_clients"] != 1:
        pass
    r.execute_command("TAPPEND", "s", "a", "b")
    reader.join(10)
    assert [entry[1:] for entry in got[0]] == [[b"a", b"b"]]
    assert r.execute_command("TREAD", "s", "", 1, "BLOCK", 1) is None


def test_redis_py_looks_around(r: Any) -> None:
    """What consoles and exporters ask through redis-py, whose parsers must understand the answers."""
    assert r.info()["redis_version"] == "8.4.0"
    assert r.client_list()[0]["lib-name"] == "redis-py"
    assert r.client_id() == r.client_info()["id"]
    assert r.config_get("maxclients") == {"maxclients": "10000"}
    assert r.command_count() == len(r.command())
    assert r.memory_stats()
    assert isinstance(r.slowlog_get(), list)
    assert r.dbsize() == 0
    assert r.role()[0] == b"master"
    assert len(r.time()) == 2
    assert r.client_setname("me")
    assert r.client_getname() in (b"me", "me")


@pytest.mark.parametrize("proto", [2, 3])
def test_asyncio(server: RunningServer, proto: int) -> None:
    async def run() -> None:
        client: Any = redis.asyncio.Redis(port=server.port, protocol=proto)

        async def blocked(number: int) -> bool:
            return bool((await client.info("clients"))["blocked_clients"] == number)

        try:
            await asyncio.gather(*[client.incr("k") for _ in range(50)])
            assert await client.get("k") == b"50"
            async with client.pipeline(transaction=True) as pipe:
                assert await pipe.set("a", 1).incr("a").execute() == [True, 2]
            async with client.pubsub() as listener:
                await listener.subscribe("news")
                assert (await listener.get_message(timeout=5))["type"] == "subscribe"
                assert await client.publish("news", "x") == 1
                assert (await listener.get_message(timeout=5))["data"] == b"x"
            reads = [asyncio.ensure_future(client.execute_command("TREAD", "s", "", 1, "BLOCK", 0)) for _ in range(5)]
            await until(partial(blocked, 5))
            reads.pop().cancel()  # redis-py drops the connection; the server must notice
            await until(partial(blocked, 4))
            await client.execute_command("TAPPEND", "s", "a", "b")
            assert len(await asyncio.gather(*reads)) == 4
            assert len([key async for key in client.scan_iter()]) == 3
        finally:
            await client.aclose()

    asyncio.run(run())


# -- redis-cli, redis-benchmark ----------------------------------------------------------------------------------
def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here (Debian: apt-get install redis-tools)")
    return found


def cli(port: int, *words: str, typed: str | None = None) -> str:
    command = [tool("redis-cli"), "-p", str(port), *words]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout


@pytest.mark.parametrize("option", ["-2", "-3"])
def test_redis_cli(server: RunningServer, option: str) -> None:
    port = server.port
    first = cli(port, option, "TAPPEND", "s", "city", "Oslo").strip()
    typed = "SET k v\nMULTI\nGET k\nTLEN s\nEXEC\nNOSUCH\nSUBSCRIBE\n"
    shown = cli(port, option, typed=typed).splitlines()
    assert shown[:6] == ["OK", "OK", "QUEUED", "QUEUED", "v", "1"]
    assert shown[6].startswith("ERR unknown command 'NOSUCH'")
    assert cli(port, option, "--json", "TRANGE", "s", "-", "+").strip() == f'[["{first}","city","Oslo"]]'
    assert sorted(cli(port, option, "--scan").split()) == ["k", "s"]
    assert "maxclients" in cli(port, option, "CONFIG", "GET", "max*")
    assert "# Server" in cli(port, option, "INFO")
    assert cli(port, option, "TREAD", "s", "", "1", "BLOCK", "1").strip() == ""
    assert "blocked_clients:0" in cli(port, option, "INFO", "clients")


def test_redis_cli_subscribes(server: RunningServer) -> None:
    command = [tool("redis-cli"), "-p", str(server.port), "--csv", "SUBSCRIBE", "news"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        try:
            while (line := listener.stdout.readline()) != '"subscribe","news",1\n':
                assert line.startswith("Reading messages")
            assert cli(server.port, "PUBLISH", "news", "hello").strip() == "1"
            assert listener.stdout.readline() == '"message","news","hello"\n'
        finally:
            listener.kill()


def test_redis_cli_mass_insertion(server: RunningServer) -> None:
    """``--pipe`` ends with an ECHO of random bytes and waits for it."""
    commands = b"".join(pack("TAPPEND", "s", "n", number) for number in range(20_000))
    command = [tool("redis-cli"), "-p", str(server.port), "--pipe"]
    done = subprocess.run(command, input=commands, capture_output=True, timeout=20, check=True)
    assert b"errors: 0, replies: 20000" in done.stdout
    assert cli(server.port, "TLEN", "s").strip() == "20000"


def test_redis_benchmark(server: RunningServer) -> None:
    command = [tool("redis-benchmark"), "-p", str(server.port), "-q", "-n", "2000", "-c", "10", "-P", "8"]
    done = subprocess.run(
        [*command, "-t", "ping,set,get"], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.count("requests per second") == 4
    assert "ERR" not in done.stdout + done.stderr
    assert "WARNING" not in done.stderr


def test_reads_and_lengths_of_pipelines(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock, sock.makefile("rb") as replies:
        for _ in range(2):
            sock.sendall(b"PING\r\n" * 10)
            assert [replies.readline() for _ in range(10)] == [b"+PONG\r\n"] * 10
        sock.sendall(b"CLIENT INFO\r\n")
        text = replies.read(int(replies.readline()[1:])).decode()
    line = dict(word.split("=", 1) for word in text.split())
    names = ("tot-cmds", "read-events", "avg-pipeline-len-sum", "avg-pipeline-len-cnt")
    assert [line[name] for name in names] == ["20", "3", "20", "2"]  # a command is counted when it has ended
