"""Replication: the leader's end, the replica's end, and what goes over the link between them."""
