"""The module in which tasks find the jobs of tests: ``taskkit.Bench`` puts them here."""
