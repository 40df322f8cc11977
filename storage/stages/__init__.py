"""Entries that are kept aside and published together, once.

    publish  the mutators of stages: stage, publish, drop
    stages   entries that are kept aside until they are published, and fences
"""
