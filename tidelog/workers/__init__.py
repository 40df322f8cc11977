"""Workers: processes that run the processors of an app together.

    app            ``App``: the declaration of an app
    declare/       what an app consists of: processors, events, policies, middleware, schedules
    coordination/  how the workers of an app share the partitions and elect a leader
    execution/     how a worker runs its processors
    operate/       status, control, metrics, tests
    keys           the keys on the server that workers use
    logs           the fields that identify the worker, processor and partition in log records

Layers, from the top: app, operate, execution, coordination, declare, then keys and logs.
"""

from tidelog.topics.failureactions import DeadLetter, Halt, Park, Pause, Retry, Skip
from tidelog.workers.app import App
from tidelog.workers.declare.builtin_middleware import Timing, deduplicate, timing, to_prometheus, tracing
from tidelog.workers.declare.errors import AppError, EarlyReturnError
from tidelog.workers.declare.events import Event, Events, Take
from tidelog.workers.declare.middleware import CallNext, Middleware
from tidelog.workers.declare.policy import Policy
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.worker import Worker
from tidelog.workers.logs import LogFields

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
