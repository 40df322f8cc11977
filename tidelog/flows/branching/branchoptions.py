"""The options of ``branch``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import Interval, PositiveDuration, PositiveSize
from tidelog.transport.access import Access


class CacheOptions(Struct):
    """The cache of ``branch``."""

    key: str = "@"  # A JMESPath expression of the request. Requests with equal keys have the same response.
    ttl: Interval = Interval(600.0)  # How long a response is used.
    store: Literal["memory", "redis"] = "memory"
    # Where responses are stored: in this process, or on a server of Redis or tidelog, which processes can share.
    entries: AtLeastOne = 10_000  # Maximum number of responses in memory. The least recently used one is removed.
    size: PositiveSize = PositiveSize(64 << 20)  # Maximum size of the keys and responses in memory.
    url: str | None = None  # The URL of the server. `null`: the tidelog server of the flow.
    name: str | None = None
    # Name of the set of responses on the server. `null`: derived from the flow's name and the operator's position in
    # it.

    def __post_init__(self) -> None:
        if self.store == "memory" and (self.url is not None or self.name is not None):
            raise ValueError("url and name are for store: redis")
        if self.url is not None:
            Access.of(self.url)


class BranchOptions(Struct):
    """The options of ``branch``."""

    set: dict[str, str]
    # Fields of the event, as paths, and their expressions. The input of an expression is the response, `$event` is the
    # value of the event, and `$meta` is the metadata of the response.
    operators: list[Any] = msgspec.field(default_factory=list)  # The operators through which the request passes.
    http_client: dict[str, Any] | None = None
    # The options of an [`http_client`](flows-connectors.md#http_client), which sends the result of the operators as a
    # request. `null`: the result of the operators is the response.
    request: str = "@"  # A JMESPath expression for the value of the request.
    where: str | None = None  # A JMESPath expression. Events for which it is not true are passed on unchanged.
    meta: dict[str, str] = msgspec.field(default_factory=dict)
    # Entries of the event's metadata and their expressions, as in `set`.
    timeout: PositiveDuration = PositiveDuration(30.0)
    # Maximum time from the sending of a request to its response. It includes the time in `operators`, and that for
    # which the request waits for others because of `concurrency`. With `outage: wait`, it begins again when an
    # outage ends.
    failures: Literal["retry", "err"] = "retry"
    # What happens to an event whose request can be repeated, such as after a timeout or the status 503. `retry`: its
    # source retries it. `err`: it is emitted on `err`.
    outage: Literal["wait", "fail"] = "wait"
    # What happens while the peer is disconnected or unavailable. `wait`: events wait, and the sources stop. `fail`:
    # events fail immediately, as `failures` determines.
    max_in_flight: AtLeastOne = 100  # Maximum number of requests that were sent and whose responses are awaited.
    cache: CacheOptions | None = None  # Stores responses. `null`: each event is a request.

    def __post_init__(self) -> None:
        if not self.operators and self.http_client is None:
            raise ValueError("neither operators nor http_client: use http_client: {url: ...}")
        if not self.set and not self.meta:
            raise ValueError('set is empty: use set: {customer: "@"} to store the response')
