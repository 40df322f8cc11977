"""Options: one way to declare, check and document them, for all engines.

    units    ``Duration`` and ``Size``: ``5s``, ``64KB``
    limits   numbers with limits: ``AtLeastOne``, ``Port``, ``Probability``
    start    ``StartPosition``: the option ``start``
    retry    ``RetryOptions``: the options ``attempts``, ``first``, ``most``, ``growth`` and ``jitter``
    onerror  ``ErrorPolicy``: the option ``on_error``
    structs  options as structures of msgspec: all errors are reported together, each with its path
    schemas  JSON schemas of structures, for OpenAPI

A range or a pattern of an option is part of its type, so documentation can be generated from the type::

    class MyOptions(Struct):
        start: StartPosition = EARLIEST
        retry: RetryOptions = msgspec.field(default_factory=RetryOptions)
        concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
        name: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
        timeout: Duration = Duration(5.0)

``structs.read`` converts a mapping, such as a part of a YAML file, to the structure. Python code constructs
``StartPosition`` and ``Backoff`` directly.
"""
