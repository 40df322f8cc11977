"""``elastic``: writes documents to Elasticsearch or OpenSearch by the bulk API. Each is settled by its own result.

docs/flows-connectors.md has the outcome of each result. A batch of the operator ``batch`` has one document for each
member, and each member is settled by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from yarl import URL

from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.errors import RejectError, RetryError
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY
from tidelog.flows.codecs.json import read_json, write_json
from tidelog.flows.connectors.batchmembers import members
from tidelog.flows.connectors.http.requests import (
    HttpRequestOptions,
    HttpRequestSink,
    HttpResponse,
    check_url,
    retry_after,
)
from tidelog.flows.connectors.templates import Template
from tidelog.options.limits import NotNegative
from tidelog.options.units import Size

HALVED: Final = frozenset((400, 413))  # status codes of a request that a single document can cause
_NAMES: Final = {  # in meta["elastic"]: in the bulk API
    "index": "_index", "id": "_id", "routing": "routing", "pipeline": "pipeline", "version": "version",
    "version_type": "version_type", "if_seq_no": "if_seq_no", "if_primary_term": "if_primary_term",
    "require_alias": "require_alias", "retry_on_conflict": "retry_on_conflict",
}  # fmt: skip
_VERSIONS: Final = frozenset(("version", "if_seq_no", "if_primary_term"))  # a conflict with these is permanent
_ACTIONS: Final = frozenset(("index", "create", "update", "delete"))


class ElasticOptions(HttpRequestOptions, kw_only=True):
    """Options of ``elastic``."""

    remedies: ClassVar[Mapping[str, str]] = {**HttpRequestOptions.remedies, "id_field": "use id: '{FIELD}'"}
    templates: ClassVar[tuple[str, ...]] = ("index", "id", "pipeline")

    url: str | list[str]  # The URL of a node, or a list of nodes that are used in turn.
    index: str | None = None
    # The index to write to, a [template](#templates). `meta["elastic"]["index"]` has priority.
    action: Literal["index", "create", "update", "delete"] = "index"
    # The action for each document: `index`, `create`, `update` or `delete`.
    id: str | None = None  # The `_id` of a document, a [template](#templates) such as `{customer.id}`. `null`: none.
    event_id: bool = False  # Use the event's ID as the `_id`, so that an event that is sent twice is one document.
    upsert: bool = False  # Let `update` create a document that does not exist.
    retry_on_conflict: NotNegative = 0  # For `update`: number of retries by the server itself after a version conflict.
    pipeline: str | None = None
    # The ingest pipeline of the cluster, a [template](#templates). `null`: that of the index.
    refresh: Literal["false", "true", "wait_for"] = "false"
    # `"true"` and `wait_for`: searches find a document once its event is settled. Both are slow.
    max_bulk: Size = Size(8 << 20)  # Maximum size of a request's body. A larger document is rejected.
    max_response: Size = Size(32 << 20)  # Maximum size of a response, decompressed.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.urls:
            raise ValueError("url is empty: give at least one")
        for each in self.urls:
            if check_url(each, self.tls).query_string:
                raise ValueError(f"url: {each!r}: it must not have a query")
        if self.id is not None and self.event_id:
            raise ValueError("id and event_id are exclusive: give one of them")

    @property
    def urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else self.url


@dataclass
class BulkItem:
    """A document of a bulk request."""

    action: str
    data: bytes  # its lines of the body
    outcome: tuple[int, str] = (RETRY, "it was not sent")
    result: dict[str, Any] | None = None  # from the response
    versioned: bool = False  # the event names a version of the document
    own_index: bool = False  # the event chose the index
    begun: bool = False  # a request with it has started
    withdrawn: bool = False  # it must not be sent


class ElasticSink(HttpRequestSink):
    """Sends documents in bulk requests."""

    type = "elastic"
    Options = ElasticOptions

    def __init__(self, options: ElasticOptions) -> None:
        self._nodes = [URL(each.rstrip("/"), encoded=True) for each in options.urls]
        super().__init__(options, self._nodes)
        self._options = options
        self._index = None if options.index is None else Template(options.index)
        self._id_template = None if options.id is None else Template(options.id)
        self._pipeline = None if options.pipeline is None else Template(options.pipeline)
        self._writes: dict[int, tuple[list[Event], list[list[BulkItem] | BulkItem]]] = {}  # in progress, by id()
        self._turn = 0  # the next node
        self._path = "/_bulk" if options.refresh == "false" else f"/_bulk?refresh={options.refresh}"
        self._headers = options.headers | {"Content-Type": "application/x-ndjson", "Accept": "application/json"}

    async def connect(self) -> None:
        await super().connect()
        self.limit.close()
        problem = ""
        for node in self._nodes:
            try:
                answer = await self.call("GET", URL(f"{node}/", encoded=True), None, {"Accept": "application/json"})
            except RetryError as error:
                problem = f"{node}: {error}"
                continue
            if answer.status < 400 or answer.status == 403:  # 403: it may still have permission to write
                self.limit.open()
                return
            problem = f"{node}: {answer.excerpt}"
        raise ConnectionError(problem)

    # -- events ----------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        made = [self._items(each) for each in events]
        self._writes[id(made)] = (events, made)
        try:
            await self._deliver([item for items in made for item in (items if isinstance(items, list) else [items])])
        finally:
            del self._writes[id(made)]
        responses = []
        for event, items in zip(events, made, strict=True):
            response = self._response(event, items) if self.context.responds() else None
            if response is not None:
                responses.append(response)
        if responses:
            self.context.respond(responses)
        return [[each.outcome for each in items] if isinstance(items, list) else items.outcome for items in made]

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found: list[Event] = []
        for events, made in self._writes.values():
            for event, one in zip(events, made, strict=True):
                items = one if isinstance(one, list) else [one]
                unsent = all(each.action and not (each.begun or each.withdrawn) for each in items)
                if unsent and items and wanted(event):
                    found.append(event)
                    for each in items:
                        each.withdrawn = True
        if found:
            self.limit.recheck()
        return found

    def _items(self, event: Event) -> list[BulkItem] | BulkItem:
        """Return the documents of an event: one, or one for each member of a batch."""
        batch = members(event)
        if batch is not None:
            return [self._item(each.value, each.event, own=each.own) for each in batch]
        if isinstance(event.value, list):
            return BulkItem("", b"", (REJECT, "a document is an object, not a list: use split or unbatch before"))
        return self._item(event.value, event)

    def _item(self, value: Any, event: Event, *, own: bool = True) -> BulkItem:
        """Return the document ``value`` with the metadata of an event. ``own``: the event's ID is that of the value."""
        try:
            action, about = self._action(value, event, event.id if own else None)
            chosen = "index" in (event.meta.get("elastic") or {})
            own_index = chosen or self._index is None or self._index.fixed is None
            lines = [write_json({action: about})]
            if action == "update":
                change = {"doc": value, "doc_as_upsert": True} if self._options.upsert else {"doc": value}
                lines.append(write_json(change))
            elif action != "delete":
                lines.append(write_json(value))
        except RejectError as error:
            return BulkItem("", b"", (REJECT, str(error)))
        data = b"\n".join(lines) + b"\n"
        if len(data) > self._options.max_bulk:
            return BulkItem("", b"", (REJECT, f"a document of {len(data)} bytes: max_bulk is {self._options.max_bulk}"))
        return BulkItem(action, data, versioned=not _VERSIONS.isdisjoint(about), own_index=own_index)

    def _action(self, value: Any, event: Event, ident: Any) -> tuple[str, dict[str, Any]]:
        """Return the action and its parameters. Raises RejectError if they are not valid."""
        options = self._options
        given = event.meta.get("elastic") or {}
        if not isinstance(given, Mapping):
            raise RejectError("meta: elastic is not an object")
        action = given.get("action", options.action)
        if not isinstance(action, str) or action not in _ACTIONS:
            raise RejectError(f"meta: elastic: there is no action {action!r}")
        if action != "delete" and not isinstance(value, dict):
            raise RejectError(f"a document is an object, not {type(value).__name__}")
        about: dict[str, Any] = {}
        for name, each in given.items():
            if name != "action":
                if name not in _NAMES:
                    raise RejectError(f"meta: elastic: {name!r} is unknown; known are action, {', '.join(_NAMES)}")
                about[_NAMES[name]] = each
        if "_index" not in about:
            if self._index is None:
                raise RejectError("no index: set the option, or the event's meta elastic.index")
            about["_index"] = self._index.fill_from(value, event.meta, event.ingest_ns)
        if "_id" not in about and (found := self._id(value, event, ident)) is not None:
            about["_id"] = found
        if self._pipeline is not None and action in ("index", "create") and "pipeline" not in about:
            about["pipeline"] = self._pipeline.fill_from(value, event.meta, event.ingest_ns)
        if "_id" not in about and action in ("update", "delete"):
            raise RejectError(f"{action} needs an ID: set id or event_id, or the event's meta elastic.id")
        self._conflict(action, about)
        return action, about

    def _conflict(self, action: str, about: dict[str, Any]) -> None:
        if action != "update":
            about.pop("retry_on_conflict", None)
        elif self._options.retry_on_conflict and _VERSIONS.isdisjoint(about):  # the server rejects both together
            about.setdefault("retry_on_conflict", self._options.retry_on_conflict)

    def _id(self, value: Any, event: Event, ident: Any) -> str | None:
        if self._id_template is not None:
            found = self._id_template.fill_from(value, event.meta, event.ingest_ns)
            if not found:
                raise RejectError(f"{self._options.id!r}: the ID of the document is empty")
            return found
        if self._options.event_id:
            if ident is None:
                raise RejectError("event_id: the event has no ID of its own")
            return ident.decode() if isinstance(ident, bytes) else str(ident)
        return None

    # -- requests --------------------------------------------------------------------------------------------
    async def _deliver(self, items: list[BulkItem]) -> None:
        """Send documents in as few requests as ``max_bulk`` allows, in order, and set their outcomes."""
        part: list[BulkItem] = []
        size = 0
        for each in items:
            if not each.action:  # it is already rejected
                continue
            if part and size + len(each.data) > self._options.max_bulk:
                await self._send(part)
                part, size = [], 0
            part.append(each)
            size += len(each.data)
        if part:
            await self._send(part)

    async def _send(self, items: list[BulkItem]) -> None:
        began = await self.limit.turn(lambda: not all(each.withdrawn for each in items))
        if began is None:
            return
        items = [each for each in items if not each.withdrawn]
        if not items:  # all were withdrawn
            self.limit.end()
            return
        for each in items:
            each.begun = True
        try:
            answer = await self._request(b"".join(each.data for each in items))
            halve = self._judge(items, answer, began)
        except RetryError as error:
            self.limit.bad(began, str(error))
            _all(items, RETRY, str(error))
            return
        finally:
            self.limit.end()
        if halve:
            middle = len(items) // 2
            await self._send(items[:middle])
            await self._send(items[middle:])

    async def _request(self, body: bytes) -> HttpResponse:
        """Send a request to one node, or if it does not respond to the next one. Raises RetryError if none does."""
        problem = RetryError("not connected")
        self._turn += 1
        for number in range(len(self._nodes)):
            node = self._nodes[(self._turn + number) % len(self._nodes)]
            try:
                return await self.call("POST", URL(f"{node}{self._path}", encoded=True), body, self._headers)
            except RetryError as error:
                problem = error
        raise problem

    def _judge(self, items: list[BulkItem], answer: HttpResponse, began: float) -> bool:
        """Set the outcomes. Returns True if the request must be split. Raises RetryError if the response is invalid."""
        if answer.status in HALVED:
            self.limit.good(began)
            if len(items) > 1:
                self.context.count("halved")
                return True
            _all(items, REJECT, answer.excerpt)
            return False
        if answer.status != 200:
            self.limit.bad(began, answer.excerpt, retry_after(answer.headers))
            _all(items, RETRY, answer.excerpt)
            return False
        if answer.body is None:
            raise RetryError(f"the response is longer than max_response, {self._options.max_response} bytes")
        try:
            results = read_json(answer.body)["items"]
            results = [next(iter(each.values())) for each in results]
            statuses = [int(each["status"]) for each in results]
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
            raise RetryError(f"not a response of the bulk API: {type(error).__name__}: {error}") from error
        if len(results) != len(items):
            raise RetryError(f"{len(results)} results for {len(items)} documents")
        for each, result, status in zip(items, results, statuses, strict=True):
            each.result = result
            each.outcome = _outcome(each, status, result)
        pairs = zip(items, statuses, strict=True)
        busy = next((each.outcome[1] for each, status in pairs if each.outcome[0] == RETRY and status != 409), None)
        if busy is None:
            self.limit.good(began)
        else:
            self.limit.bad(began, busy, retry_after(answer.headers))
        return False

    # -- responses -------------------------------------------------------------------------------------------
    def _response(self, event: Event, items: list[BulkItem] | BulkItem) -> Event | None:
        """Return the results as an event, if the server accepted at least one of the documents."""
        each = items if isinstance(items, list) else [items]
        if not any(one.outcome[0] <= DISCARD for one in each):
            return None
        response = event.derive([one.result for one in items] if isinstance(items, list) else items.result)
        response.path = f"{self.context.name}.out"
        response.token = None if event.token is None else event.token.fork()
        return response


def _all(items: Sequence[BulkItem], status: int, reason: str) -> None:
    for each in items:
        each.outcome = (status, reason)


def _outcome(item: BulkItem, status: int, result: Mapping[str, Any]) -> tuple[int, str]:
    if 200 <= status < 300 or (item.action == "delete" and status == 404):
        return OK, ""
    if item.action == "create" and status == 409:
        return DISCARD, "the document already exists"
    error = result.get("error")
    kind = error.get("type") if isinstance(error, Mapping) else None
    text = f"{kind}: {error.get('reason')}" if isinstance(error, Mapping) else str(error or "")
    passing = status == 429 or status >= 500 or (item.action == "update" and status == 409 and not item.versioned)
    refused = status in (401, 403) and (
        kind == "cluster_block_exception" or (kind == "security_exception" and not item.own_index)
    )
    return RETRY if passing or refused else REJECT, f"{status}: {text}"[:300]
