"""PostgreSQL, MariaDB, and SQLite for tests of ``sql``: one database each, with the same small interface."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.peerkit import PeerServer, free_port, program, server_directory

POSTGRES = "/usr/lib/postgresql/{}/bin"
SECRET = "s3cret-Pass"


class SqlPeer:
    """A database. ``url`` contains the password."""

    def __init__(self, url: str, ca: Path | None = None) -> None:
        self.url = url
        self.ca = str(ca)  # the file of the authority that has issued the server's certificate
        self._server: PeerServer | None = None

    @property
    def server(self) -> PeerServer:
        assert self._server is not None
        return self._server

    def _connect(self) -> Any:
        raise NotImplementedError

    def run(self, sql: str, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Execute a statement, or one for each row, and commit. Returns the result."""
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            if rows:
                cursor.executemany(sql, rows)
            else:
                cursor.execute(sql)
            found = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return found


class PostgresPeer(SqlPeer):
    data: Path  # its directory

    def run_alone(self, sql: str) -> None:
        """Execute a statement while the server does not run."""
        binary, *options = self.server._command
        subprocess.run(
            [binary, "--single", *options[:2], *options[6:], "postgres"], input=sql.encode(), check=True,
            capture_output=True, user="postgres" if os.geteuid() == 0 else None,
        )  # fmt: skip

    def _connect(self) -> Any:
        import psycopg

        try:
            return psycopg.connect(self.url, connect_timeout=2)
        except psycopg.OperationalError as error:
            raise OSError(str(error)) from error


class MariadbPeer(SqlPeer):
    def _connect(self) -> Any:
        import pymysql

        try:
            return pymysql.connect(
                host="127.0.0.1", port=self.server.port, user="tide", password=SECRET, database="shop",
                connect_timeout=2,
            )  # fmt: skip
        except pymysql.err.OperationalError as error:
            raise OSError(str(error)) from error


class SqlitePeer(SqlPeer):
    def _connect(self) -> Any:
        return sqlite3.connect(self.url.removeprefix("sqlite:///"))


@contextmanager
def postgres_peer(*options: str) -> Iterator[PostgresPeer]:
    """options: of the server, such as ``wal_level=logical``."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'tidelog[flows-sql]')")
    versions = [POSTGRES.format(number) for number in range(18, 12, -1)]
    initdb, postgres = (program(name, "postgresql", *versions) for name in ("initdb", "postgres"))
    with server_directory("postgres") as directory:
        secret = directory / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o644)
        data = directory / "data"
        subprocess.run(
            [initdb, "-D", data, "-U", "tide", "-A", "scram-sha-256", f"--pwfile={secret}", "-N", "--no-locale", "-E",
             "UTF8"],
            check=True, capture_output=True, cwd="/", user="postgres" if os.geteuid() == 0 else None,
        )  # fmt: skip
        port = free_port()
        given = ["fsync=off", "shared_buffers=16MB", f"unix_socket_directories={directory}", "ssl=on",
                 f"ssl_cert_file={directory}/server.pem", f"ssl_key_file={directory}/server.key", *options]  # fmt: skip
        command = [postgres, "-D", str(data), "-p", str(port), "-h", "127.0.0.1"]
        peer = PostgresPeer(f"postgresql://tide:{SECRET}@127.0.0.1:{port}/postgres", directory / "ca.pem")
        peer.data = data
        peer._server = PeerServer(
            [*command, *(word for each in given for word in ("-c", each))], port, lambda: peer.run("SELECT 1"),
            user="postgres",
        )  # fmt: skip
        peer.server.start()
        try:
            yield peer
        finally:
            peer.server.kill()


@contextmanager
def mariadb_peer() -> Iterator[MariadbPeer]:
    pytest.importorskip("aiomysql", reason="aiomysql is not installed (pip install 'tidelog[flows-sql]')")
    install, daemon = (program(name, "mariadb-server") for name in ("mariadb-install-db", "mariadbd"))
    with server_directory("mysql") as directory:
        data = directory / "data"
        user = ["--user=mysql"] if os.geteuid() == 0 else []
        subprocess.run(
            [install, "--no-defaults", f"--datadir={data}", "--skip-test-db", "--skip-name-resolve",
             "--innodb-log-file-size=4M", "--auth-root-authentication-method=normal", *user],
            check=True, capture_output=True, cwd="/",
        )  # fmt: skip
        begin = directory / "begin.sql"
        begin.write_text(
            "CREATE DATABASE IF NOT EXISTS shop;\n"
            f"CREATE USER IF NOT EXISTS tide@'127.0.0.1' IDENTIFIED BY '{SECRET}';\n"
            "GRANT ALL ON *.* TO tide@'127.0.0.1';\n"
        )
        port = free_port()
        peer = MariadbPeer(f"mysql://tide:{SECRET}@127.0.0.1:{port}/shop", directory / "ca.pem")
        peer._server = PeerServer(
            [daemon, "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1",
             f"--socket={directory}/socket", f"--init-file={begin}", "--innodb-flush-log-at-trx-commit=0",
             "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M", "--skip-name-resolve",
             f"--pid-file={directory}/pid", f"--ssl-cert={directory}/server.pem", f"--ssl-key={directory}/server.key",
             *user],
            port, lambda: peer.run("SELECT 1"),
        )  # fmt: skip
        peer.server.start()
        try:
            yield peer
        finally:
            peer.server.kill()


def sqlite_peer(path: Path) -> SqlitePeer:
    return SqlitePeer(f"sqlite:///{path}")


class SqlPeers:
    """The databases, each started at its first use."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self._known: dict[str, SqlPeer] = {}

    def get(self, kind: str) -> SqlPeer:
        if kind not in self._known:
            if kind == "sqlite":
                self._known[kind] = sqlite_peer(self._directory / "shop.db")
            else:
                self._known[kind] = self._stack.enter_context(postgres_peer() if kind == "postgres" else mariadb_peer())
        return self._known[kind]
