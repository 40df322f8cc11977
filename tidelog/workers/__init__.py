"""Workers: programs that process the records of topics, together.

    app          ``App``: what a program declares
    declared     a processor as it was declared: options, defaults, checks
    signature    what a user's function takes
    events       ``Event`` and ``Events``: what a processor gets
    policy       what happens to an event that failed
    middleware   layers around processors
    layers       middleware that is shipped: timing, tracing, deduplicate
    feeds        the same around processors that pull their events, and their timeout
    schedule     timers and crons, and which of their moments are due
    deadlines    timeouts of one length for many calls
    errors       ``AppError``, ``EarlyReturnError``

What runs it, from the process down to the bytes:

    worker        ``Worker``: a process, its lease, its executors, signals
    ownership     ``Ownership``: a seat in a running worker, with a listener that is told what to consume
    seat          one member: what it should own, takes and gives up, as operations without I/O
    members       the document that says who takes part, changed by compare-and-set
    assignment    who should own which partition: sticky, by capacity
    control       the stream in which workers tell each other that something has changed
    leadership    ``Leadership``: one worker leads
    leading       ``Leading``: leadership, its duties, timers, in a running worker
    duties        ``Duties``: what the leader does for as long as it leads
    timers        runs timers and crons, on the leader and in each worker
    movers        a duty: to send records whose time has come
    maintenance   a duty: to evict what retention gives up
    keys          the keys on the server that workers agree by
    executor      ``Executor``: one processor in one worker: partitions come and go
    beginning     where a processor with start="newest" begins
    consumer      takes the entries of a partition one by one, or in batches
    keyed         many at a time, one of each key; or in no order
    generators    for processors that take their events themselves
    failures      carries out what the failure policy decides
    inside        what comes out of user code, and is a failure
    tried         how often an event was begun by processes that have died
    marks         what is held back, on the server: parked keys, paused partitions
    sinks         what events are asked to do: acknowledge, give back, send
    partition     ``Partition``: what is in hand of one partition
    fetcher       reads entries into buffers: TREAD, TWAIT
    pacing        how much is taken ahead where nobody owns a partition
    buffers       ``Buffer``: the entries of one partition that are in hand
    acks          acknowledgements, sent by many
    transactions  what is sent and what is acknowledged, in one step under the claim
    outputs       ``Output``: an entry that a transaction appends
    stats         counters
    link          connections that are made again
    tasks         ending tasks

For people:

    testing       ``AppTest``: an app in process, on a server of its own
    metrics       ``/metrics`` for Prometheus
    scraping      the HTTP server of that, within limits
    logs          what log records say about where they come from
    status        what an app is doing, read from the server
    steering      what people do to a processor from outside: reset, hold, resume
    deletion      what an app has on a server, and its removal
    program       ``Program``: what these need of an app
"""

from tidelog.workers.app import App
from tidelog.workers.errors import AppError, EarlyReturnError
from tidelog.workers.events import Event, Events, Take
from tidelog.workers.layers import Timing, deduplicate, timing, to_prometheus, tracing
from tidelog.workers.logs import LogFields
from tidelog.workers.middleware import CallNext, Middleware
from tidelog.workers.policy import DeadLetter, Halt, Park, Pause, Policy, Retry, Skip
from tidelog.workers.stats import Stats
from tidelog.workers.worker import Worker

__all__ = [
    "App",
    "AppError",
    "CallNext",
    "DeadLetter",
    "EarlyReturnError",
    "Event",
    "Events",
    "Halt",
    "LogFields",
    "Middleware",
    "Park",
    "Pause",
    "Policy",
    "Retry",
    "Skip",
    "Stats",
    "Take",
    "Timing",
    "Worker",
    "deduplicate",
    "timing",
    "to_prometheus",
    "tracing",
]
