"""What each command means: one declaration each; everything that is published about it derives from that.

No handler does I/O, reads a clock or waits. This folder is the machinery; the commands stand in ``streams``, ``keys``
and ``admin``. To add one: declare it above its handler in the file of its subject; a new file is named in ``registry``.

    context    what a handler is given and may return, and what it may ask of the server's parts
    declare    declaring commands, and finding them; arity, key positions, ACL categories and documentation follow
    grammar    the language in which a command's arguments are declared, and what can be read from it
    help       what HELP subcommands answer
    parse      numbers in arguments, as strictly as Redis reads them
    registry   imports every module of commands, which fills the table
    session    what is remembered of one client
    summaries  a handler's first docstring line, also where it is compiled and has none
"""
