"""``python -m _tidelog_server`` runs ``tidelog-server`` if no script is installed."""

import sys

from _tidelog_server import main

sys.exit(main())
