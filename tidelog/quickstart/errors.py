"""``QuickstartError``: why quickstart cannot start or continue. Its text has the remedy."""


class QuickstartError(Exception):
    """Quickstart cannot start or continue."""
