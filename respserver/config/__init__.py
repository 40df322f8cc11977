"""Directives, where their values come from, and how CONFIG SET changes them.

    conffile    the syntax of redis.conf
    config      values: where they came from, how they change
    directives  every directive, declared once: name, type, default, explanation
    ignored     Redis's directives that tidelog has no use for
    renames     commands under other names, or taken away
    rewrite     CONFIG REWRITE
"""
