"""Directives, where their values come from, and how CONFIG SET changes them.

    conffile    the syntax of redis.conf
    config      CONFIG GET, SET and REWRITE over the values
    directives  every directive, declared once: name, type, default, explanation
    ignored     Redis's directives that have no effect here
    renames     commands under other names, or taken away
    rewrite     CONFIG REWRITE: the file brought up to date
    values      the values of all directives, and how a start gets them
"""
