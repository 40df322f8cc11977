"""``module:name``: something that a module of the user's declares."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Generic, TypeVar

import click

from tidelog.codecs import CodecError
from tidelog.topics import TopicError
from tidelog.workers.declare.errors import AppError

T = TypeVar("T")


def look_here() -> None:
    """Modules are found in the current folder, too, before those that are installed."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


class Declaration(click.ParamType[T], Generic[T]):
    """``module:name`` of a ``kind``, such as a Topic. The module is imported; the current folder is looked in first."""

    def __init__(self, kind: type[Any], example: str) -> None:
        self.kind = kind
        self.example = example
        self.name = f"module:{kind.__name__.lower()}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        found: Any = value
        if isinstance(found, self.kind):
            return found  # type: ignore[no-any-return]  # T is the kind
        module_name, colon, path = str(value).partition(":")
        if not colon or not module_name or not path:
            self.fail(f"{value!r} is not {self.name}, such as {self.example}", param, ctx)
        look_here()
        try:
            found = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # it exists, and imports something that doesn't
            self.fail(f"there is no module {error.name!r} here or where Python is installed", param, ctx)
        except (AppError, CodecError, TopicError) as error:
            raise click.ClickException(f"{module_name}: {error}") from None
        for part in path.split("."):
            if not hasattr(found, part):
                self.fail(f"{module_name} has no {path!r}", param, ctx)
            found = getattr(found, part)
        if not isinstance(found, self.kind):
            article = "an" if self.kind.__name__[0] in "AEIOU" else "a"
            self.fail(f"{value} is {type(found).__name__}, not {article} {self.kind.__name__}", param, ctx)
        return found  # type: ignore[no-any-return]
