"""The commands: a declaration and a handler for each.

Handlers do no I/O, read no clock, and never wait. The modules here are for all commands; the handlers are in
``streams``, ``redis_streams``, ``keys`` and ``admin``; who may call them is in ``acl``. To add a command, declare it
above its handler in the file of its subject. Name a new file in ``registry``.

    context    arguments and results of handlers, and the parts of the server that they can use
    declare    declares commands and finds them; derives arity, key positions, ACL categories and documentation
    grammar    the arguments of a command as a tree
    help       replies of HELP subcommands
    parse      numbers and IDs in arguments
    parts      long commands, whose arguments are handled some at a time; long arrays as replies
    registry   imports all modules with commands, which fills the table
    session    the state of one client
    summaries  the first docstring lines of handlers, also of compiled ones
"""
