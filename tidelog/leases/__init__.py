"""Leases: who may do something now, agreed on through the server.

    lease    ``Lease``: a key with an owner and a time, and how it is acquired, renewed and released
    keeper   ``Keeper``: a thread with its own connection that keeps a lease
    epochs   the counter that both get their epochs from
    claims   ``Claim``: a key that belongs to a lease's holder for as long as that lease lasts

A process has one lease, so renewing costs one command however much it owns. What it owns are claims, which name the
lease and need no renewal. Epochs come from one counter on the server, which only goes up: no value of a lease or of a
claim occurs twice, and what is dead stays dead.
"""

from tidelog.leases.claims import Claim, Holder, Taken
from tidelog.leases.keeper import Keeper
from tidelog.leases.lease import Lease, LeaseLostError, Tenure

__all__ = ["Claim", "Holder", "Keeper", "Lease", "LeaseLostError", "Taken", "Tenure"]
