"""The commands: a declaration and a handler for each.

Handlers do no I/O, read no clock, and never wait. The modules here serve all commands. The handlers are in ``streams``,
``redis_streams``, ``keys`` and ``admin``. ``users`` and ``acl`` decide who may call them. To add a command, declare it
above its handler in the file of its subject, and name a new file in ``registry``.

    context      arguments and results of handlers
    declare      declares commands and finds them; derives arity, key positions, ACL categories and documentation
    glob         glob patterns
    grammar      the arguments of a command as a tree
    help         the HELP subcommands
    parse        numbers and IDs in arguments
    refusals     subcommands of Redis that are refused with a remedy
    registry     imports all modules with commands, which fills the table
    serverparts  the parts of the running server that handlers can use
    session      the state of one client
    slicing      long commands, whose arguments are processed in slices; long arrays as replies
    slots        the hash slots of keys, and the servers that share them
    summaries    the first docstring lines of handlers, also of compiled ones
    tips         command tips for cluster clients
"""
