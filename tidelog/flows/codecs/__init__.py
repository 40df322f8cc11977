"""Codecs: a module for each; ``base`` finds them by name."""
