"""Connectors: a module for each, by the type's name, and

    base         ``Source``, ``Sink``
    context      what they may use of the runtime
    options      options that all have
    wire         those that carry bytes: preprocessors, codec, postprocessors
    python       functions and classes of a program
"""
