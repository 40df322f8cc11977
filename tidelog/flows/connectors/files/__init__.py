"""Files and the standard streams of the process.

    file       the connector ``file``: reads a file once or follows it; writes and rotates a file
    options    the options of ``file``
    watching   reads the files that a pattern matches
    watchedfile    one of these files
    searching  finds these files
    manypositions  stores their positions
    tailing    follows one file, and finds the file after a rotation
    appending  appends to a file, and rotates it
    writing    the files of a sink: one, or those that a template names
    stdio      the connector ``stdio``: standard input, output and error
"""
