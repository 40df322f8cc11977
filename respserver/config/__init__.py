"""Directives: their declarations, where their values come from, and CONFIG.

    aclfile     users in files: the ACL file, and those that the configuration gives
    conffile    the syntax of redis.conf
    config      CONFIG GET, SET and REWRITE over the values
    directives  declares every directive: name, type, default, explanation
    ignored     Redis's directives that have no effect here
    kinds       values of several words, hosts: how they are parsed
    renames     rename-command
    rewrite     CONFIG REWRITE
    values      the values of all directives, loaded from files, standard input and flags
"""
