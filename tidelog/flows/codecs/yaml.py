"""``yaml``: one document is one message, by PyYAML's safe loader.

Aliases are refused: a few lines of them stand for gigabytes once a value is copied or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import yaml

from tidelog.flows.codecs.base import DEPTH, NoOptions, check_depth
from tidelog.flows.errors import RejectError

NUMBER: Final = 1000  # characters of a number


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases (*name) are not taken")
        self._depth += 1
        if self._depth > DEPTH + 1:
            raise ValueError(f"nested more than {DEPTH} deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


    def number(self, node: yaml.ScalarNode) -> Any:
        """Base 60 and the like take time that grows with the square of their length."""
        if len(node.value) > NUMBER:
            raise ValueError(f"a number of {len(node.value)} characters: at most {NUMBER} are taken")
        if node.tag.endswith(":int"):
            return self.construct_yaml_int(node)
        return self.construct_yaml_float(node)


def _check_text(value: Any) -> None:
    """ValueError: there is text that is no Unicode, which nothing can write: half a surrogate pair, by its escape."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            one.encode()
        elif isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, (list, tuple, set)):
            left += one


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.number)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


class Yaml:
    """Times and dates are Python's."""

    Options = NoOptions
    delimited: ClassVar[bool] = True

    def __init__(self, options: NoOptions | None = None) -> None:
        pass

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002 - a codec's signature
        try:
            value = yaml.load(str(data, "utf-8"), _Loader)  # it derives from the safe one
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None
        except (RecursionError, TypeError, OverflowError, AttributeError) as error:
            raise ValueError(f"not readable as YAML: {error}") from None
        check_depth(value)
        if b"\\u" in data or b"\\U" in data:
            _check_text(value)
        return value

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        try:
            made: bytes = yaml.dump(
                value, Dumper=_Dumper, encoding="utf-8", allow_unicode=True, sort_keys=False, explicit_start=False
            )
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise RejectError(f"not writable as YAML: {error}") from error
        return made
