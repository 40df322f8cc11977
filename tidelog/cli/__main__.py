"""``python -m tidelog.cli`` is the ``tidelog`` program, where no script is installed."""

from tidelog.cli.program import main

main()
