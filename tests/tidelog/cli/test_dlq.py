"""tidelog dlq against a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from tidelog import Client, Entry, StreamId
from tidelog.cli.program import main
from tidelog.client.steps import run as run_steps
from tidelog.testing import Server
from tidelog.topics import Topic, deadletters

Run = Callable[..., Result]


@pytest.fixture
def run(tidelog_server: Server) -> Run:
    def run(*args: object, ok: bool = True, text: str | None = None) -> Result:
        result = CliRunner().invoke(
            main, ["dlq", *map(str, args)], env={"TIDELOG_URL": tidelog_server.url}, input=text
        )
        assert (result.exit_code == 0) is ok, result.output
        return result

    return run


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Client]:
    with tidelog_server.client() as client:
        topic: Topic[dict[str, str]] = Topic("orders", dict, partition_by="id", partitions=1)
        topic.use(sync=client)
        topic.sync.ready()
        yield client


def bury(client: Client, number: int, processor: str = "shop.bill", message: str = "no money") -> StreamId:
    run_steps(client, deadletters.ready("orders.dead"))
    entry = Entry(StreamId(number), [b"id", b"%d" % number])
    fields = deadletters.fields_of(
        "orders", 0, entry, number, processor, ValueError(message), 4, "host-1", 1_700_000_000_000
    )
    return client.run(deadletters.append("orders.dead", fields))


def test_list(run: Run, client: Client) -> None:
    assert run("list").output == "no dead letters\n"
    assert "'orders' has no dead letters" in run("list", "orders", ok=False).output
    ids = [bury(client, 1), bury(client, 2, "shop.index", "x" * 100)]
    assert run("list").output.splitlines()[-1].split() == ["orders.dead", "2"]
    for name in ("orders", "orders.dead"):
        rows = run("list", name).output.splitlines()[-2:]
        assert [row.split()[:5] for row in rows] == [
            [str(ids[0]), "1.0", "of", "orders:0", "shop.bill"], [str(ids[1]), "2.0", "of", "orders:0", "shop.index"],
        ]  # fmt: skip
        assert rows[0].endswith("ValueError: no money")
        assert rows[1].endswith("xxx...")
    assert str(ids[1]) not in run("list", "orders", "--processor", "shop.bill").output
    limited = run("list", "orders", "--limit", 1)
    assert str(ids[1]) not in limited.output
    assert "the first 1; use --limit to show more" in limited.output
    (row,) = map(json.loads, run("list", "orders", "--json", "--processor", "shop.index").output.splitlines())
    assert (row["dead_letter"], row["key"], row["attempts"], row["time"]) == (str(ids[1]), "2", 4, 1_700_000_000_000)
    assert row["entry"] == {"id": "2.0", "fields": {"id": "2"}}


def test_show(run: Run, client: Client) -> None:
    letter = bury(client, 7, message="red \x1b[31m")
    shown = run("show", "orders", letter).output
    for text in (
        "7.0 of orders:0", "shop.bill", "4, the last by worker host-1", "2023-11-14 22:13:20 UTC",
        "ValueError: red \\x1b[31m", '{"id":"7.0","fields":{"id":"7"}}',
    ):  # fmt: skip
        assert text in shown
    assert "\x1b" not in shown
    assert "no open dead letter 5.0" in run("show", "orders", "5.0", ok=False).output
    assert "not a stream ID: 'x'" in run("show", "orders", "x", ok=False).output


def test_replay(run: Run, client: Client) -> None:
    ids = [bury(client, number, processor) for number, processor in ((1, "a.b"), (2, "a.c"), (3, "a.b"), (4, "a.b"))]
    assert run("replay", "orders", ids[3]).output == "1 dead letter replayed\n"
    assert run("replay", "orders", "--all", "--processor", "a.b").output == "2 dead letters replayed\n"
    assert [entry["id"] for entry in client.trange("orders:0")] == [b"4", b"1", b"3"]
    assert [row.split()[1] for row in run("list", "orders").output.splitlines()[1:] if "2.0" in row] == ["2.0"]
    again = run("replay", "orders", ids[3], ids[1], ok=False).output
    assert again.splitlines() == ["1 dead letter replayed", "-- 1 ID without an open dead letter"]
    assert client.tlen("orders:0") == 4
    assert run("replay", "orders", "--all").output == "0 dead letters replayed\n"


def test_what_is_left_is_said(run: Run, client: Client) -> None:
    letter = bury(client, 1)
    client.redis.delete("topic:orders")
    output = run("replay", "orders.dead", letter, ok=False).output
    assert output.splitlines() == [
        "0 dead letters replayed", f"-- dead letter {letter}: the topic 'orders' was deleted",
    ]  # fmt: skip


def test_purge(run: Run, client: Client) -> None:
    ids = [bury(client, number) for number in (1, 2, 3)]
    assert "Purge 1 dead letter from orders.dead? [y/N]" in run("purge", "orders", ids[1], ok=False, text="n\n").output
    assert run("list").output.splitlines()[-1].split() == ["orders.dead", "3"]
    assert run("purge", "orders", ids[1], text="y\n").output.endswith("1 dead letter purged\n")
    assert run("purge", "orders", "--all", "--yes").output == "2 dead letters purged\n"
    assert client.tlen("orders.dead:0") == 0
    assert client.tlen("orders:0") == 0
    assert run("list", "orders").output == "no dead letters\n"


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_nothing_is_chosen_by_accident(run: Run, client: Client, command: str) -> None:
    letter = bury(client, 1)
    for words, message in (
        ([], "specify either IDs or --all"),
        ([letter, "--all"], "specify either IDs or --all"),
        ([letter, "--processor", "a.b"], "--processor requires --all"),
        (["--processor", "a.b"], "specify either IDs or --all"),
    ):
        assert message in run(command, "orders", *words, ok=False).output
    assert run("list").output.splitlines()[-1].split() == ["orders.dead", "1"]
