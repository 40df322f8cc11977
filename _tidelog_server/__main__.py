"""``python -m _tidelog_server`` is ``tidelog-server``, where no script is installed."""

import sys

from _tidelog_server import main

sys.exit(main())
