"""YAML as plain values, with the line of each.

Rule 1: Only the types of JSON are used: mappings with text keys, lists, text, numbers, true, false, null. ``yes``,
        ``on`` and ``2026-05-01`` are text, as in YAML 1.2. Tags are rejected.
Rule 2: A duplicate key in a mapping is an error.
Rule 3: Each use of an alias counts, so a small file can't become a large value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from tidelog.flows.codecs import yamlscalars
from tidelog.options.structs import Problems

SIZE: Final = 1 << 20  # characters of a file
VALUES: Final = 100_000  # maximum number of values in a file, with aliases expanded
DEPTH: Final = 50  # maximum nesting of mappings and lists


class PathWithLine(str):
    """A path with its own line, for a part of the file that is not in the value, such as a duplicate key."""

    line = 0


@dataclass
class ParsedText:
    """The contents of a file. ``lines``: by path, such as ``flows.orders.connect[0]``, from 1."""

    value: Any
    lines: dict[str, int] = field(default_factory=dict)

    def line(self, path: str) -> int:
        """Return the line of a path, or of its nearest parent in the file."""
        if isinstance(path, PathWithLine):
            return path.line
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return 1


# libyaml's parser takes a tenth of the time of Python's. Both produce the same events; Python's locates errors better.
_Fast: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Exact: Final[Any] = yaml.SafeLoader
_SHORT: Final = 1 << 16  # maximum number of characters of a text that is parsed again to locate its error
_TEXT: Final = "tag:yaml.org,2002:str"


def read(text: str, problems: Problems) -> ParsedText:
    """Parse a file. Problems are added if it is invalid; their paths are those of ``ParsedText.lines``."""
    found = ParsedText({})
    if len(text) > SIZE:
        problems.add("", f"the file has {len(text):,} characters: the maximum is {SIZE:,}")
        return found
    try:
        node = _composed(text)
    except _TooMuchError as error:
        problems.add("", str(error))
        return found
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        found.lines["yaml"] = 1 if mark is None else mark.line + 1
        about = ", ".join(each for each in (error.context, error.problem) if each)
        problems.add("yaml", f"this is not valid YAML: {about or error}")
        return found
    except yaml.YAMLError as error:
        problems.add("yaml", f"this is not valid YAML: {error}".splitlines()[0])
        return found
    if node is None:
        found.value = None
    else:
        try:
            found.value = _Builder(found.lines, problems).value(node, "", 0)
        except _TooMuchError as error:
            problems.add("", str(error))
    return found


class _TooMuchError(Exception):
    """The file exceeds a limit."""


def _composed(text: str) -> yaml.Node | None:
    """Return the node of the only document, or None. Raises yaml.YAMLError."""
    try:
        return _parsed(_Fast(text))
    except yaml.YAMLError:
        if len(text) > _SHORT:
            raise
    return _parsed(_Exact(text))


def _parsed(parser: Any) -> yaml.Node | None:
    """Parse without recursion, because the nesting of a text is only limited by its length."""
    try:
        parser.get_event()  # start of the stream
        if isinstance(parser.peek_event(), yaml.StreamEndEvent):
            return None
        parser.get_event()  # start of the document
        node = _document(parser)
        parser.get_event()
        following = parser.peek_event()
        if not isinstance(following, yaml.StreamEndEvent):
            about = "expected a single document in the stream"
            raise yaml.composer.ComposerError(
                about, node.start_mark, "but found another document", following.start_mark
            )
        return node
    finally:
        parser.dispose()


def _document(parser: Any) -> yaml.Node:
    anchors: dict[str, yaml.Node] = {}
    root: list[yaml.Node] = []
    around: list[yaml.Node] = []  # open collections
    keys: list[yaml.Node | None] = []  # for each of them: the key that waits for its value
    count = 0
    while not root or around:
        event = parser.get_event()
        if isinstance(event, yaml.CollectionEndEvent):
            around.pop()
            keys.pop()
            continue
        count += 1
        if count > VALUES:
            raise _TooMuchError(f"the file has more than {VALUES:,} values")
        node = _node(event, anchors)
        if not around:
            root.append(node)
        elif isinstance(around[-1], yaml.SequenceNode):
            around[-1].value.append(node)
        elif keys[-1] is None:
            keys[-1] = node
        else:
            around[-1].value.append((keys[-1], node))
            keys[-1] = None
        if isinstance(event, yaml.CollectionStartEvent):
            around.append(node)
            keys.append(None)
            if len(around) > DEPTH + 1:
                raise _TooMuchError(f"this is not a valid flow file: {_too_deep(node)}")
    return root[0]


def _node(event: Any, anchors: dict[str, yaml.Node]) -> yaml.Node:
    kind, mark, end = type(event), event.start_mark, event.end_mark
    if kind is yaml.AliasEvent:
        if event.anchor not in anchors:
            raise yaml.composer.ComposerError(None, None, f"found undefined alias {event.anchor!r}", mark)
        return anchors[event.anchor]
    node: yaml.Node
    if kind is yaml.ScalarEvent:
        style = event.style or None  # libyaml returns "" for plain text
        node = yaml.ScalarNode(event.tag or _TEXT, event.value, mark, end, style=style)
    elif kind is yaml.SequenceStartEvent:
        node = yaml.SequenceNode(event.tag, [], mark, end)
    else:
        node = yaml.MappingNode(event.tag, [], mark, end)
    if event.anchor is not None:
        if (first := anchors.get(event.anchor)) is not None:
            raise yaml.composer.ComposerError(
                f"found duplicate anchor {event.anchor!r}; first occurrence", first.start_mark,
                "second occurrence", mark,
            )  # fmt: skip
        anchors[event.anchor] = node
    return node


def _too_deep(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}: more than {DEPTH} nested mappings and lists"


class _Builder:
    def __init__(self, lines: dict[str, int], problems: Problems) -> None:
        self._lines = lines
        self._problems = problems
        self._count = 0

    def value(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._count += 1
        if self._count > VALUES:
            raise _TooMuchError(f"the file has more than {VALUES:,} values with aliases expanded")
        if depth > DEPTH:
            raise _TooMuchError(_too_deep(node))
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, f"{path}[{number}]", depth + 1) for number, each in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            line = key_node.start_mark.line + 1
            if name is None:
                self._problem(path, line, "a key must be text")
                continue
            if name == "<<" and key_node.style is None:
                given = self.value(value_node, f"{path}.<<" if path else "<<", depth + 1)
                for each in given if isinstance(given, list) else [given]:
                    if isinstance(each, dict):
                        for one, its in each.items():
                            merged.setdefault(one, its)
                    else:
                        self._problem(path, line, "<< requires a mapping, or a list of mappings")
                continue
            inner = f"{path}.{name}" if path else name
            if name in made:
                self._problem(inner, line, f"the key {name!r} is a duplicate of the one in line {self._lines[inner]}")
                continue
            self._lines[inner] = line
            made[name] = self.value(value_node, inner, depth + 1)
        return {**merged, **made}

    def _problem(self, path: str, line: int, what: str) -> None:
        at = PathWithLine(path)
        at.line = line
        self._problems.add(at, what)

    def _scalar(self, node: Any, path: str) -> Any:
        text: str = node.value
        if node.tag not in (_TEXT, "!"):
            self._problems.add(path, f"the tag {node.tag!r} is not supported")
        if node.style is not None:
            return text
        if text in yamlscalars.WORDS:
            return yamlscalars.WORDS[text]
        if len(text) <= 40:
            if yamlscalars.INT.fullmatch(text):
                return yamlscalars.integer(text)
            if yamlscalars.FLOAT.fullmatch(text):
                return float(text)
        return text
