"""Flows of one process, steered over HTTP."""
