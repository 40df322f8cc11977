"""Components that are declared by name, or as {name: {options}}: codecs, preprocessors, postprocessors."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from tidelog.options.structs import Problems, Struct, nearest, read

Named: TypeAlias = "str | Mapping[str, Any]"


def find(what: str, known: Mapping[str, str], given: Named) -> tuple[Any, Struct]:
    """Return the class and the options of a component. ``known`` maps names to "module:class", each with ``Options``.

    Raises ValueError with all errors.
    """
    options: Any = {}
    if isinstance(given, str):
        name = given
    elif isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
        options = {} if options is None else options
    else:
        raise ValueError(f"{given!r} is not a {what}: use a name, or {{name: {{options}}}}")
    where = known.get(name) if isinstance(name, str) else None
    if where is None:
        raise ValueError(f"there is no {what} {name!r}; {nearest(str(name), known)}")
    if not isinstance(options, Mapping):
        raise ValueError(f"the {what} {name!r} takes options by name, such as {{{name}: {{...}}}}, and not {options!r}")
    module, _, attribute = where.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tidelog"):
            raise
        way = "pip install 'tidelog[flows-all]'"
        raise ValueError(f"the {what} {name!r} needs the package {error.name!r}: {way}") from error
    problems = Problems()
    made = read(kind.Options, options, name, problems)
    if made is None:
        raise ValueError("; ".join(f"{path}: {text}" for path, text in problems.found))
    return kind, made
