"""Flow files: YAML, with the line of everything that is wrong."""
