"""Coordination of processes through the server: leases, claims and shared documents.

    lease          ``Lease``: a key with an owner and a time to live, and how it is acquired, renewed and released
    keeper         ``Keeper``: a thread with its own connection that renews a lease
    epochs         the counter that supplies the epochs of leases and claims
    claims         ``Claim``: a key that belongs to the holder of a lease for as long as the lease lasts
    documents      strings that are changed by compare-and-set
    membership     the members that such a document lists
    programs       the names of the apps and flow processes of a server
    controlstream  the stream in which processes notify each other of changes

A process has one lease, so renewing costs one command, however many claims the process owns. Claims name the lease and
are not renewed. Epochs come from one counter on the server, which only goes up. No value of a lease or of a claim is
ever repeated, so an expired lease or claim can't become valid again.
"""

from tidelog.coordination.claims import Claim, ClaimResult, Holder
from tidelog.coordination.keeper import Keeper
from tidelog.coordination.lease import Lease, LeaseLostError, Tenure

__all__ = ["Claim", "Holder", "Keeper", "Lease", "LeaseLostError", "ClaimResult", "Tenure"]
