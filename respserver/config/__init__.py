"""Directives: their declarations, the sources of their values, and CONFIG.

    aclfile     users in files: the ACL file, and users in the configuration file
    conffile    the syntax of redis.conf
    config      CONFIG GET, SET and REWRITE over the values
    directives  declares every directive: name, type, default, explanation
    ignored     Redis's directives that have no effect here
    renames     rename-command
    rewrite     CONFIG REWRITE
    values      the values of all directives, loaded from files, standard input and flags
    valuetypes  parses values of several words, and hosts
"""
