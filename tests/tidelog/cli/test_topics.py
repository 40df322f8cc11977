"""tidelog topics, send, sendmany against a real server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.waiting import eventually
from tidelog import Client
from tidelog.cli.program import main
from tidelog.testing import Server
from tidelog.topics import Topic, admin, partition_of

Run = Callable[..., Result]
SHOP = '''
import msgspec
from tidelog.topics import Topic

class Order(msgspec.Struct):
    id: int
    item: str
    price: float | None = None

class Cart(msgspec.Struct):
    id: int
    lines: list[Order]

orders = Topic("orders", Order, partition_by="id", partitions=4)
carts = Topic("carts", Cart, partition_by="id", partitions=2)
number = 5
'''


@pytest.fixture
def run(tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """The program, in a folder with a module ``shop``."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*args: object, ok: bool = True, text: str | None = None) -> Result:
        environment = {"TIDELOG_URL": tidelog_server.url}
        result = CliRunner().invoke(main, [str(arg) for arg in args], env=environment, input=text)
        assert (result.exit_code == 0) is ok, result.output
        return result

    yield run
    for name in ("shop", "broken"):
        sys.modules.pop(name, None)


def lengths(client: Client, name: str, partitions: int) -> list[int]:
    return [client.tlen(f"{name}:{at}") for at in range(partitions)]


def test_send(run: Run, client: Client) -> None:
    printed = run("send", "shop:orders", '{"id": 7, "item": "tea", "price": 2.5}').output.strip()
    (entry,) = [entry for at in range(4) for entry in client.trange(f"orders:{at}")]
    assert (str(entry.id), entry.text()) == (printed, {"id": "7", "item": "tea", "price": "2.5"})
    run("send", "shop:carts", '{"id": 1, "lines": [{"id": 7, "item": "tea"}]}')
    assert sum(lengths(client, "carts", 2)) == 1


@pytest.mark.parametrize(
    ("topic", "record", "message"),
    [
        ("shop:orders", '{"id": "x", "item": "tea"}', "Expected `int`, got `str` - at `$.id`"),
        ("shop:orders", '{"id": 1}', "missing required field `item`"),
        ("shop:orders", "[1]", "not a JSON object"),
        ("shop:orders", "{", "malformed"),
        ("shop", "{}", "'shop' is not module:topic, such as shop.topics:orders"),
        ("shop:order", "{}", "shop has no 'order'"),
        ("shop:number", "{}", "shop:number is int, not a Topic"),
        ("shops:orders", "{}", "there is no module 'shops' in the current"),
    ],
)
def test_what_cannot_be_sent_is_said(run: Run, client: Client, topic: str, record: str, message: str) -> None:
    output = run("send", topic, record, ok=False).output
    assert message in output or (message == "malformed" and "truncated" in output)
    assert client.redis.keys() == []


def test_a_topic_that_can_not_be_read_does_not_hide_the_others(run: Run, client: Client) -> None:
    run("send", "shop:orders", '{"id": 7, "item": "tea"}')
    client.redis.set("topic:mine", "text")
    output = run("topics", "list").output
    assert "mine: the key 'topic:mine' does not have the settings of a topic" in output
    assert "orders" in output.splitlines()[-1]
    output = run("dlq", "list").output
    assert "mine: the key 'topic:mine' does not have the settings of a topic" in output
    assert "no dead letters" in output


def test_a_topic_of_an_unknown_codec_is_not_altered(run: Run, client: Client) -> None:
    client.redis.set("topic:mine", '{"version":1,"partitions":1,"partition_by":null,"codec":"x","fields":{"a":"int"}}')
    client.tappend("mine:0", {"a": 1})
    output = run("topics", "alter", "mine", "--field", "a=float", ok=False).output
    assert "mine:0: the newest entry can't be read: unknown codec 'x'" in output


def test_a_module_that_fails_shows_its_own_error(run: Run) -> None:
    result = run("send", "broken:orders", "{}", ok=False)
    assert isinstance(result.exception, ModuleNotFoundError)
    assert "nothing_of_this_name" in str(result.exception)


def test_send_later(run: Run, client: Client) -> None:
    record = '{"id": 7, "item": "tea"}'
    printed = run("send", "shop:orders", record, "--delay", "3600").output.strip()
    run("send", "shop:orders", record, "--at", "2040-01-01T08:00+01:00")
    at = partition_of(7, 4)
    first, second = client.tdelay_list(f"orders:{at}").entries
    assert first.token == printed
    assert abs(first.due - time.time() * 1000 - 3_600_000) < 60_000
    assert (second.due, second.fields) == (2_209_014_000_000, {b"id": b"7", b"item": b"tea"})
    assert admin.waiting(client, "orders") == 2


@pytest.mark.parametrize("options", [["--delay", "3600"], ["--at", "2040-01-01T08:00+01:00"]])
def test_sendmany_later(run: Run, client: Client, options: list[str]) -> None:
    rows = [{"id": n, "item": f"tea {n}"} | ({"price": n / 2} if n % 2 else {}) for n in range(9_000)]
    text = "\n".join(map(json.dumps, rows))
    output = run("sendmany", "shop:orders", "-", "--format", "jsonl", *options, text=text).output
    assert output.startswith("9,000 records in ")
    assert lengths(client, "orders", 4) == [0] * 4
    assert admin.waiting(client, "orders") == 9_000
    found = client.tdelay_list(f"orders:{partition_of(1, 4)}").entries
    assert found[0].fields == {b"id": b"1", b"item": b"tea 1", b"price": b"0.5"}
    if "--at" in options:
        assert {each.due for each in found} == {2_209_014_000_000}


def test_a_producer_has_no_delay(run: Run, client: Client) -> None:
    text = '{"id": 7, "item": "tea"}'
    options = ["--format", "jsonl", "--producer", "import", "--delay", "1"]
    assert "--producer cannot be combined" in run(
        "sendmany", "shop:orders", "-", *options, ok=False, text=text
    ).output
    assert client.redis.keys("orders:*") == []


@pytest.mark.parametrize("command", ["send", "sendmany"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", "tomorrow"], "Invalid isoformat string: 'tomorrow'"),
        (["--at", "2040-01-01T08:00"], "at is a datetime with its zone"),
        (["--at", "2040-01-01T08:00Z", "--delay", "1"], "delay and at exclude each other"),
        (["--delay", "-1"], "delay is from 0 seconds"),
        (["--delay", "nan"], "delay is from 0 seconds"),
    ],
)
def test_a_time_that_makes_no_sense(
    run: Run, client: Client, command: str, options: list[str], message: str
) -> None:  # fmt: skip
    record = '{"id": 7, "item": "tea"}'
    what = [record] if command == "send" else ["-", "--format", "jsonl"]
    assert message in run(command, "shop:orders", *what, *options, ok=False, text=record).output
    assert client.redis.keys("orders:*") == []


def test_sendmany_json_lines(run: Run, client: Client, tmp_path: Path) -> None:
    rows = [{"id": n, "item": f"tea {n}"} | ({"price": n / 2} if n % 2 else {}) for n in range(12_000)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run("sendmany", "shop:orders", "rows.jsonl").output.startswith("12,000 records in ")
    assert sum(lengths(client, "orders", 4)) == 12_000


def test_sendmany_csv_from_standard_input(run: Run, client: Client) -> None:
    text = "id,item,price\n1,tea,\n2,milk,3.5\nx,bread,1\n4,jam,2\n"
    output = run("sendmany", "shop:orders", "-", "--format", "csv", ok=False, text=text).output
    assert "line 4: Expected `int`, got `str` - at `$.id`" in output
    output = run("sendmany", "shop:orders", "-", "--format", "csv", "--on-error", "skip", text=text).output
    assert "3 records in " in output
    entries = [entry.text() for at in range(4) for entry in client.trange(f"orders:{at}")]
    assert {"id": "1", "item": "tea"} in entries
    assert {"id": "2", "item": "milk", "price": "3.5"} in entries


@pytest.mark.parametrize("text", ["id,item,price\n1,tea,\n2,mil", "id,item,price", '[{"id": 1, "item": "tea"}]'])
def test_sendmany_reports_no_success_for_a_file_without_a_line_end(run: Run, client: Client, text: str) -> None:
    output = run("sendmany", "shop:orders", "-", "--format", "csv", ok=False, text=text).output
    assert "no line end: the file may be cut off" in output
    assert client.redis.keys("orders:[0-9]") == []


def test_sendmany_with_a_producer_can_be_run_again(run: Run, client: Client, tmp_path: Path) -> None:
    rows = [json.dumps({"id": n, "item": "tea"}) for n in range(12_000)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows[:5000]))  # an import that stopped after the first batch
    run("sendmany", "shop:orders", "rows.jsonl", "--producer", "import")
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    output = run("sendmany", "shop:orders", "rows.jsonl", "--producer", "import").output
    assert output.startswith("7,000 records in ")
    assert output.endswith("; 5,000 sent before\n")
    assert sum(lengths(client, "orders", 4)) == 12_000


def test_topics(run: Run, client: Client) -> None:
    assert run("topics", "list").output == "no topics\n"
    text = "\n".join(json.dumps({"id": n, "item": "tea"}) for n in range(100))
    run("sendmany", "shop:orders", "-", "--format", "jsonl", text=text)
    assert run("topics", "list").output.splitlines()[1].split() == ["orders", "4", "100", "plain", "id"]
    client.tread("orders:0", "0", 3, group="slow", retry=60_000)
    shown = run("topics", "show", "orders").output.splitlines()
    assert [line.split(None, 1) for line in shown[:4]] == [
        ["partitions", "4, by crc32 of id"], ["codec", "plain"], ["fields", "id int, item str, price float"],
        ["retention", "everything"],
    ]  # fmt: skip
    assert [line.split()[0] for line in shown[6:]] == ["orders:0", "orders:1", "orders:2", "orders:3"]
    assert shown[6].split()[-3:] == ["1", str(client.tlen("orders:0")), "slow"]
    assert shown[7].split()[-3:] == ["0", "-", "-"]
    assert "is not idle" in run("topics", "grow", "orders", 8, ok=False).output
    assert "orders has 8 partitions" in run("topics", "grow", "orders", 8, "--force").output
    sys.modules.pop("shop")  # as another process
    refused = run("send", "shop:orders", '{"id": 1, "item": "x"}', ok=False).output
    assert "partitions is 8 on the server, 4 here" in refused
    assert "nothing to change" in run("topics", "alter", "orders", ok=False).output
    refused = run("topics", "alter", "orders", "--overflow", "drop", ok=False).output
    assert "overflow='drop' needs partition_size" in refused
    altered = run("topics", "alter", "orders", "--partition-size", 2, "--overflow", "drop").output
    assert "2 entries per partition; others are dropped" in altered
    eventually(lambda: sum(lengths(client, "orders", 8)) == 8)
    assert "policy      COUNT 2 EXACT\n" in run("topics", "show", "orders").output
    client.redis.delete("orders:3", "orders:5")
    text = "COUNT 2 EXACT; but none in orders:3 and 1 other partition: tidelog topics alter orders --overflow drop sets"
    assert text in run("topics", "show", "orders").output
    run("topics", "alter", "orders", "--overflow", "drop")
    assert "policy      COUNT 2 EXACT\n" in run("topics", "show", "orders").output
    altered = run("topics", "alter", "orders", "--partition-size", 0, "--overflow", "protect").output
    assert "retention   everything" in altered
    asked = run("topics", "delete", "orders", ok=False, text="n\n").output
    assert "Delete orders: 8 partitions with 6 entries?" in asked
    assert run("topics", "delete", "orders", "--yes").output == "orders is deleted\n"
    assert client.redis.keys() == []
    assert "there is no topic 'orders'" in run("topics", "show", "orders", ok=False).output


def test_what_waits_is_shown_and_goes_with_the_topic(run: Run, tidelog_server: Server, client: Client) -> None:
    topic: Topic[dict[str, str]] = Topic("later", partition_by="id", partitions=2, url=tidelog_server.url)
    for number in range(3):
        topic.sync.send({"id": str(number)}, delay=3600)
    topic.sync.close()
    assert "3 delayed records" in run("topics", "show", "later").output
    asked = run("topics", "delete", "later", text="y\n").output
    assert "2 partitions with 0 entries, and 3 delayed records?" in asked
    assert client.redis.keys("*later*") == []
