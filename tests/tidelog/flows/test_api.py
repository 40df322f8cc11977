"""The HTTP API: Tremor's routes and bodies, and what it adds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.tidelog.flows.servicekit import LONG, MAIN, Client, flowing
from tests.waiting import until
from tidelog.flows.service import tap
from tidelog.flows.service.host import FlowHost
from tidelog.flows.service.openapi import ROUTES, document

SHOP = """
flows:
  orders:
    instances: 3
    connectors:
      in: {type: "null", paused: true}
      out: "null"
      spare: {type: "null", authoritative: false}
    pipelines: {enrich: [passthrough, passthrough]}
    connect: [in -> enrich -> out, enrich.0.err -> spare]
"""
FLOW: dict[str, Any] = {
    "connectors": {"in": {"type": "null", "paused": True}, "out": "null"},
    "pipelines": {"p": []},
    "connect": ["in -> p -> out"],
}
TOKEN = "0123456789abcdef-token"


# -- Tremor's routes -----------------------------------------------------------------------------------------
def test_version_and_status() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        found = await ask("GET", "/v1/version")
        assert (found.status, found.body.keys() >= {"version", "debug"}) == (200, True)
        await until(lambda: host.flows["main"].status == "running")
        found = await ask("GET", "/v1/status")
        assert (found.status, found.body) == (200, {"all_running": True, "num_flows": 1, "flows": {"running": 1}})
        await ask("PATCH", "/v1/flows/main", {"status": "paused"})
        found = await ask("GET", "/v1/status")
        assert (found.status, found.body) == (503, {"all_running": False, "num_flows": 1, "flows": {"paused": 1}})

    flowing(test)


def test_flows_and_their_connectors() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        await until(lambda: host.flows["main"].status == "running")
        (listed,) = (await ask("GET", "/v1/flows")).body
        one = (await ask("GET", "/v1/flows/main")).body
        for found in (listed, one):
            assert (found["alias"], found["status"], found["connectors"]) == ("main", "running", ["in", "out"])
        names = [each["alias"] for each in (await ask("GET", "/v1/flows/main/connectors")).body]
        assert names == ["in", "out"]
        found = (await ask("GET", "/v1/flows/main/connectors/in")).body
        assert (found["alias"], found["status"], found["connectivity"]) == ("in", "running", "connected")
        assert found["pipelines"] == {"out": [{"alias": "echo", "port": "in"}]}
        found = (await ask("GET", "/v1/flows/main/connectors/out")).body
        assert found["pipelines"] == {"in": [{"alias": "echo", "port": "out"}]}
        await until(lambda: host.flows["main"].instances[0].graph.sinks["out"].counts.get("ok", 0) > 1000)

    flowing(test)


def test_nothing_moves_between_the_answers_to_paused_and_running() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        source = host.flows["main"].instances[0].graph.sources["in"]
        await until(lambda: source.counts.get("out", 0) > 1000)
        found = await ask("PATCH", "/v1/flows/main", {"status": "paused"})
        sent = source.counts["out"]
        assert (found.status, found.body["alias"], found.body["status"]) == (200, "main", "paused")
        await until(lambda: not source.unsettled)
        found = (await ask("GET", "/v1/flows/main/breaker")).body
        assert [each["reason"] for each in found["instances"][0]["sources"][0]["reasons"]] == ["paused:api"]
        assert not found["moves"]
        assert source.counts["out"] == sent
        found = await ask("PATCH", "/v1/flows/main", {"status": "running"})
        assert (found.status, found.body["status"]) == (200, "running")
        await until(lambda: source.counts["out"] > sent)

    flowing(test)


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "application/json", "application/json; charset=utf-8", ""]
)
def test_a_patch_by_curl_with_or_without_a_content_type(kind: str) -> None:
    """curl -XPATCH -H'application/json' -d'...' sends a form's type: that header has no name."""

    async def test(ask: Client, host: FlowHost) -> None:
        headers = {"Content-Type": kind} if kind else {}
        skip = () if kind else ("Content-Type",)
        async with ask.session.patch(
            f"{ask.url}/v1/flows/main", data=b'{"status": "paused"}', headers=headers, skip_auto_headers=skip
        ) as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "paused")

    flowing(test)


def test_a_connector_that_was_paused_stays_so_when_its_flow_resumes() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        for name in ("in", "out"):
            path = f"/v1/flows/main/connectors/{name}"
            found = await ask("PATCH", path, {"status": "paused"})
            assert (found.status, found.body["alias"], found.body["status"]) == (200, name, "paused")
            for status in ("paused", "running"):
                await ask("PATCH", "/v1/flows/main", {"status": status})
            assert (await ask("GET", path)).body["status"] == "paused"
            assert (await ask("PATCH", path, {"status": "running"})).body["status"] == "running"
        sink = host.flows["main"].instances[0].graph.sinks["out"]
        before = sink.counts.get("ok", 0)
        await until(lambda: sink.counts.get("ok", 0) > before)

    flowing(test)


# -- instances -----------------------------------------------------------------------------------------------
def test_a_name_means_all_instances_an_alias_one() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        found = (await ask("GET", "/v1/flows")).body
        assert [each["alias"] for each in found] == ["orders"]
        assert [each["alias"] for each in found[0]["instances"]] == ["orders.1", "orders.2", "orders.3"]
        assert (await ask("PATCH", "/v1/flows/orders.2", {"status": "paused"})).body["status"] == "paused"
        statuses = {each.alias: each.status for each in host.flows["orders"].instances}
        assert statuses == {"orders.1": "running", "orders.2": "paused", "orders.3": "running"}
        assert (await ask("GET", "/v1/flows/orders")).body["status"] == "paused"
        assert (await ask("GET", "/v1/flows/orders.1")).body["status"] == "running"
        assert (await ask("PATCH", "/v1/flows/orders", {"status": "running"})).body["status"] == "running"
        assert {each.status for each in host.flows["orders"].instances} == {"running"}
        assert (await ask("GET", "/v1/flows/orders.4")).status == 404
        found = (await ask("GET", "/v1/flows/orders/connectors/in")).body
        assert [each["status"] for each in found["instances"]] == ["paused"] * 3
        assert (await ask("DELETE", "/v1/flows/orders.1")).status == 409

    flowing(test, SHOP)


# -- what is told --------------------------------------------------------------------------------------------
def test_pipelines_graph_and_unsettled() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        found = (await ask("GET", "/v1/flows/orders/pipelines/enrich")).body
        assert [each["name"] for each in found["operators"]] == ["enrich.0", "enrich.1"]
        assert {each["name"] for each in found["channels"]} == {
            "in.out -> enrich.0", "enrich.0.out -> enrich.1", "enrich.1.out -> out", "enrich.0.err -> spare",
        }  # fmt: skip
        assert "n_enrich_2e_0 -.->|err| n_spare" in found["mermaid"]
        assert [each["alias"] for each in (await ask("GET", "/v1/flows/orders/pipelines")).body] == ["enrich"]
        found = (await ask("GET", "/v1/flows/orders/graph")).body
        assert {(each["name"], each["kind"]) for each in found["entities"]} == {
            ("in", "source"), ("out", "sink"), ("spare", "sink"), ("enrich.0", "operator"), ("enrich.1", "operator"),
        }  # fmt: skip
        assert [each["capacity"] for each in found["channels"]] == [3 * 128] * 4
        found = (await ask("GET", "/v1/flows/orders/unsettled")).body
        assert found == {"alias": "orders", "count": 0, "oldest_s": None, "where": {}}

    flowing(test, SHOP)


def test_secrets_are_not_told() -> None:
    from tidelog.flows.service.views import without_secrets

    given = {
        "url": "http://ann:pass@host/x", "headers": {"Authorization": "Bearer x"}, "password": "x", "api_key": "x",
        "retry": {"token": "x", "max": 3}, "list": ["redis://:secret@host"], "secret": None,
    }  # fmt: skip
    assert without_secrets(given) == {
        "url": "http://***@host/x", "headers": {"Authorization": "***"}, "password": "***", "api_key": "***",
        "retry": {"token": "***", "max": 3}, "list": ["redis://***@host"], "secret": None,
    }  # fmt: skip


def test_ready_names_the_culprit(unused_port: int) -> None:
    text = MAIN.replace('out: "null"', f"out: {{type: tcp_client, host: 127.0.0.1, port: {unused_port}}}")

    async def test(ask: Client, host: FlowHost) -> None:
        found = await ask("GET", "/v1/ready")
        assert found.status == 503
        assert not found.body["ready"]
        assert found.body["culprits"][0].startswith("main: out (tcp_client) is not connected: ")
        assert (await ask("GET", "/v1/live")).body == {"live": True}
        found = (await ask("GET", "/v1/flows/main/breaker")).body
        (why,) = (each for each in found["instances"][0]["sources"][0]["reasons"] if each["reason"] == "starting:out")
        assert why["detail"].startswith("ConnectionRefusedError: ")
        async with aiohttp.ClientSession() as session, session.get(f"{ask.url}/v1/ready") as answer:
            assert (answer.status, await answer.json()) == (503, {"ready": False})

    flowing(test, text, token=TOKEN)


@pytest.fixture
def unused_port() -> int:
    pytest.importorskip("tidelog.flows.connectors.sockets.tcp")
    from tidelog.testing import free_port

    return free_port()


def test_metrics() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        await until(lambda: host.flows["main"].instances[0].graph.sinks["out"].counts.get("ok", 0) > 1000)
        await ask("PATCH", "/v1/flows/main", {"status": "paused"})
        found = await ask("GET", "/metrics")
        assert found.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        samples = {
            (each.name, *sorted(each.labels.items())): each.value
            for family in text_string_to_metric_families(found.body)
            for each in family.samples
        }
        base = (("flow", "main"), ("instance", "main"))
        assert samples["tidelog_flow_breaker", *base, ("reason", "paused:api"), ("source", "in")] == 1
        assert samples["tidelog_flow_status", *base, ("status", "paused")] == 1
        assert samples[
            "tidelog_flow_events_total", ("entity", "out"), ("event", "ok"), *base, ("kind", "sink")
        ] > 1000  # fmt: skip
        assert samples["tidelog_flow_channel_events_total", ("channel", "in.out -> echo.0"), *base] > 1000

    flowing(test)


def test_openapi_has_the_schemas_of_bodies() -> None:
    served = json.loads(json.dumps(document()))
    pytest.importorskip("openapi_spec_validator").validate(served)
    schemas = served["components"]["schemas"]
    body = served["paths"]["/v1/flows/{flow}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/FlowBody"}
    assert schemas["FlowBody"]["required"] == ["connect"]
    assert schemas["FlowBody"]["properties"]["drain_timeout"]["default"] == 30
    assert schemas["ConnectorBody"]["properties"]["max_unsettled"]["minimum"] == 1
    actions, _ = schemas["ConnectorBody"]["properties"]["on_error"]["items"]["anyOf"]
    assert actions == {"enum": ["dead_letter", "skip", "pause", "halt"]}
    assert schemas["StatusBody"]["properties"]["status"] == {"enum": ["paused", "running"]}
    assert schemas["ErrorBody"]["required"] == ["code", "error"]


def test_openapi_names_every_route() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        found = (await ask("GET", "/openapi.json")).body
        assert found["openapi"].startswith("3.")
        paths = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
        assert paths == {(each.method, each.path) for each in ROUTES}
        for method, path in paths - {("GET", "/v1/flows/{flow}/tap")}:
            real = path.format(flow="main", connector="in", pipeline="echo") if "{" in path else path
            if method in ("GET", "PATCH"):
                answer = await ask(method, real, {"status": "running"} if method == "PATCH" else None)
                declared = {int(code) for code in found["paths"][path][method.lower()]["responses"]}
                assert answer.status in declared, (method, path, answer.body)

    flowing(test)


# -- what is refused -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "said"),
    [
        ("GET", "/v1/flows/nope", None, {}, 404, "there is no flow 'nope'"),
        ("GET", "/v1/flows/main/connectors/nope", None, {}, 404, "the flow 'main' has no connector 'nope'"),
        ("GET", "/v1/flows/main/pipelines/nope", None, {}, 404, "the flow 'main' has no pipeline 'nope'"),
        ("PATCH", "/v1/flows/nope", '{"status": "paused"}', {}, 404, "there is no flow 'nope'"),
        ("PATCH", "/v1/flows/main/connectors/x", '{"status": "paused"}', {}, 404, "no connector 'x'"),
        ("DELETE", "/v1/flows/nope", None, {}, 404, "there is no flow 'nope'"),
        ("GET", "/v2", None, {}, 404, "there is no route /v2; see /openapi.json"),
        ("POST", "/v1/flows", "{}", {}, 405, "/v1/flows has no POST"),
        ("PATCH", "/v1/flows/main", "{", {}, 400, "the body is not valid JSON"),
        ("PATCH", "/v1/flows/main", "", {}, 400, "the body is not valid JSON"),
        ("PATCH", "/v1/flows/main", b"\xff", {}, 400, "the body is not valid JSON"),
        ("PATCH", "/v1/flows/main", "[]", {}, 422, "body: an object with status is expected"),
        ("PATCH", "/v1/flows/main", "{}", {}, 422, "body: the option 'status' is missing"),
        ("PATCH", "/v1/flows/main", '{"status": "halted"}', {}, 422,
         "body.status: Invalid enum value 'halted'; known are paused, running"),
        ("PATCH", "/v1/flows/main", '{"status": "paused", "x": 1}', {}, 422, "body.x: unknown option 'x'; known are"),
        ("PATCH", "/v1/flows/main", "<a/>", {"Content-Type": "text/xml"}, 415, "the body's type is text/xml"),
        ("POST", "/v1/flows/new", json.dumps(FLOW), {"Content-Type": "text/plain"}, 415, "text/plain"),
        ("POST", "/v1/flows/main", json.dumps(FLOW), {}, 409, "there is already a flow 'main': PUT replaces it"),
        ("POST", "/v1/flows/new", "[]", {}, 422, "a flow is an object"),
        ("POST", "/v1/flows/new", '{"connct": []}', {}, 422, "unknown key 'connct'; did you mean 'connect'?"),
        ("POST", "/v1/flows/9x", json.dumps(FLOW), {}, 422, "'9x' is not a valid name of a flow"),
        ("POST", "/v1/flows/new", json.dumps({**FLOW, "pipelines": {"p": [{"python": "os:system"}]}}), {}, 422,
         "operators of type python run local code"),
        ("POST", "/v1/flows/new", json.dumps({**FLOW, "instances": 1000}), {}, 422, "64 instances are the maximum"),
        ("POST", "/v1/flows/new", " " * (300 << 10), {}, 413, "the body is too large"),
        ("POST", "/v1/dead_letters/replay", "{}", {}, 422, "name either a flow or a topic"),
        ("POST", "/v1/dead_letters/replay", '{"flow": "main"}', {}, 422, "the flow has no tidelog server"),
        ("POST", "/v1/dead_letters/replay", '{"flw": "main"}', {}, 422, "body.flw: unknown option 'flw'"),
        ("GET", "/v1/flows/main/tap?rate=x", None, {}, 422, "rate is 'x': it must be a number"),
        ("GET", "/v1/flows/main/tap?rate=nan", None, {}, 422, "rate is 'nan': it must be a number"),
        ("GET", "/v1/flows/main/tap?channel=x", None, {}, 404, "main has no channel 'x': it has 'in.out"),
        ("DELETE", "/v1/flows/main?timeout=-1", None, {}, 422, "timeout is '-1'"),
        ("GET", "/v1/flows", None, {"Host": "evil.example"}, 403, "Host is 'evil.example'"),
        ("GET", "/v1/flows", None, {"Host": "127.0.0.1.evil.example:9898"}, 403, "Host is"),
        ("GET", "/v1/flows", None, {"X-Forwarded-For": "192.0.2.7"}, 403, "a proxy has forwarded the request"),
        ("GET", "/metrics", None, {"Via": "1.1 proxy"}, 403, "a proxy has forwarded the request"),
        ("GET", "/v1/flows", None, {"Origin": "http://evil.example"}, 403, "pages of 'http://evil.example'"),
        ("GET", "/v1/flows", None, {"Origin": "null"}, 403, "pages of 'null'"),
        ("GET", "/v1/flows", None, {"Origin": "http://localhost:1"}, 403, "pages of"),
        ("GET", "/v1/flows", None, {"Sec-Fetch-Site": "cross-site"}, 403, "pages of other sites"),
        ("PATCH", "/v1/flows/main", '{"status": "paused"}', {"Origin": "http://evil.example"}, 403, "pages of"),
        ("OPTIONS", "/v1/flows/main", None, {"Origin": "http://evil.example"}, 403, "pages of"),
    ],
)  # fmt: skip
def test_refused(
    method: str, path: str, body: str | bytes | None, headers: dict[str, str], status: int, said: str
) -> None:  # fmt: skip
    async def test(ask: Client, host: FlowHost) -> None:
        sent = {"Content-Type": "application/json", **headers} if body is not None else headers
        found = await ask(method, path, data=body, headers=sent)
        assert (found.status, found.body["code"]) == (status, status), found.body
        assert said in found.body["error"]
        assert "Access-Control-Allow-Origin" not in found.headers
        assert list(host.flows) == ["main"]
        assert host.flows["main"].status != "paused"

    flowing(test)


def test_a_page_of_its_own_may_ask() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        headers = {"Origin": ask.url, "Sec-Fetch-Site": "same-origin"}
        assert (await ask("GET", "/v1/flows", headers=headers)).status == 200
        assert (await ask("GET", "/v1/flows", headers={"Host": "localhost:1234"})).status == 200
        assert (await ask("GET", "/v1/flows", headers={"Host": "[::1]:1234"})).status == 200

    flowing(test)


def test_a_token() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        assert (await ask("GET", "/v1/flows")).status == 200
        assert (await ask("GET", "/v1/flows", headers={"Host": "flows.example"})).status == 200
        for given in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"):
            for path in ("/v1/flows", "/metrics", "/openapi.json", "/v1/flows/main/tap"):
                found = await ask("GET", path, headers={"Authorization": given})
                assert (found.status, found.headers["WWW-Authenticate"]) == (401, "Bearer"), (given, path)
        found = await ask("PATCH", "/v1/flows/main", {"status": "paused"}, headers={"Authorization": ""})
        assert found.status == 401
        assert (await ask("GET", "/v1/live", headers={"Authorization": ""})).status == 200

    flowing(test, token=TOKEN)


@pytest.mark.parametrize(
    ("listen", "token", "said"),
    [
        ("0.0.0.0:0", None, "if other hosts can connect, a token is required"),
        (":0", None, "if other hosts can connect, a token is required"),
        ("example.com:0", None, "if other hosts can connect, a token is required"),
        ("127.0.0.1:0", "short", "the token has 5 characters: the minimum is 16"),
        ("127.0.0.1", None, "it must be HOST:PORT"),
        ("127.0.0.1:99999", None, "it must be HOST:PORT"),
        ("127.0.0.1:x", None, "it must be HOST:PORT"),
    ],
)
def test_where_it_does_not_listen(listen: str, token: str | None, said: str) -> None:
    from tidelog.flows import FlowError
    from tidelog.flows.service.api import FlowApiServer

    async def main() -> None:
        with pytest.raises(FlowError, match=said):
            FlowApiServer(FlowHost(), listen, token)

    asyncio.run(main())


# -- deploy, replace, undeploy -------------------------------------------------------------------------------
def test_deploy_replace_undeploy() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        found = await ask("POST", "/v1/flows/new", FLOW)
        assert (found.status, found.headers["Location"], found.body["kept"]) == (201, "/v1/flows/new", False)
        assert found.body["from"] == "api"
        old = host.flows["new"].instances[0]
        await ask("PATCH", "/v1/flows/new", {"status": "paused"})
        changed = {**FLOW, "pipelines": {"p": ["passthrough", "passthrough"]}}
        found = await ask("PUT", "/v1/flows/new", changed)
        assert (found.status, found.body["status"]) == (200, "paused")
        assert [each["complete"] for each in found.body["drained"]] == [True]
        assert old.status == "drained"
        assert len(host.flows["new"].instances[0].graph.operators["p"]) == 2
        found = await ask("PUT", "/v1/flows/new", {"connect": []})
        assert found.status == 422
        assert host.flows["new"].status == "paused"
        assert (await ask("PUT", "/v1/flows/other", FLOW)).status == 201
        found = await ask("DELETE", "/v1/flows/new?timeout=5")
        assert (found.status, found.body["status"]) == (200, "drained")
        assert (await ask("GET", "/v1/flows/new")).status == 404
        assert [each["alias"] for each in (await ask("GET", "/v1/flows")).body] == ["main", "other"]

    flowing(test)


def test_a_flow_in_yaml() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        text = "connectors: {in: {type: 'null', count: 10}, out: 'null'}\npipelines: {p: []}\n"
        text += "connect: [in -> p -> out]\n"
        headers = {"Content-Type": "application/yaml"}
        assert (await ask("POST", "/v1/flows/new", data=text, headers=headers)).status == 201
        await until(lambda: host.flows["new"].status == "drained")
        assert (await ask("PATCH", "/v1/flows/new", {"status": "paused"})).status == 409
        found = await ask("POST", "/v1/flows/more", data="a: [", headers=headers)
        assert (found.status, "this is not valid YAML" in found.body["error"]) == (400, True)

    flowing(test)


def test_flows_may_name_code_and_files_where_that_was_allowed() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        given = {**FLOW, "pipelines": {"p": [{"python": "json:dumps"}]}}
        found = await ask("POST", "/v1/flows/new", given)
        assert "run local code" not in str(found.body)

    flowing(test, local=True)


# -- taps ----------------------------------------------------------------------------------------------------
async def told(stream: aiohttp.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(LONG):
        while True:
            line = await stream.readline()
            assert line, "the tap has ended"
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line[6:])
                return found


def test_a_tap_shows_what_passes_and_ends() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        channels = host.flows["main"].instances[0].graph.channels
        path = f"{ask.url}/v1/flows/main/tap"
        async with ask.session.get(path, params={"channel": "in.out -> echo.0", "rate": "1000"}) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            found = await told(answer.content)
            assert (found["flow"], found["channel"]) == ("main", "in.out -> echo.0")
            assert found["value"] == {"text": "x" * 10}
            assert not found["truncated"]
            assert [len(each.taps) for each in channels].count(1) == 1
        async with ask.session.get(path) as answer:
            await told(answer.content)
            await ask("DELETE", "/v1/flows/main")
            async with asyncio.timeout(LONG):
                assert (await answer.content.read()).endswith(b"event: end\ndata: {}\n\n")
        assert not any(each.taps for each in channels)

    flowing(test, MAIN.replace('in: "null"', 'in: {type: "null", value: {text: xxxxxxxxxx}}'))


def test_no_more_than_so_many_taps() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        answers = [await ask.session.get(f"{ask.url}/v1/flows/main/tap") for _ in range(tap.TAPS)]
        found = await ask("GET", "/v1/flows/main/tap")
        assert (found.status, "this is the maximum" in found.body["error"]) == (429, True)
        for each in answers:
            each.close()

        async def again() -> None:
            async with asyncio.timeout(LONG):
                while True:
                    async with ask.session.get(f"{ask.url}/v1/flows/main/tap") as answer:
                        if answer.status == 200:
                            return
                    await asyncio.sleep(0.05)

        await again()

    flowing(test)


def test_what_a_tap_shows_is_cut() -> None:
    from tidelog.flows import Event

    for value, text in [("x" * 5000, "x" * 1000), (b"y" * 5000, "y" * 1000), (["z" * 5000], '["' + "z" * 998)]:
        found = json.loads(tap.as_json("main", "a -> b", Event(value)))
        assert (found["value"], found["truncated"]) == (text, True)
    found = json.loads(tap.as_json("main", "a -> b", Event(b"\xff" * 1000)))
    assert found["truncated"]
    assert len(found["value"]["base64"]) < 1000
    recursive: list[Any] = []
    recursive.append(recursive)
    for odd in (object(), {1, 2}, recursive, float("nan"), {"k": object()}, 1 << 80):
        json.loads(tap.as_json("main", "a -> b", Event(odd)))
    assert json.loads(tap.as_json("main", "a -> b", Event({"a": 1}, {"b": 2})))["meta"] == {"b": 2}


def test_a_source_is_not_paused_because_a_sink_is() -> None:
    async def test(ask: Client, host: FlowHost) -> None:
        await ask("PATCH", "/v1/flows/main/connectors/out", {"status": "paused"})
        found = (await ask("GET", "/v1/flows/main/breaker")).body["instances"][0]["sources"][0]
        assert [each["reason"] for each in found["reasons"]] == ["paused:out"]
        statuses = {each["alias"]: each["status"] for each in (await ask("GET", "/v1/flows/main/connectors")).body}
        assert statuses == {"in": "running", "out": "paused"}

    flowing(test)
