"""tidelog and redis-server side by side, on this machine, in one run. ``scripts/bench --help``."""
