"""``module:name``: the argument type for an object in one of the user's modules."""

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


def import_from_here() -> None:
    """Search the current directory for modules first."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


class Declaration(click.ParamType[T], Generic[T]):
    """Imports ``module:name`` and checks its type ``kind``, such as Topic. The current directory is searched first."""

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
        import_from_here()
        try:
            found = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its imports does not
            self.fail(f"there is no module {error.name!r} in the current directory or installed", param, ctx)
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


def _names(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    if value is None:
        return None
    found = [name.strip() for name in value.split(",") if name.strip()]
    if not found:
        raise click.BadParameter(f"{value!r} names no processor; without this option, all processors run")
    return found


processors_option = click.option(
    "--processors", metavar="NAME,NAME", callback=_names, help="Only these processors. Default: all."
)
