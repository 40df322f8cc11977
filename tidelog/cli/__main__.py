"""``python -m tidelog.cli``: the ``tidelog`` CLI, for use if its script is not installed."""

from tidelog.cli.program import main

main()
