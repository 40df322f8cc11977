"""Entries that are kept aside and published together, once.

    stages   entries that are kept aside until they are published, and fences
    publish  the mutators of stages: stage, publish, drop
"""
