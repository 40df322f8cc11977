"""The HTTP API: the routes and bodies of Tremor's API, with extensions. ``openapi.ROUTES`` lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from tidelog.flows.api.errors import FlowError, FlowFileError
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.runningflow import DrainReport
from tidelog.flows.service import deadletters, page, reloading, requestbodies, streamgroups, tap, views
from tidelog.flows.service.accesscontrol import HEADERS, TOKEN, AccessControl
from tidelog.flows.service.history import FlowHistory
from tidelog.flows.service.host import DeployedFlow, FlowHost, NoFlowError
from tidelog.flows.service.metrics import CONTENT_TYPE, FlowMetrics
from tidelog.flows.service.openapi import ROUTES, document
from tidelog.flows.service.requestbodies import ApiError, ReplayBody, StatusBody, answer
from tidelog.operating.hostnames import is_local
from tidelog.operating.httpaddress import IDLE, HttpAddress, HttpLimits

DEFAULT: Final = "127.0.0.1:9898"
HEARTBEAT: Final = 5.0  # s between checks whether the client of a tap is still connected
UNREAD: Final = 20.0  # s: the timeout of sending to the client of a tap
CONNECTIONS: Final = 500  # maximum number of open connections; further ones get 503 and are closed
HEADERS_WITHIN: Final = 10.0  # s for a request's headers, for the first request from the connection on


def address(listen: str) -> tuple[str, int]:
    """Parse HOST:PORT. Raises FlowError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise FlowError(f"listen is {listen!r}: it must be HOST:PORT, such as {DEFAULT}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - without a host, listen on all addresses


class FlowApiServer:
    """The listening API of a host. ``url`` is its address."""

    def __init__(
        self, host: FlowHost, listen: str = DEFAULT, token: str | None = None, history: FlowHistory | None = None
    ) -> None:  # fmt: skip
        self._place = address(listen)
        if token is None and not is_local(self._place[0]):
            raise FlowError(
                f"listen is {listen!r}: if other hosts can connect, a token is required; name a file that contains one"
                f" as token_file, or listen on {DEFAULT}"
            )
        if token is not None and len(token) < TOKEN:
            text = f"the token has {len(token)} characters: the minimum is {TOKEN}; openssl rand -hex 32 generates one"
            raise FlowError(text)
        self._runner = web.AppRunner(application(host, token, history), access_log=None, shutdown_timeout=2.0)
        self._address: HttpAddress | None = None
        self.url = ""

    async def start(self) -> None:
        """Start listening. Raises FlowError if the port is in use."""
        host, port = self._place
        await self._runner.setup()
        handler = self._runner.server
        assert handler is not None  # noqa: S101 - set up above
        self._address = HttpAddress(host, port, HttpLimits(CONNECTIONS, HEADERS_WITHIN, IDLE))
        try:
            await self._address.start(handler)
        except OSError as error:
            await self._runner.cleanup()
            raise FlowError(
                f"{host}:{port} can't be used: {error.strerror or error};"
                f" name another address with --listen HOST:PORT, or none with --listen none"
            ) from None
        self.url = f"http://{self._address.shown}"

    async def stop(self) -> None:
        if self._address is not None:
            await self._address.stop()
        await self._runner.cleanup()


def application(host: FlowHost, token: str | None = None, history: FlowHistory | None = None) -> web.Application:
    app = web.Application(middlewares=[AccessControl(token).middleware], client_max_size=requestbodies.BODY)
    api = FlowApi(host, AccessControl(token), history or FlowHistory(host, ""))
    for route in ROUTES:
        app.router.add_route(route.method, route.path, getattr(api, route.handler))
    app.router.add_get("/", page.serve)
    app.on_shutdown.append(api.shut_down)
    return app


class FlowApi:
    """The handlers, named as in ``openapi.ROUTES``."""

    def __init__(self, host: FlowHost, guard: AccessControl, history: FlowHistory) -> None:
        self._host = host
        self._history = history
        self._guard = guard
        self._metrics = FlowMetrics(host)
        self._taps: set[tap.TapReader] = set()
        self._ended = False

    async def shut_down(self, _: web.Application) -> None:
        self._ended = True
        for each in self._taps:
            each.wake()

    # -- the process -----------------------------------------------------------------------------------------
    async def version(self, _: web.Request) -> web.Response:
        return answer(views.version())

    async def status(self, _: web.Request) -> web.Response:
        found = views.status(self._host)
        return answer(found, 200 if found["all_running"] else 503)

    async def live(self, _: web.Request) -> web.Response:
        return answer({"live": True})

    async def ready(self, request: web.Request) -> web.Response:
        found = views.not_ready(self._host)
        body: dict[str, Any] = {"ready": not found}
        if self._guard.known(request):
            body["culprits"] = found
        return answer(body, 503 if found else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, _: web.Request) -> web.Response:
        return answer(document())

    # -- flows -----------------------------------------------------------------------------------------------
    async def flows(self, _: web.Request) -> web.Response:
        return answer([views.flow(each, each.name, self._host) for each in self._host.flows.values()])

    async def flow(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        return answer(views.flow(deployed, alias, self._host))

    async def patch_flow(self, request: web.Request) -> web.Response:
        _, alias = self._found(request)
        body = await requestbodies.body_as(StatusBody, request)
        deployed = await self._host.set_status(alias, body.status)
        return answer(views.flow(deployed, alias))

    async def post_flow(self, request: web.Request) -> web.Response:
        return await self._deploy(request, replace=False)

    async def put_flow(self, request: web.Request) -> web.Response:
        return await self._deploy(request, replace=True)

    async def _deploy(self, request: web.Request, *, replace: bool) -> web.Response:
        name = request.match_info["flow"]
        given = await requestbodies.flow_body(request, self._host.reading)
        async with self._host.reading:
            spec = await asyncio.to_thread(self._host.read, name, given)
        known = name in self._host.flows
        deployed, reports = await self._host.deploy(name, given, replace=replace, spec=spec)
        kept = deployed.by == "api" and self._host.desired is not None
        body = {**views.flow(deployed, name), "kept": kept, "drained": drain_results(reports)}
        return answer(body, 200 if known else 201, {} if known else {"Location": f"/v1/flows/{name}"})

    async def delete_flow(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        timeout = requestbodies.number(request, "timeout", None, 0.0, 3600.0)
        shown = views.flow(deployed, alias)
        reports = await self._host.undeploy(alias, timeout)
        return answer({**shown, "status": "drained", "drained": drain_results(reports)})

    async def reload(self, _: web.Request) -> web.Response:
        try:
            report = await reloading.reload(self._host)
        except FlowFileError as error:
            raise requestbodies.wrong(error, "nothing was changed") from None
        return answer({
            "started": report.started, "replaced": report.replaced, "rescaled": report.rescaled,
            "removed": report.removed, "unchanged": report.unchanged, "failed": report.failed,
            "drained": drain_results(report.drained),
        })  # fmt: skip

    # -- connectors, pipelines -------------------------------------------------------------------------------
    async def connectors(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        return answer([views.connector(deployed, alias, name) for name in deployed.spec.connectors])

    async def connector(self, request: web.Request) -> web.Response:
        deployed, alias, name = self._part(request, "connector")
        return answer(views.connector(deployed, alias, name))

    async def patch_connector(self, request: web.Request) -> web.Response:
        _, alias, name = self._part(request, "connector")
        body = await requestbodies.body_as(StatusBody, request)
        deployed = await self._host.set_status(alias, body.status, name)
        return answer(views.connector(deployed, alias, name))

    async def pipelines(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        self._started(deployed)
        return answer([views.pipeline(deployed, alias, name) for name in deployed.spec.pipelines])

    async def pipeline(self, request: web.Request) -> web.Response:
        deployed, alias, name = self._part(request, "pipeline")
        self._started(deployed)
        return answer(views.pipeline(deployed, alias, name))

    async def graph(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        self._started(deployed)
        return answer(views.graph(deployed, alias))

    async def breaker(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        return answer(views.breaker(deployed, alias))

    async def unsettled(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        return answer({"alias": alias, **views.unsettled(deployed.chosen(alias))})

    # -- history, declaration, waiting events, warnings ------------------------------------------------------
    async def overview(self, _: web.Request) -> web.Response:
        return answer([views.overview(each, self._history) for each in self._host.flows.values()])

    async def history(self, request: web.Request) -> web.Response:
        deployed, _ = self._found(request)
        minutes = requestbodies.number(request, "minutes", 60.0, 1.0, 1440.0) or 60.0
        return answer({"alias": deployed.name, **await self._history.chart(deployed.name, minutes)})

    async def declaration(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        return answer({"alias": alias, "from": deployed.by, "yaml": views.declaration(deployed)})

    async def waiting(self, request: web.Request) -> web.Response:
        deployed, alias = self._found(request)
        self._started(deployed)
        limit = int(requestbodies.number(request, "limit", 20.0, 1.0, 100.0) or 20)
        return answer({"alias": alias, "events": tap.waiting(self._channels(request, deployed, alias), limit)})

    async def warnings(self, request: web.Request) -> web.Response:
        alias = request.query.get("flow")
        aliases = None
        if alias is not None:
            deployed = self._host.find(alias)
            aliases = [alias, *(each.alias for each in deployed.chosen(alias))]
        return answer(self._host.warnings.of(aliases))

    # -- a tap -----------------------------------------------------------------------------------------------
    async def tap(self, request: web.Request) -> web.StreamResponse:
        """Send samples as server-sent events, until the client disconnects or the flow ends."""
        deployed, alias = self._found(request)
        rate = requestbodies.number(request, "rate", tap.RATE, 0.01, tap.RATE_MOST) or tap.RATE
        chosen = deployed.chosen(alias)
        channels = self._channels(request, deployed, alias)
        if len(self._taps) >= tap.TAPS:
            raise ApiError(429, f"there are {tap.TAPS} taps: this is the maximum")
        tapped = tap.TapReader(channels, rate)
        self._taps.add(tapped)
        try:
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            tapped.attach()
            await _written(response, b": tapped\n\n")
            while not self._ended:
                found = await tapped.next(HEARTBEAT)
                data = b"".join(b"data: " + each + b"\n\n" for each in found)
                await _written(response, data or b": %d events passed\n\n" % tapped.passed)
                if not found and all(each.ended for each in chosen):
                    await _written(response, b"event: end\ndata: {}\n\n")
                    break
        except TimeoutError:  # the client does not read
            if request.transport is not None:
                request.transport.abort()
        except (ConnectionError, asyncio.CancelledError):  # the client has disconnected
            pass
        finally:
            tapped.detach()
            self._taps.discard(tapped)
        return response

    # -- dead letters ----------------------------------------------------------------------------------------
    async def dead_letters(self, request: web.Request) -> web.Response:
        given = {name: each for name, each in request.query.items() if name not in ("limit", "contains")}
        server, topic = self._letters(requestbodies.parsed(ReplayBody, given))
        limit = int(requestbodies.number(request, "limit", 100.0, 1.0, deadletters.LIMIT) or 100)
        return answer(await deadletters.listed(server, topic, limit, request.query.get("contains", "")))

    async def replay(self, request: web.Request) -> web.Response:
        body = await requestbodies.body_as(ReplayBody, request)
        server, topic = self._letters(body)
        return answer(await deadletters.replayed(server, topic, body.ids))

    def _letters(self, given: ReplayBody) -> tuple[str, str]:
        """Return the server and the topic of dead letters."""
        server, topic = self._host.server, given.topic or ""
        if given.flow is not None:
            deployed = self._host.find(given.flow)
            server, topic = deployed.spec.server, streamgroups.dead_letter_topic(deployed.spec)
        if server is None:
            raise ApiError(422, "the flow has no tidelog server, so its dead letters are only logged")
        return server, topic

    @staticmethod
    def _channels(request: web.Request, deployed: DeployedFlow, alias: str) -> list[tuple[str, EventChannel]]:
        """Return the channels of the query, each with its instance; all if there is none in the query."""
        channels = [(each.alias, channel) for each in deployed.chosen(alias) for channel in each.graph.channels]
        wanted = request.query.get("channel")
        if wanted is None:
            return channels
        names = list(dict.fromkeys(channel.name for _, channel in channels))
        if wanted not in names:
            raise ApiError(404, f"{alias} has no channel {wanted!r}: it has {', '.join(map(repr, names))}")
        return [each for each in channels if each[1].name == wanted]

    # -- the object of a path --------------------------------------------------------------------------------
    def _found(self, request: web.Request) -> tuple[DeployedFlow, str]:
        alias = request.match_info["flow"]
        return self._host.find(alias), alias

    def _part(self, request: web.Request, kind: str) -> tuple[DeployedFlow, str, str]:
        deployed, alias = self._found(request)
        name = request.match_info[kind]
        if name not in (deployed.spec.connectors if kind == "connector" else deployed.spec.pipelines):
            raise NoFlowError(f"the flow {alias!r} has no {kind} {name!r}")
        return deployed, alias, name

    def _started(self, deployed: DeployedFlow) -> None:
        if not deployed.instances:
            raise ApiError(409, f"the flow {deployed.name!r} is not started yet")


async def _written(response: web.StreamResponse, data: bytes) -> None:
    """Send data. Raises TimeoutError if the client does not read."""
    async with asyncio.timeout(UNREAD):
        await response.write(data)


def drain_results(reports: Mapping[str, DrainReport]) -> list[dict[str, Any]]:
    """Return the results of drains, by instance."""
    return [
        {
            "alias": alias, "settled": each.settled, "abandoned": each.abandoned, "complete": each.complete,
            "seconds": round(each.seconds, 3),
        }
        for alias, each in reports.items()
    ]  # fmt: skip
