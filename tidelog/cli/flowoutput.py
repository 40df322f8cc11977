"""Prints the state of flows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.cli.lines import printable
from tidelog.cli.resetting import Cells, print_resets
from tidelog.flows.service.desired import DesiredDocument
from tidelog.flows.service.streamgroups import GroupReset
from tidelog.flows.spec import FlowSpec
from tidelog.operating.tables import LAG, counted, lag_cells, print_pairs, table
from tidelog.operating.terminal import echo
from tidelog.operating.throughput import THROUGHPUT, Throughput, measured, rate


@dataclass(frozen=True)
class FlowStates:
    """A reading of flows. ``at``: ms since 1970. ``dead_letters`` of a flow: open ones by topic."""

    at: int
    flows: Sequence[dict[str, Any]]

    def throughput(self, before: FlowStates | None, flow: dict[str, Any]) -> Throughput:
        """Return rates and dead letters of one of the flows. There are no rates if no process responds."""
        return Throughput(*self.rates(before, flow), flow["dead_letters"])

    def rates(
        self, before: FlowStates | None, flow: dict[str, Any], connector: str | None = None
    ) -> tuple[float | None, float | None]:
        """Return the rates of one of the flows, or of a connector of it: events sent by sources, delivered by sinks."""
        if before is None:
            return None, None
        alias = flow["flow"]["alias"]
        then = next((each for each in before.flows if each["flow"]["alias"] == alias), {})
        found = []
        for side, counter in (("source", "out"), ("sink", "ok")):
            earlier, now = _total(then, connector, side, counter), _total(flow, connector, side, counter)
            known = earlier is not None and now is not None
            found.append(measured(earlier or 0, now or 0, self.at - before.at) if known else None)
        return found[0], found[1]

    def to_json(self, before: FlowStates | None) -> str:
        flows = [{**each, **self.throughput(before, each).data()} for each in self.flows]
        return json.dumps({"at": self.at, "flows": flows})


def _total(flow: dict[str, Any], connector: str | None, side: str, counter: str) -> int | None:
    """Return a counter of a connector, or of all; None if there are none."""
    connectors = flow.get("connectors", [])
    counts = [each["counts"][side] for each in connectors if each[side] and connector in (None, each["alias"])]
    return sum(each.get(counter, 0) for each in counts) if counts else None


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


def print_status(seen: FlowStates, before: FlowStates | None) -> None:
    """Print the state of flows; with ``before``, the previous reading, including the rates since then."""
    for each in seen.flows:
        if "groups" in each:
            _print_stored(each, seen.throughput(before, each))
        else:
            _print_flow(each, seen, before)
    if not seen.flows:
        echo("no flows")


def _print_flow(found: dict[str, Any], seen: FlowStates, before: FlowStates | None) -> None:
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
    print_pairs(facts | seen.throughput(before, found).pairs())
    echo()
    head = ["connector", "type", "status", "connectivity", "in", "out", *THROUGHPUT[:2], "given up", "error"]
    table(head, [_connector(each, *seen.rates(before, found, each["alias"])) for each in found["connectors"]])
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


def _print_stored(found: dict[str, Any], throughput: Throughput) -> None:
    flow = found["flow"]
    status = f"{flow['status']}; no process responds"
    facts = {"flow": flow["alias"], "status": status, "desired": flow["desired"]}
    print_pairs(facts | throughput.pairs())
    echo()
    rows = [
        [each["connector"], each["stream"], each["group"], each["position"] or "-",
         *lag_cells(each["lag"], each["lag_ms"]), f"{each['pending']:,}"]
        for each in found["groups"]
    ]  # fmt: skip
    table(["connector", "stream", "group", "position", *LAG, "pending"], rows)
    echo()


def print_reset(found: Sequence[GroupReset]) -> None:
    first: Cells = {
        "connector": lambda each: each.state.connector, "stream": lambda each: each.state.stream,
        "group": lambda each: each.state.group,
    }  # fmt: skip
    print_resets(found, first, {"pending": lambda each: each.state.pending})


def _connector(each: dict[str, Any], in_rate: float | None, out_rate: float | None) -> list[str]:
    source, sink = each["counts"]["source"], each["counts"]["sink"]
    arrived, given_up = [f"{source.get(name, 0):,}" if each["source"] else "-" for name in ("out", "dead")]
    delivered = f"{sink.get('ok', 0):,}" if each["sink"] else "-"
    return [
        each["alias"], each["type"], each["status"], each["connectivity"], arrived, delivered, rate(in_rate),
        rate(out_rate), given_up, printable(each["error"]),
    ]  # fmt: skip


def _seconds(since: float | None) -> str:
    return "since the start" if since is None else f"{since:.1f} s"
