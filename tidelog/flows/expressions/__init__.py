"""The language of expressions: the grammar and the functions that JMESPath does not have.

    grammar       parses an expression
    nodes         compiles what the grammar adds to JMESPath
    calls         compiles the calls of functions
    packagecalls  compiles the calls of functions of the package ``jmespath``
    declare       ``@function``, the kinds of arguments, limits
    catalog       all functions by name
    ambient       the clock and the random numbers

    logic         ``coalesce``, ``try``
    numeric       numbers
    strings       strings
    patterns      regular expressions, evaluated by RE2
    grok          named patterns for the lines of logs
    grokpatterns  the library of these patterns
    times         times with zones
    parsing       JSON, CSV, logfmt, URLs
    objects       objects and lists
    encoding      hashes, UUIDs, base64

``operators.jmescompiler`` compiles whole expressions.
"""
