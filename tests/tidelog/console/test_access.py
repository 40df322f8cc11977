"""Who may do what: sessions, cookies, CSRF, origins, hosts, TLS, and the audit log."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme

from tests.tidelog.console.consolekit import PASSWORD, Visitor, add_user, audited, serving, visit
from tidelog.console.application import ConsoleOptions, ConsoleServer
from tidelog.console.errors import ConsoleError, LoginError
from tidelog.console.sessions import IDLE, LIFETIME, PER_USER, ConsoleSessions
from tidelog.operating.loginfailures import FAILURES, WINDOW
from tidelog.testing import Server
from tidelog.transport.access import Access


def test_the_cookie_and_the_headers(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        assert (await visitor.get("/"))[0] == 303
        status, _, headers = await visitor.log_in()
        assert status == 303
        for attribute in ("HttpOnly", "SameSite=Strict", "Path=/"):
            assert attribute in headers["Set-Cookie"]
        status, text, headers = await visitor.get("/")
        assert status == 200
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["Cache-Control"] == "no-store"
        assert not re.search(r"<script>|<script [^>]*>[^<]|<style|\son\w+=| style=|https?://", text)
        assert (await visitor.get("/nothing"))[0] == 404
        assert (await visitor.get("/overview/history?span=9y"))[0] == 400

    visit(tidelog_server, test)


def test_changes_need_the_token_and_the_origin(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        login = {"user": "ann", "password": PASSWORD}
        assert (await visitor.post("/login", login, Origin="http://evil.example"))[0] == 403
        assert (await visitor.post("/login", login, Origin="null"))[0] == 403
        assert (await visitor.post("/login", login, Sec_Fetch_Site="cross-site"))[0] == 403
        await visitor.log_in()
        token = await visitor.csrf()
        assert (await visitor.post("/logout"))[0] == 403
        assert (await visitor.post("/logout", {"csrf": "x" + token}))[0] == 403
        assert (await visitor.post("/logout", {"csrf": token}, Origin="http://evil.example"))[0] == 403
        assert (await visitor.get("/"))[0] == 200
        assert (await visitor.post("/logout", X_CSRF_Token=token))[0] == 303
        assert (await visitor.get("/"))[0] == 303

    visit(tidelog_server, test)


def test_a_foreign_name_of_this_machine_is_refused(tidelog_server: Server) -> None:
    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        assert (await visitor.get("/login", Host="evil.example"))[0] == 403
        assert (await visitor.get("/login", Host="localhost:1"))[0] == 200

    visit(tidelog_server, test)


def test_requests_of_pages_whose_session_has_ended(tidelog_server: Server) -> None:
    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        assert (await visitor.get("/overview/history", Accept="*/*"))[0] == 401
        status, text, headers = await visitor.get("/overview/live", Accept="text/event-stream")
        assert (status, text) == (200, "event: ended\ndata: {}\n\n")
        _, _, headers = await visitor.get("/overview/clients", HX_Request="true")
        assert headers["HX-Redirect"] == "/login"

    visit(tidelog_server, test)


def test_a_user_who_was_deleted_is_logged_out(tidelog_server: Server) -> None:
    add_user(tidelog_server, "bob")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in("bob")
        assert (await visitor.get("/"))[0] == 200
        with tidelog_server.client() as client:
            client.redis.execute_command("ACL", "DELUSER", "bob")
        status, _, headers = await visitor.get("/")
        assert (status, headers["Location"]) == (303, "/login")

    visit(tidelog_server, test)


def test_the_default_user_has_no_password_on_this_machine_only(tidelog_server: Server) -> None:
    async def protected(visitor: Visitor, console: ConsoleServer) -> None:
        with tidelog_server.client() as client:
            client.redis.config_set("requirepass", "secret")
        status, text, _ = await visitor.log_in("default", "")
        with tidelog_server.client(password="secret") as client:
            client.redis.config_set("requirepass", "")
        assert status == 403
        assert "NOAUTH" in text

    async def local(visitor: Visitor, console: ConsoleServer) -> None:
        for name in ("X_Forwarded_For", "Forwarded", "Via", "X_Real_IP"):
            for password in ("", "any"):
                form = {"user": "default", "password": password}
                status, text, _ = await visitor.post("/login", form, **{name: "192.0.2.1"})
                assert (status, "A password is required" in text) == (403, True), name
        assert (await visitor.log_in("default", ""))[0] == 303
        assert (await visitor.get("/"))[0] == 200

    async def public(visitor: Visitor, console: ConsoleServer) -> None:
        visitor.url = console.url.replace("0.0.0.0", "127.0.0.1")
        for password in ("", "any"):  # the server accepts any password for a user without one
            status, text, _ = await visitor.log_in("default", password)
            assert status == 403
            assert "A password is required" in text
        with tidelog_server.client() as client:
            client.redis.config_set("requirepass", "secret")
        try:
            assert (await visitor.log_in("default", "secret"))[0] == 303
        finally:
            with tidelog_server.client(password="secret") as client:
                client.redis.config_set("requirepass", "")

    visit(tidelog_server, local)
    visit(tidelog_server, protected)
    visit(tidelog_server, public, listen="0.0.0.0:0", without_tls=True)


def test_the_audit_log(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in(password="wrong")
        await visitor.log_in()
        path.rename(tmp_path / "audit.1")  # as logrotate does
        await visitor.post("/logout", {"csrf": await visitor.csrf()})

    visit(tidelog_server, test, audit_file=str(path))
    before, after = audited(tmp_path / "audit.1"), audited(path)
    assert [(line["user"], line["action"]) for line in before + after] == [
        ("ann", "login"), ("ann", "login"), ("ann", "logout"),
    ]  # fmt: skip
    assert [line["result"].partition(" ")[0] for line in before + after] == ["WRONGPASS", "done", "done"]
    assert {line["address"] for line in before} == {"127.0.0.1"}
    assert PASSWORD not in path.read_text()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"listen": "9899"}, "it must be HOST:PORT"),
        ({"listen": "0.0.0.0:0"}, "use --tls-cert, or --without-tls"),
        ({"key_file": "key.pem"}, "--tls-key needs --tls-cert"),
        ({"cert_file": "/nothing.pem"}, "the certificate /nothing.pem can't be used"),
        ({"audit_file": "/nothing/audit"}, "the audit log /nothing/audit can't be written"),
        ({"access": Access.of("redis://ann:secret@localhost")}, "users of the console log in with their own"),
    ],
)  # fmt: skip
def test_options_that_are_refused(options: dict[str, str], problem: str) -> None:
    given = {"access": Access(), "listen": "127.0.0.1:0"} | options
    with pytest.raises(ConsoleError, match=re.escape(problem)):
        ConsoleServer(ConsoleOptions(**given))  # type: ignore[arg-type]


def test_with_tls(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    path = tmp_path / "console.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)

    async def main() -> None:
        connector = aiohttp.TCPConnector(ssl=context)
        jar = aiohttp.CookieJar(unsafe=True)
        async with (
            serving(tidelog_server.url, cert_file=str(path)) as console,
            aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session,
        ):
            assert console.url.startswith("https://")
            visitor = Visitor(session, console.url)
            _, _, headers = await visitor.log_in()
            assert "Secure" in headers["Set-Cookie"]
            assert (await visitor.get("/"))[0] == 200

    asyncio.run(main())


# -- limits --------------------------------------------------------------------------------------------------
class FakeClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_sessions_expire_and_are_limited(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    clock = FakeClock()

    async def main() -> None:
        sessions = ConsoleSessions(Access.of(tidelog_server.url), clock)
        first = await sessions.log_in("ann", PASSWORD, "10.0.0.1")
        clock.now += IDLE - 1
        assert sessions.find(first.token) is first
        clock.now += IDLE + 1
        assert sessions.find(first.token) is None
        assert first.ended

        begun = await sessions.log_in("ann", PASSWORD, "10.0.0.1")
        for _ in range(int(LIFETIME / IDLE) * 2):
            clock.now += IDLE / 2
            assert sessions.find(begun.token) is begun
        clock.now += 1
        assert sessions.find(begun.token) is None  # used all the time, and too old

        all_of_them = []
        for _ in range(PER_USER + 1):
            clock.now += 1
            all_of_them.append(await sessions.log_in("ann", PASSWORD, "10.0.0.1"))
        assert [each.ended for each in all_of_them] == [True] + PER_USER * [False]
        assert "secret" not in repr(all_of_them[-1])
        sessions.end_all()

    asyncio.run(main())


def test_failed_logins_are_limited(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    clock = FakeClock()

    async def main() -> None:
        sessions = ConsoleSessions(Access.of(tidelog_server.url), clock)
        for _ in range(FAILURES):
            with pytest.raises(LoginError, match="WRONGPASS"):
                await sessions.log_in("ann", "wrong", "10.0.0.1")
        with pytest.raises(LoginError, match="Try again in a minute"):
            await sessions.log_in("ann", PASSWORD, "10.0.0.1")
        assert await sessions.log_in("ann", PASSWORD, "10.0.0.2")
        clock.now += WINDOW + 1
        assert await sessions.log_in("ann", PASSWORD, "10.0.0.1")
        sessions.end_all()

    asyncio.run(main())
