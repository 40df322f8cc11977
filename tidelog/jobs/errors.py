"""The errors of jobs, by cause. Each text names the job and the remedy."""

from __future__ import annotations


class JobError(Exception):
    """A job can't be declared, added or run in its current form. Retrying does not help."""


class FunctionError(JobError):
    """The job's function raised, or its result can't be used. The text contains the traceback."""


class NotDeterministicError(JobError):
    """The function, called again with the same input, changed the state differently."""


class InputsLostError(JobError):
    """Entries that the job needs, to continue or to recover, were evicted."""


class SupersededError(Exception):
    """Another engine has published this epoch or a later one: this engine's result is discarded."""


class TryAgainError(Exception):
    """A failure that may be temporary. Nothing of the epoch was published; the next attempt starts from the log."""
