"""CONFIG REWRITE: bring a configuration file up to date without disturbing it.

1. A line whose directive still has the value that it gives stays as it is, comments and order included.
2. Other lines of a directive are replaced in the place of the first of them.
3. The result is loaded as the next start would load it (files it includes, too); what would still come out different
   is appended under Redis's mark. So the file always says what the server does, however it got there.
4. The file is replaced in one step: after a crash it is the old one or the new one.
"""

from __future__ import annotations

import os

from respserver.config import conffile
from respserver.config.conffile import ConfigError
from respserver.config.config import REWRITE_MARK, Config
from respserver.config.directives import ALIASES, DIRECTIVES, Directive, Value


def rewrite(config: Config, path: str) -> None:
    """Write ``config`` into the file at ``path``. Raises OSError, or ConfigError if the file can't be read any more."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        text = file.read()
    _replace(path, compose(config, text, path))


def compose(config: Config, text: str, path: str) -> str:
    """The new text of the file whose text is ``text``."""
    places, given = _read(text)
    lines = text.split("\n")
    gone: set[int] = set()
    for directive, numbers in places.items():
        value: Value = getattr(config, directive.attr)
        if directive.fixed or given[directive] == value:
            continue
        if directive.kind == "leader" and not value:  # it leads: as Redis, say nothing of replication
            gone.update(numbers)
            continue
        lines[numbers[0]] = "\n".join(directive.lines(value))
        gone.update(numbers[1:])
    out = "\n".join(line for i, line in enumerate(lines) if i not in gone)
    late = _still_different(config, out, path)
    if late:
        if REWRITE_MARK not in out:
            out = out.rstrip("\n") + f"\n\n{REWRITE_MARK}\n"
        elif not out.endswith("\n"):
            out += "\n"
        out += "\n".join(late) + "\n"
    return out


def _read(text: str) -> tuple[dict[Directive, list[int]], dict[Directive, Value]]:
    """Where each directive stands in the text itself (line indexes; includes apart), and what those lines give."""
    defaults = Config()
    places: dict[Directive, list[int]] = {}
    given: dict[Directive, Value] = {}
    for i, raw in enumerate(text.split("\n")):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            name, *words = conffile.split_words(stripped)
            directive = DIRECTIVES[ALIASES.get(name.lower(), name.lower())]
            start: Value = [] if directive.kind == "save" else getattr(defaults, directive.attr)
            value = directive.parse(words, given.get(directive, start))
        except (ValueError, KeyError):
            continue  # not ours to change; a broken line shows when the result is loaded
        if directive.name == "dir" and isinstance(value, str):
            value = os.path.abspath(value)
        places.setdefault(directive, []).append(i)
        given[directive] = value
    return places, given


def _still_different(config: Config, text: str, path: str) -> list[str]:
    """Lines to append so that loading ``text`` gives ``config``."""
    reread = Config()
    reread.apply(conffile.read_text(text, path))
    late: list[str] = []
    for directive in DIRECTIVES.values():
        value: Value = getattr(config, directive.attr)
        if value == getattr(reread, directive.attr) or directive.fixed:
            continue
        if directive.kind == "save":
            late.append('save ""')  # save points of an included file would add up
        late += [line for line in directive.lines(value) if line not in late]
    return late


def _replace(path: str, text: str) -> None:
    real = os.path.realpath(path)  # a link stays a link
    temporary = f"{real}.{os.getpid()}.tmp"
    mode = os.stat(real).st_mode & 0o7777
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, real)
        directory = os.open(os.path.dirname(real), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


__all__ = ["ConfigError", "compose", "rewrite"]
