"""``python -m tidelog.cli``: the ``tidelog`` program where its script is not installed."""

from tidelog.cli.program import main

main()
