"""``yaml``: one document is one message. Uses PyYAML's safe loader with the core schema of YAML 1.2.

Aliases are rejected, because a few lines of them can expand to gigabytes when a value is copied or encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs import yamlscalars
from tidelog.flows.codecs.base import DEPTH, StatelessCodec, check_depth

NUMBER: Final = 1000  # maximum number of characters of a number
_ESCAPED: Final = re.compile("[\x85\u2028\u2029\ufeff]")  # line breaks of YAML 1.1, which are read as spaces


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML declares it so

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases (*name) are not accepted")
        self._depth += 1
        if self._depth > DEPTH + 1:
            raise ValueError(f"nested more than {DEPTH} deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def number(self, node: yaml.ScalarNode) -> Any:
        """Parse a number of limited length, because Python's time to parse an integer is quadratic."""
        text = node.value
        if len(text) > NUMBER:
            raise ValueError(f"a number of {len(text)} characters: at most {NUMBER} are accepted")
        if node.tag.endswith(":int"):
            return yamlscalars.integer(text)
        return float(text.replace(".", "", 1) if yamlscalars.SPECIAL.fullmatch(text) else text)


def _check_text(value: Any) -> None:
    """Raise ValueError if text has an escaped half of a surrogate pair, which can't be encoded."""
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
    """Quotes text that YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if _ESCAPED.search(data) else None)


_Dumper.add_representer(str, _Dumper.text)
for _kind, _pattern, _first in (
    ("null", re.compile("|".join(map(re.escape, yamlscalars.NULLS))), ["~", "n", "N", ""]),
    ("bool", re.compile("|".join(yamlscalars.BOOLEANS)), list("tTfF")),
    ("int", yamlscalars.INT, list("-+0123456789")),
    ("float", yamlscalars.FLOAT, list("-+.0123456789")),
    ("float", yamlscalars.SPECIAL, list("-+.")),
):
    for _class in (_Loader, _Dumper):
        # PyYAML does not match the whole text
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern.pattern})$"), _first)


class YamlCodec(StatelessCodec):
    """Decodes and encodes one document per message. Times and dates are encoded as in Python, and decoded as text."""

    delimited = True

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002 - a codec's signature
        try:
            value = yaml.load(str(data, "utf-8"), _Loader)  # derives from the safe loader
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None
        except (RecursionError, TypeError, OverflowError, AttributeError) as error:
            raise ValueError(f"not YAML: {error}") from None
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
            raise RejectError(f"not encodable as YAML: {error}") from error
        return made
