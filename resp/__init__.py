"""The RESP wire: requests in, replies out. Knows bytes only."""
