"""A server that takes no client without a certificate and a password: every program reaches it by one URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
import trustme
from click.testing import CliRunner

from tidelog import Access, AsyncClient, Client
from tidelog.backup.source import BackupSource
from tidelog.cli.program import main
from tidelog.client.strings import server_time
from tidelog.flows.connectors.redis.base import client as flow_client
from tidelog.flows.serveraccess import access as flow_access
from tidelog.flows.serveraccess import channel
from tidelog.moving.endpoints import Endpoint
from tidelog.spark.options import access_of, given_of
from tidelog.spark.optionvalues import OptionValues
from tidelog.testing import Server, free_port, running_server
from tidelog.topics import Topic
from tidelog.transport.leader import LeaderConnection
from tidelog.workers import App, Worker

PASSWORD = "se/cr@t"
QUOTED = "se%2Fcr%40t"

SHOP = """
import os
import msgspec
from tidelog import Access
from tidelog.workers import App

class Order(msgspec.Struct):
    id: int
    item: str

app = App("shop", access=Access((os.environ["SHOP_AT"],), password=os.environ["SHOP_PASSWORD"], {files}))
orders = app.topic("orders", Order, partition_by="id", partitions=1)

plain = App("plain", url=os.environ["SHOP_FULL_URL"])
teas = plain.topic("teas", Order, partition_by="id", partitions=1)
default = App("default")
rest = default.topic("rest", Order, partition_by="id", partitions=1)

@app.each(orders)
async def bill(order): ...
"""


@dataclass
class Secure:
    """The server, and all that a client needs."""

    server: Server
    place: str
    ca: str
    cert: str
    key: str

    @property
    def options(self) -> str:
        return f"ssl_ca_certs={self.ca}&ssl_certfile={self.cert}&ssl_keyfile={self.key}"

    @property
    def url(self) -> str:
        return f"rediss://:{QUOTED}@{self.place}?{self.options}"

    @property
    def access(self) -> Access:
        return Access(
            (f"rediss://{self.place}",), password=PASSWORD, ca_file=self.ca, cert_file=self.cert, key_file=self.key
        )


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    files = {name: str(folder / f"{name}.pem") for name in ("ca", "server", "server_key", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    for cert, key, names in (("server", "server_key", ("localhost", "127.0.0.1")), ("cert", "key", ("client@x.org",))):
        made = authority.issue_cert(*names)
        made.cert_chain_pems[0].write_to_path(files[cert])
        made.private_key_pem.write_to_path(files[key])
    port = free_port()
    with running_server(
        tls_port=port, tls_cert_file=files["server"], tls_key_file=files["server_key"], tls_ca_cert_file=files["ca"],
        requirepass=PASSWORD,
    ) as server:  # fmt: skip
        yield Secure(server, f"127.0.0.1:{port}", files["ca"], files["cert"], files["key"])


def ways(secure: Secure) -> dict[str, str]:
    """The same server, said in different ways."""
    return {
        "in front": secure.url,
        "in the query": f"rediss://{secure.place}?password={QUOTED}&{secure.options}&db=0",
        "several": f"rediss://:{QUOTED}@127.0.0.1:1?{secure.options},rediss://:{QUOTED}@{secure.place}",
    }


def answers(access: Access) -> bool:
    with contextlib.closing(LeaderConnection(access, "test")) as servers:
        return bool(servers.ask(server_time())[0])


@pytest.mark.parametrize("way", ["in front", "in the query", "several"])
def test_what_reaches_it(secure: Secure, way: str) -> None:
    url = ways(secure)[way]
    quick = Access.of(url, retries=0)
    assert answers(quick)
    with Client(url) as client:
        assert client.redis.ping()
        client.tappend("seen", {"by": way})

    async def over_asyncio() -> None:
        async with AsyncClient(url) as made:
            assert await made.tlen("seen")
        opened = await channel(flow_access(url), "test")
        opened.close()
        async with flow_client(url) as connector:
            assert await connector.redis.ping()

    asyncio.run(over_asyncio())
    with contextlib.closing(BackupSource(url)) as copied:
        assert copied.facts.role == "leader"
    given = OptionValues({"url": url, "subscribe": "seen", "fetchOffset.numRetries": "0"})
    spark = access_of(given)
    assert answers(spark)
    assert access_of(OptionValues(given_of(spark))) == spark
    if way != "several":
        end = Endpoint("target", url)
        assert end.name.startswith("tidelog ")
        end.close()
    topic: Topic[dict[str, str]] = Topic("by_url", partitions=1, url=url)
    topic.sync.send({"a": "b"})
    topic.sync.close()


@pytest.mark.parametrize("way", ["in front", "in the query", "several"])
@pytest.mark.parametrize("command", [("info",), ("topics", "list"), ("jobs", "list"), ("app", "delete", "x")])
def test_programs(secure: Secure, command: tuple[str, ...], way: str) -> None:
    found = CliRunner().invoke(main, [*command, "--url", ways(secure)[way]])
    assert "no answer" not in found.output
    assert found.exit_code == 0 or "the server has no state of an app" in found.output, found.output
    refused = CliRunner().invoke(main, [*command, "--url", f"rediss://:{QUOTED}@{secure.place}?ssl_ca={secure.ca}"])
    assert refused.exit_code != 0
    assert "unknown option 'ssl_ca'" in refused.output
    assert "cr@t" not in refused.output


@pytest.mark.parametrize("command", [("jobs", "list"), ("info",)])
def test_without_a_certificate_it_is_refused(secure: Secure, command: tuple[str, ...]) -> None:
    url = f"rediss://:{QUOTED}@{secure.place}?ssl_ca_certs={secure.ca}"
    refused = CliRunner().invoke(main, [*command, "--url", url])
    assert refused.exit_code != 0
    assert "no answer from" in refused.output


@pytest.mark.parametrize("movable", [False, True])
def test_topics_and_workers_with_an_access(secure: Secure, movable: bool) -> None:
    access = secure.access
    if movable:
        access = Access(
            ("rediss://127.0.0.1:1", *access.urls), password=PASSWORD, ca_file=secure.ca, cert_file=secure.cert,
            key_file=secure.key,
        )  # fmt: skip
    name = f"things{movable}".lower()
    app = App("access", access=access)
    things = app.topic(name, partitions=1)
    seen: list[str] = []

    @app.each(things)
    async def take(thing: dict[str, str]) -> None:
        seen.append(thing["id"])

    things.sync.send({"id": "thread"})
    things.sync.close()

    async def run() -> None:
        await things.send({"id": "loop"})
        worker = Worker(app)
        running = asyncio.create_task(worker.run(signals=False))
        await things.send({"id": "beside"})
        while len(seen) < 3:
            await asyncio.sleep(0.02)
            if running.done():
                running.result()
        worker.stop()
        await running
        await things.send({"id": "after"})
        await things.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert seen == ["thread", "loop", "beside"]
    with Client(secure.url) as client:
        assert client.tlen(f"{name}:0") == 4


def there(admin: Client) -> bool:
    try:
        return bool(admin.redis.exists("s"))
    except redis.ConnectionError:  # it loads what its leader has
        return False


def test_a_client_follows_the_leader() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(running_server()) for _ in range(2))
        client, admin = stack.enter_context(Client(f"{first.url},{second.url}")), stack.enter_context(second.client())
        admin.redis.execute_command("REPLICAOF", first.host, first.port)
        client.tappend("s", {"a": "1"})
        while not there(admin):
            time.sleep(0.02)
        admin.redis.execute_command("REPLICAOF", "NO", "ONE")
        with first.client() as old:
            old.redis.execute_command("REPLICAOF", second.host, second.port)
        with pytest.raises(redis.ConnectionError, match="a replica now"):
            client.tappend("s", {"a": "2"})
        client.tappend("s", {"a": "3"})
        assert [entry.text()["a"] for entry in admin.trange("s")] == ["1", "3"]


# -- the program, with an app's access ---------------------------------------------------------------------------
@pytest.fixture
def shop(secure: Secure, tmp_path: Path) -> dict[str, str]:
    files = f"ca_file={secure.ca!r}, cert_file={secure.cert!r}, key_file={secure.key!r}"
    (tmp_path / "tlsshop.py").write_text(SHOP.format(files=files))
    return {
        "SHOP_AT": f"rediss://{secure.place}", "SHOP_PASSWORD": PASSWORD, "SHOP_FULL_URL": secure.url,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}",
    }  # fmt: skip


def program(shop: dict[str, str], *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TIDELOG_URL"} | shop
    return subprocess.run(
        [sys.executable, "-m", "tidelog.cli", *words], input=text, capture_output=True, text=True, timeout=60,
        env=environment,
    )  # fmt: skip


def test_send_uses_the_access_of_the_app(secure: Secure, shop: dict[str, str]) -> None:
    record = json.dumps({"id": 7, "item": "tea"})
    for url in ((), ("--url", f"rediss://{secure.place}"), ("--url", secure.url)):
        sent = program(shop, "send", "tlsshop:orders", record, *url)
        assert sent.returncode == 0, sent.stderr
    many = program(shop, "sendmany", "tlsshop:orders", "-", "--format", "jsonl", text=f"{record}\n{record}\n")
    assert many.returncode == 0, many.stderr
    assert program(shop, "send", "tlsshop:teas", record).returncode == 0
    with Client(secure.url) as client:
        assert (client.tlen("orders:0"), client.tlen("teas:0")) == (5, 1)
    looked = program(shop, "app", "status", "tlsshop:app", "--interval", "0", "--json")
    assert looked.returncode == 0, looked.stderr


def test_another_url_contradicts_the_access(secure: Secure, shop: dict[str, str], tidelog_server: Server) -> None:
    record = json.dumps({"id": 7, "item": "tea"})
    other = tidelog_server.url
    for words, text in (
        (("send", "tlsshop:orders", record), None), (("app", "status", "tlsshop:app"), None),
        (("sendmany", "tlsshop:orders", "-", "--format", "jsonl"), record + "\n"),
    ):  # fmt: skip
        refused = program(shop, *words, "--url", other, text=text)
        assert refused.returncode == 2
        said = f"is on {secure.place.join(['rediss://', ''])}, which --url ({other}) contradicts: leave it out"
        assert said in refused.stderr
    for topic in ("orders", "teas"):  # a variable of the environment does not move records silently
        refused = program(shop | {"TIDELOG_URL": other}, "send", f"tlsshop:{topic}", record)
        assert refused.returncode == 2
        assert f"TIDELOG_URL ({other}) contradicts: unset it" in refused.stderr
    with tidelog_server.client() as client:
        assert client.redis.dbsize() == 0
        assert program(shop, "send", "tlsshop:teas", record, "--url", other).returncode == 0  # said on purpose
        assert program(shop | {"TIDELOG_URL": other}, "send", "tlsshop:rest", record).returncode == 0  # none declared
        assert (client.tlen("teas:0"), client.tlen("rest:0")) == (1, 1)


def test_url_and_access_are_one_or_the_other(secure: Secure) -> None:
    with pytest.raises(ValueError, match="url and access both specify the server"):
        Topic("orders", url=secure.url, access=secure.access)
    with pytest.raises(ValueError, match="unknown option 'ssl_ca'"):
        Topic("orders", url="rediss://h?ssl_ca=/x")
    with pytest.raises(Exception, match="an app's topics must be on its server"):
        App("a", access=secure.access).topic("orders", access=Access(("redis://127.0.0.1:1",)))
    app = App("a", access=secure.access)
    assert app.topic("orders", url=f"rediss://{secure.place}").access == Access((f"rediss://{secure.place}",))
