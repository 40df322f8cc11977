"""What can go wrong with a job, by whose fault. Each text names the job and says what to do."""

from __future__ import annotations


class JobError(Exception):
    """A job can't be declared, added or run as it is. Trying again does not help."""


class FunctionError(JobError):
    """The job's function raised, or returned what can't be used. The text has its traceback."""


class NotDeterministicError(JobError):
    """The function, called again with the same input, changed the state in another way."""


class InputsLostError(JobError):
    """Entries that the job needs, to go on or to recover, were evicted."""


class SupersededError(Exception):
    """Another engine has published this epoch, or a later one: what this one did counts for nothing."""


class TryAgainError(Exception):
    """What went wrong may pass. Nothing of the epoch was published; the next attempt begins from the log."""
