"""Prints the state of flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.cli.lines import printable
from tidelog.cli.resetting import Cells, print_resets
from tidelog.flows.service.desired import DesiredDocument
from tidelog.flows.service.streamgroups import GroupReset
from tidelog.flows.spec import FlowSpec
from tidelog.operating.tables import BEHIND, behind, counted, print_pairs, table
from tidelog.operating.terminal import echo


def summary(spec: FlowSpec) -> str:
    """Return a line about a declared flow."""
    operators = sum(len(each.operators) for each in spec.pipelines.values())
    counts = [
        counted(len(spec.connectors), "connector"), counted(len(spec.pipelines), "pipeline"),
        counted(operators, "operator"), *([] if spec.instances == 1 else [f"{spec.instances} instances"]),
    ]  # fmt: skip
    return f"{spec.name}: {', '.join(counts)}"


def print_flows(flows: Sequence[dict[str, Any]]) -> None:
    if not flows:
        echo("no flows")
        return
    rows = [
        [each["alias"], each["status"], str(len(each["instances"])), f"{each['unsettled']:,}", each["from"],
         printable(each["error"])]
        for each in flows
    ]  # fmt: skip
    table(["flow", "status", "instances", "unsettled", "from", "error"], rows)


def print_status(seen: dict[str, Any]) -> None:
    for each in seen["flows"]:
        print_flow(each)
    if not seen["flows"]:
        echo("no flows")


def print_flow(found: dict[str, Any]) -> None:
    """Print the state of one flow, from the API or from the server."""
    if "groups" in found:
        _print_stored(found)
        return
    flow, under_way = found["flow"], found["unsettled"]
    facts = {"flow": flow["alias"], "status": flow["status"]}
    if flow["error"]:
        facts["error"] = printable(flow["error"])
    if len(flow["instances"]) > 1:
        facts["instances"] = ", ".join(f"{each['alias']} {each['status']}" for each in flow["instances"])
    oldest = "" if under_way["oldest_s"] is None else f", the oldest for {under_way['oldest_s']:.1f} s"
    where = ", ".join(f"{count:,} at {name}" for name, count in under_way["where"].items())
    facts["unsettled"] = f"{under_way['count']:,}{oldest}" + (f": {where}" if where else "")
    stored = ", ".join(f"{count:,} in {name}" for name, count in under_way.get("stored", {}).items())
    if stored:
        facts["stored"] = f"{stored}, not sent yet"
    print_pairs(facts)
    echo()
    head = ["connector", "type", "status", "connectivity", "events", "error"]
    table(head, [_connector(each) for each in found["connectors"]])
    rows = [
        [instance["alias"], source["source"], each["reason"], _seconds(each["since_s"]), printable(each["detail"])]
        for instance in found["breaker"]["instances"]
        for source in instance["sources"]
        for each in source["reasons"]
    ]
    if rows:
        echo()
        table(["instance", "source", "reason for not sending", "for", "detail"], rows)
    echo()


def stored_flow(document: DesiredDocument, name: str) -> dict[str, Any]:
    """Return a flow that no process runs, in the form of the API."""
    return {
        "alias": name, "status": "stopped", "desired": document.status(name, name) or "running", "instances": [],
        "unsettled": 0, "from": "api" if name in document.deployed else "file", "error": "",
    }  # fmt: skip


def _print_stored(found: dict[str, Any]) -> None:
    flow = found["flow"]
    status = f"{flow['status']}; no process responds"
    print_pairs({"flow": flow["alias"], "status": status, "desired": flow["desired"]})
    echo()
    rows = [
        [each["connector"], each["stream"], each["group"], each["position"] or "-",
         *behind(each["lag"], each["lag_ms"]), f"{each['pending']:,}"]
        for each in found["groups"]
    ]  # fmt: skip
    table(["connector", "stream", "group", "position", *BEHIND, "pending"], rows)
    echo()


def print_reset(found: Sequence[GroupReset]) -> None:
    first: Cells = {
        "connector": lambda each: each.state.connector, "stream": lambda each: each.state.stream,
        "group": lambda each: each.state.group,
    }  # fmt: skip
    print_resets(found, first, {"pending": lambda each: each.state.pending})


def _connector(each: dict[str, Any]) -> list[str]:
    source, sink = each["counts"]["source"], each["counts"]["sink"]
    events = [f"{source.get('out', 0):,} in"] if each["source"] else []
    events += [f"{sink.get('ok', 0):,} out"] if each["sink"] else []
    return [
        each["alias"], each["type"], each["status"], each["connectivity"], ", ".join(events), printable(each["error"])
    ]  # fmt: skip


def _seconds(since: float | None) -> str:
    return "since the start" if since is None else f"{since:.1f} s"
