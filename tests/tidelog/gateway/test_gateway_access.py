"""Who may do what: users, origins, hosts, and errors of the server."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import aiohttp
import pytest
import redis
import trustme

from tests.tidelog.gateway.gatewaykit import PASSWORD, Caller, add_user, serving, visit
from tests.waiting import until
from tidelog.gateway import users
from tidelog.gateway.application import GatewayOptions, GatewayServer
from tidelog.gateway.errors import GatewayError
from tidelog.operating.loginfailures import FAILURES
from tidelog.testing import Server
from tidelog.transport.access import Access

S = "/v1/streams/orders"
FIELD = {"fields": {"a": "b"}}


def test_the_server_decides_what_a_user_may(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann", "%R~orders", "+@connection", "+tread", "+tappend", "+tlen")

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        assert (await caller.post(S, FIELD))[0] == 201
        ann = caller.as_user("ann")
        assert (await ann.get(S))[0] == 200
        for method, path in (("POST", S), ("GET", "/v1/streams/mails"), ("HEAD", "/v1/streams/mails")):
            status, found, _ = await ann.call(method, path, FIELD if method == "POST" else None)
            assert status == 403
            assert method == "HEAD" or found["code"] == "NOPERM"

    visit(tidelog_server, test)


def test_credentials(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        ann = caller.as_user("ann")
        assert (await ann.get(S))[0] == 200
        for given in ("Basic !", "Basic " + base64.b64encode(b"ann").decode(), "Digest x", "Basic /w=="):
            status, _, headers = await caller.get(S, Authorization=given)
            assert (status, headers["WWW-Authenticate"].startswith("Basic ")) == (401, True)
        status, found, _ = await caller.as_user("ann", "wrong").get(S)
        assert (status, found["code"]) == (401, "WRONGPASS")
        statuses = [(await caller.as_user("ann", "wrong").get(S))[0] for _ in range(FAILURES)]
        assert statuses == [401] * (FAILURES - 1) + [429]
        assert (await ann.get(S))[0] == 200  # known users are not affected
        assert (await caller.get(S))[0] == 200

    visit(tidelog_server, test)


def test_failed_logins_are_limited_if_they_are_simultaneous(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        found = await asyncio.gather(*(caller.as_user("ann", f"wrong {n}").get(S) for n in range(60)))
        assert sorted({each[0] for each in found}) == [401, 429]
        assert sum(each[0] == 401 for each in found) == FAILURES

    visit(tidelog_server, test)


def test_simultaneous_logins_of_many_users_succeed(tidelog_server: Server) -> None:
    """As after a restart of a gateway behind a proxy, where all users have one address."""
    for number in range(3 * FAILURES):
        add_user(tidelog_server, f"user{number}")

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        found = await asyncio.gather(
            caller.as_user("ann", "wrong").get(S), *(caller.as_user(f"user{n}").get(S) for n in range(3 * FAILURES))
        )
        assert [each[0] for each in found] == [401] + [200] * 3 * FAILURES

    visit(tidelog_server, test)


def test_a_changed_password_is_noticed(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tidelog_server, "ann")
    monkeypatch.setattr(users, "VERIFIED", 0.0)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        ann = caller.as_user("ann")
        assert (await ann.get(S))[0] == 200
        with tidelog_server.client() as client:
            client.redis.execute_command("ACL", "SETUSER", "ann", "resetpass", ">another")
        assert (await ann.get(S))[0] == 401
        assert (await caller.as_user("ann", "another").get(S))[0] == 200

    visit(tidelog_server, test)


def test_verifying_users_leaves_no_connections(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "VERIFIED", 0.0)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        for _ in range(10):
            assert (await caller.get(S))[0] == 200
        with tidelog_server.client() as client:
            await until(lambda: sum(each["name"] == users.NAME for each in client.redis.client_list()) == 1)

    visit(tidelog_server, test)


def test_the_default_user(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        assert (await caller.get(S))[0] == 200
        with tidelog_server.client() as client:
            client.redis.config_set("requirepass", PASSWORD)

    visit(tidelog_server, test)

    async def second(caller: Caller, gateway: GatewayServer) -> None:
        for _ in range(2 * FAILURES):  # a request without credentials is no failed login
            status, found, _ = await caller.get(S)
            assert (status, found["code"]) == (401, "NOAUTH")
        assert (await caller.as_user("default").get(S))[0] == 200
        assert (await caller.as_user("").get(S))[0] == 200
        with redis.Redis(port=tidelog_server.port, password=PASSWORD) as client:
            client.config_set("requirepass", "")

    visit(tidelog_server, second)


def test_other_machines_need_credentials(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        caller.url = caller.url.replace("0.0.0.0", "127.0.0.1")
        assert (await caller.get(S))[1]["code"] == "no-credentials"
        for password in ("", "any"):  # the server accepts any password for a user without one
            assert (await caller.as_user("default", password).get(S))[1]["code"] == "no-password"
        assert not gateway.site.users._users  # each password would be another user
        with tidelog_server.client() as client:
            client.redis.config_set("requirepass", "secret")
        try:
            assert (await caller.as_user("default", "secret").get(S))[0] == 200
            assert (await caller.as_user("default", "any").get(S))[0] == 401
        finally:
            with tidelog_server.client(password="secret") as client:
                client.redis.config_set("requirepass", "")
        add_user(tidelog_server, "ann")
        assert (await caller.as_user("ann").get(S, Host="gateway.example.org"))[0] == 200

    visit(tidelog_server, test, listen="0.0.0.0:0", without_tls=True)


def test_pages_of_other_sites(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        assert (await caller.get(S, Host="evil.example"))[1]["code"] == "foreign-host"
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
            assert (await caller.get(S, **headers))[1]["code"] == "foreign-origin"
            assert (await caller.post(S, FIELD, **headers))[0] == 403
        own = caller.url.removeprefix("http://")
        assert (await caller.post(S, FIELD, Origin=f"http://{own}", Sec_Fetch_Site="same-origin"))[0] == 201
        preflight = {"Origin": "https://shop.example", "Access_Control_Request_Method": "POST"}
        assert (await caller.call("OPTIONS", S, **preflight))[0] == 403

    visit(tidelog_server, test)


def test_cors(tidelog_server: Server) -> None:
    shop = "https://shop.example"

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        status, _, headers = await caller.call(
            "OPTIONS", S, Origin=shop, Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="authorization, content-type, idempotency-key",
        )  # fmt: skip
        assert (status, headers["Access-Control-Allow-Origin"]) == (204, shop)
        assert "idempotency-key" in headers["Access-Control-Allow-Headers"]
        assert "POST" in headers["Access-Control-Allow-Methods"]
        for path in (S, "/v1/nothing"):
            _, _, headers = await caller.get(path, Origin=shop)
            assert (headers["Access-Control-Allow-Origin"], headers["Vary"]) == (shop, "Origin")
        assert (await caller.get(S, Origin="https://evil.example"))[0] == 403

    visit(tidelog_server, test, cors_origins=[shop + "/"])


def test_errors_of_the_server(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        with tidelog_server.client() as client:
            client.redis.set("text", "x")
            for method, body in (("GET", None), ("POST", FIELD), ("POST", [FIELD, FIELD])):
                status, found, _ = await caller.call(method, "/v1/streams/text", body)
                assert (status, found["code"], "Retry-After" in found) == (409, "WRONGTYPE", False)
            client.redis.config_set("maxmemory", 1)
            for body in (FIELD, [FIELD, FIELD]):
                status, found, headers = await caller.post(S, body)
                assert (status, found["code"], headers["Retry-After"]) == (503, "OOM", "1"), found
            assert (await caller.get(S))[0] == 200
            client.redis.config_set("maxmemory", 0)
            client.redis.config_set("min-replicas-to-write", 1)
            assert (await caller.post(S, FIELD))[1]["code"] == "NOREPLICAS"
            client.redis.config_set("min-replicas-to-write", 0)

    visit(tidelog_server, test)


def test_tls(tidelog_server: Server, tmp_path: Path) -> None:
    authority = trustme.CA()
    pem = tmp_path / "gateway.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def main() -> None:
        async with (
            serving(tidelog_server.url, cert_file=str(pem)) as gateway,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session,
        ):
            assert gateway.url.startswith("https://")
            assert (await Caller(session, gateway.url).post(S, FIELD))[0] == 201

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"listen": "0.0.0.0:9897"}, "other machines can connect"),
        ({"listen": "x"}, "must be HOST:PORT, such as 127.0.0.1:9897"),
        ({"key_file": "x"}, "--tls-key needs --tls-cert"),
        ({"cert_file": "/nothing"}, "can't be used"),
        ({"cors_origins": ["shop.example"]}, "--cors-origin: 'shop.example' is not an origin"),
        ({"access": Access.of("redis://ann:secret@localhost")}, "users of the gateway send their own"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(GatewayError, match=text):
        GatewayServer(GatewayOptions(**({"access": Access.of("redis://localhost")} | options)))  # type: ignore[arg-type]
