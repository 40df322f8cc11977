"""Flow files: what they may say, and that all that is wrong with them is said at once, with file and line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidelog.flows import FlowError, FlowFileError
from tidelog.flows.connectors.sockets.udp import UdpServerOptions
from tidelog.flows.files import FlowDocument, read_files, read_flow, read_text, restrictions
from tidelog.options.structs import Problems


def problems(text: str, **options: object) -> list[str]:
    with pytest.raises(FlowFileError) as caught:
        read_text(text, "f.yaml", variables={}, **options)  # type: ignore[arg-type]
    return list(caught.value.problems)


def flow(body: str) -> str:
    """A file of one flow whose parts are indented by four."""
    return f"flows:\n  main:\n{body}"


GOOD = flow("    connectors: {in: 'null', out: 'null'}\n    pipelines: {p: []}\n    connect: [in -> p -> out]\n")


def test_a_file() -> None:
    document = read_text(
        """
        name: shop
        server: redis://localhost:7379
        listen: 127.0.0.1:9000
        flows:
          orders:
            instances: 3
            paused: true
            queue: 16
            drain_timeout: 1m30s
            connectors:
              in: {type: file, path: orders.jsonl, on_error: {retry: {first: 200ms}}}
              out: {type: null, authoritative: false}
              other: null
              more: "null"
            pipelines:
              enrich:
                - passthrough
                - passthrough: {}
              empty:
            connect:
              - in -> enrich -> out
              - enrich -> empty -> other
              - enrich.err -> more
        """,
        variables={},
    )
    assert (document.head.name, document.head.server, document.head.listen) == (
        "shop", "redis://localhost:7379", "127.0.0.1:9000",
    )  # fmt: skip
    spec = document.flows["orders"]
    assert (spec.instances, spec.paused, spec.queue, spec.drain_timeout) == (3, True, 16, 90.0)
    assert spec.server == "redis://localhost:7379"
    assert list(spec.connectors) == ["in", "out", "other", "more"]
    assert [each.type for each in spec.connectors.values()] == ["file", "null", "null", "null"]
    policy = spec.connectors["in"].options.on_error
    assert policy.retry is not None
    assert policy.retry.first == 0.2
    assert [each.type for each in spec.pipelines["enrich"].operators] == ["passthrough"] * 2
    assert len(spec.edges) == 5


def test_all_problems_at_once_each_with_its_line() -> None:
    found = problems(
        """listn: x
flows:
  main:
    conectors: {}
    instances: two
    connectors:
      in: {type: "null", coutn: 3}
      out: {type: "null", max_unsettled: 0}
      bad: {count: 3}
      web: {type: htp_client}
    pipelines:
      echo:
        - passthrough
        - passthrough:
            speed: 3
        - {passthrough: {}, more: {}}
        - delete
    connect: [in -> echo -> out]
  other:
    connectors: {in: "null", out: "null"}
    pipelines: {p: [], q: []}
    connect:
      - in -> p -> q -> p
      - p -> nut
      - q.overflow -> out
      - in ->
"""
    )
    wanted = [
        "f.yaml:1: listn: unknown key 'listn'; did you mean 'listen'?",
        "f.yaml:4: flows.main.conectors: unknown key 'conectors'; did you mean 'connectors'?",
        "f.yaml:5: flows.main.instances: Expected `int`",
        "f.yaml:7: flows.main.connectors.in.coutn: unknown option 'coutn'; did you mean 'count'?",
        "f.yaml:8: flows.main.connectors.out.max_unsettled: Expected `int` >= 1",
        "f.yaml:9: flows.main.connectors.bad: a connector is its type, or a mapping with the key 'type'",
        "f.yaml:10: flows.main.connectors.web: there is no connector of type 'htp_client'; did you mean 'http_client'?",
        "f.yaml:15: flows.main.pipelines.echo[1].speed: unknown option 'speed'",
        "f.yaml:16: flows.main.pipelines.echo[2]: an operator is its type",
        "f.yaml:17: flows.main.pipelines.echo[3]: there is no operator of type 'delete'; ",
        "f.yaml:22: flows.other.connect: a cycle: p -> q -> p",
        "f.yaml:24: flows.other.connect[1]: there is no connector or pipeline 'nut'; did you mean 'out'?",
        "f.yaml:25: flows.other.connect[2]: the pipeline 'q' has no port 'overflow'",
        "f.yaml:26: flows.other.connect[3]: '' in 'in ->' is not a name",
    ]
    for each in wanted:
        assert any(line.startswith(each) for line in found), (each, found)
    assert len(found) == len(wanted), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a flow file is a mapping"),
        ("- a", "f.yaml:1: a flow file is a mapping"),
        ("flows: [", "f.yaml:1: yaml: this is not valid YAML: while parsing a flow"),
        ("flows:\n\ta: 1", "f.yaml:2: yaml: this is not valid YAML: while scanning"),
        ("a: b\n---\nc: d", "expected a single document"),
        ("flows: 3", "f.yaml:1: flows: a mapping from names to flows"),
        ("flows: {main: 3}", "flows.main: a flow is a mapping with connectors, pipelines, connect, not 3"),
        ("flows: {9x: {}}", "'9x' is not a valid name of a flow"),
        ("flows: {main: {}}", "flows.main: a flow needs 'connect'"),
        ("flows: {main: {connectors: [a]}}", "flows.main.connectors: a mapping from names is expected, not ['a']"),
        ("flows: {main: {pipelines: {p: 3}}}", "flows.main.pipelines.p: a pipeline is a list of operators"),
        ("flows: {main: {connect: {a: b}}}", "flows.main.connect: a list of chains"),
        ("server: 3\nflows: {}", "f.yaml:1: server: text is expected, and not 3"),
        ("flows: {}\nserver: a\nserver: b", "f.yaml:3: server: the key 'server' is a duplicate of the one in line 2"),
        ("flows: {}\nlisten: !!python/object:os.system x", "the tag 'tag:yaml.org,2002:python/object:os.system'"),
        ("flows: {}\n? [a]\n: b", "f.yaml:2: a key must be text"),
        (GOOD.replace("in -> p -> out", "in -> p"), "flows.main.pipelines.p: p.out is not connected"),
        (GOOD.replace("{p: []}", "{p: [], q: []}"), "no edge leads to the pipeline 'q'"),
        (GOOD.replace("{p: []}", "{in: []}"), "there is already a connector 'in'"),
        (GOOD.replace("out: 'null'", "out: 'null', more: 'null'"), "the connector 'more' is not connected"),
        (GOOD.replace("{p: []}", "{p: [{passthrough: 3}]}"), "passthrough takes its options by name"),
    ],
)  # fmt: skip
def test_what_is_wrong(text: str, said: str) -> None:
    assert any(said in each for each in problems(text)), problems(text)


def test_a_connector_that_needs_a_server_says_so() -> None:
    pytest.importorskip("tidelog.flows.connectors.tidelog.stream")
    text = GOOD.replace("in: 'null'", "in: {type: stream, key: orders, group: shop}")
    (said,) = problems(text)
    assert "connectors of type stream need a tidelog server: set server: redis://HOST:PORT, or TIDELOG_URL" in said
    assert read_text(text, variables={"TIDELOG_URL": "redis://a"}).flows["main"].server == "redis://a"
    assert read_text(text, server="redis://b", variables={"TIDELOG_URL": "redis://a"}).head.server == "redis://b"


def test_words_that_yaml_1_1_takes_for_truth_and_times_are_text() -> None:
    text = flow(
        "    connectors: {on: {type: 'null', value: [yes, 12:30:00, 2026-05-01, 0o17, 1e3, ~]}, no: 'null'}\n"
        "    pipelines: {p: []}\n    connect: [on -> p -> no]\n"
    )
    found = read_text(text, variables={}).given["main"]["connectors"]["on"]["value"]
    assert found == ["yes", "12:30:00", "2026-05-01", 15, 1000.0, None]


def test_anchors_and_merges() -> None:
    text = """
    flows:
      main:
        connectors:
          in: &null {type: null, max_unsettled: 5}
          out: {<<: *null, max_unsettled: 7}
        pipelines: {p: []}
        connect: [in -> p -> out]
    """
    spec = read_text(text, variables={}).flows["main"]
    assert [each.options.max_unsettled for each in spec.connectors.values()] == [5, 7]


def test_a_small_file_can_not_become_a_large_value() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    laughs += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    assert "the file has more than 100,000 values with aliases expanded" in " ".join(problems(laughs))
    assert "50 nested mappings and lists" in " ".join(problems("a: &a [*a]"))
    assert "this is not a valid flow file" in " ".join(problems("a: " + "[" * 5000))
    assert "the file has 1,048,577 characters" in " ".join(problems("#" * (1 << 20) + "\n"))
    assert read_text(f"flows: {{}} #{'9' * 5000}", variables={}).flows == {}


# -- the environment -----------------------------------------------------------------------------------------
def test_variables_that_a_file_asks_for() -> None:
    text = GOOD.replace("in: 'null'", "in: {type: 'null', value: '${URL} $${URL} ${HOME}'}")
    text = f"environment: [SIZE, URL]\n{text}"
    document = read_text(text, variables={"SIZE": "5", "URL": "http://a", "HOME": "/root"})
    assert document.given["main"]["connectors"]["in"]["value"] == "http://a ${URL} ${HOME}"
    assert any("the environment variable SIZE is not set" in each for each in problems(text))
    text = text.replace("[SIZE, URL]", "{SIZE: 3, URL: http://b}")
    assert read_text(text, variables={}).given["main"]["connectors"]["in"]["value"] == "http://b ${URL} ${HOME}"
    assert "'A-B' is not the name of a variable" in " ".join(problems("environment: [A-B]\nflows: {}"))
    assert "environment: a list of names" in " ".join(problems("environment: 3\nflows: {}"))


def test_a_variable_is_a_number_where_one_is_wanted() -> None:
    text = "environment: [PORT, NAME, OFF]\n" + flow(
        "    connectors: {in: {type: udp_server, host: '${NAME}', port: '${PORT}', paused: '${OFF}'}, out: 'null'}\n"
        "    connect: [in -> out]\n"
    )
    document = read_text(text, variables={"PORT": "5140", "NAME": "12", "OFF": "true"})
    assert b'"5140"' in msgspec.json.encode(document.given)
    spec = document.flows["main"].connectors["in"]
    assert isinstance(spec.options, UdpServerOptions)
    assert (spec.options.port, spec.options.host, spec.options.paused) == (5140, "12", True)
    with pytest.raises(FlowFileError, match=r"connectors\.in\.port: .*int"):
        read_text(text, "f.yaml", variables={"PORT": "http", "NAME": "a", "OFF": "false"})
    assert "connectors.in.port: Expected `int`, got `str`" in " ".join(problems(text.replace("${PORT}", "5140")))


def test_without_being_asked_nothing_is_replaced() -> None:
    text = GOOD.replace("in: 'null'", "in: {type: 'null', value: '${HOME}'}")
    document = read_text(text, variables={"HOME": "/root"})
    assert document.given["main"]["connectors"]["in"]["value"] == "${HOME}"


# -- several files -------------------------------------------------------------------------------------------
def test_several_files(tmp_path: Path) -> None:
    one, two, three = (tmp_path / f"{name}.yaml" for name in ("one", "two", "three"))
    one.write_text("server: redis://a\n" + GOOD)
    two.write_text("server: redis://a\nlisten: 127.0.0.1:1\n" + GOOD.replace("main:", "other:"))
    document = read_files([one, two], variables={})
    assert list(document.flows) == ["main", "other"]
    assert document.flows["other"].server == "redis://a"
    two.write_text("server: redis://b\n" + GOOD)
    three.write_bytes(b"\xff")
    with pytest.raises(FlowFileError) as caught:
        read_files([one, two, three, tmp_path / "four.yaml"], variables={})
    assert sorted(caught.value.problems) == [
        f"{tmp_path}/four.yaml: No such file or directory",
        f"{three}: not UTF-8: invalid start byte at byte 0",
        f"{two}:1: server: {one} has another value",
        f"{two}:3: flows.main: there is already a flow 'main': {one}:3",
    ]
    assert isinstance(caught.value, FlowError)


# -- from elsewhere ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "given",
    [
        {"connectors": {"in": "null", "out": {"type": "file", "path": "/etc/passwd"}}, "connect": ["in -> out"]},
        {"connectors": {"in": "null", "out": "null"}, "pipelines": {"p": [{"python": "os:system"}]},
         "connect": ["in -> p -> out"]},
    ],
)  # fmt: skip
def test_flows_from_elsewhere_run_no_code_and_open_no_files(given: object) -> None:
    found = Problems()
    assert read_flow("x", given, "x", None, found, outside=False) is None
    assert all("not permitted in flows from HTTP" in text for _, text in found.found)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///shop.db", "SQLite:///shop.db", "sqlite+aiosqlite:///shop.db", "sql\nite:///shop.db",
        "\x01sqlite:///shop.db", "postgresql:///shop", "postgres://u:p@/shop", "postgresql://%2Frun/shop",
        "postgresql://h,%2frun/shop", "postgresql://h/shop?host=/run", "postgresql://h/shop?host=a,,b",
        "postgresql://h/shop?sslkey=/etc/key", "postgresql://h/shop?passfile=/etc/x", "postgresql://h/shop?service=x",
        "postgresql://:5432/shop", "unix:///run/redis.sock", "\x01unix:///run/redis.sock", "rediss://h?ssl_certfile=/x",
        "redis://h,unix:///run/redis.sock", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_urls_that_name_local_files(url: str) -> None:
    assert restrictions.names_file(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40ss@a:5432,[::1]:5433/shop?sslmode=verify-full", "postgresql:///shop?host=h&port=5432",
        "mysql://u@h/shop", "redis://h:6379/0", "redis+sentinel://a:1,b:2/main", "https://h/file:///x", "http://[",
    ],
)  # fmt: skip
def test_urls_that_name_no_local_files(url: str) -> None:
    assert not restrictions.names_file(url)


def test_credentials_of_nats_are_a_local_file() -> None:
    found = dict(restrictions.connector("nats", {"subject": "s", "credentials": "/etc/passwd"}))
    assert "credentials names a local file" in found[".credentials"]


def test_an_empty_document() -> None:
    assert FlowDocument().flows == {}
