"""The configuration of a running server: CONFIG GET, SET and REWRITE.

Rule 1: CONFIG SET is all or nothing, including callbacks: if one of them fails, no value changes.
Rule 2: the part that uses a directive applies its changes, by a callback in ``on_change``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from commands.glob import Glob
from resp.errors import CommandError, show
from respserver.config.conffile import ConfigError
from respserver.config.directives import ALIASES, DIRECTIVES, Directive
from respserver.config.ignored import IGNORED, reason_ignored
from respserver.config.rewrite import rewrite
from respserver.config.values import Values
from respserver.config.valuetypes import Value

_WILD: Final = frozenset(b"*?[")


class Config(Values):
    """The configuration of one server. Implements ``ConfigPart``."""

    def __init__(self) -> None:
        super().__init__()
        # Called without arguments after CONFIG SET has changed the directive. Raises ValueError, OSError or ConfigError
        # to reject the change. In that case, it is called again with the old values restored.
        self.on_change: dict[str, Callable[[], None]] = {}

    # -- CONFIG GET and SET ----------------------------------------------------------------------------------
    def value(self, name: str) -> str:
        """Return the text for CONFIG GET. Raises KeyError for an unknown name."""
        name = ALIASES.get(name, name)
        directive = DIRECTIVES.get(name)
        if directive is not None:
            return directive.show(getattr(self, directive.attr))
        given = self.ignored.get(name)
        return IGNORED[name][0] if given is None else given

    def get(self, patterns: Iterable[bytes]) -> list[tuple[str, str]]:
        """CONFIG GET: return the names that match one of the glob patterns, in any case, with their texts; each name
        once. Raises CommandError for a pattern that is too long.

        Texts have surrogateescapes for bytes that are not UTF-8.
        """
        found: dict[str, str] = {}
        known = {name.encode("utf-8", "surrogateescape"): name for name in (*DIRECTIVES, *self._others())}
        for pattern in dict.fromkeys(map(bytes.lower, patterns)):
            if _WILD.isdisjoint(pattern):
                names = [known[pattern]] if pattern in known else []
            else:
                fits = Glob(pattern).matches
                names = [name for text, name in known.items() if fits(text)]
            for name in names:
                if name not in found and not (name in DIRECTIVES and DIRECTIVES[name].hidden):
                    found[name] = self.value(name)
        return list(found.items())

    def _others(self) -> dict[str, object]:
        return {**IGNORED, **self.ignored, **ALIASES}

    def set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        wanted = _wanted(pairs)
        before = {d.attr: getattr(self, d.attr) for _, d, _ in wanted if d is not None}
        ignored_before = dict(self.ignored)
        name = ""
        called: list[Callable[[], None]] = []
        try:
            for name, directive, text in wanted:
                self._set(name, directive, text)
            for given, directive, _ in wanted:
                name = given
                callback = None if directive is None else self.on_change.get(directive.name)
                if callback is not None and callback not in called:
                    called.append(callback)
                    callback()
        except (ValueError, OSError, ConfigError) as exc:
            for attr, value in before.items():
                setattr(self, attr, value)
            self.ignored = ignored_before
            self._call_again(called, name)
            raise _set_failed(name, str(exc)) from exc

    def _set(self, name: str, directive: Directive | None, text: str) -> None:
        """Set one directive (None: an ignored one). Raises ValueError."""
        if directive is None:
            self.ignored[name] = text
            self.warn(f"CONFIG SET {name}: ignored ({reason_ignored(name)})")
            return
        # save points are replaced; limits are changed only for the named classes
        before: Value = [] if directive.kind == "save" else getattr(self, directive.attr)
        self.take(directive, directive.parse(directive.split(text), before), by_client=True)

    def _call_again(self, called: list[Callable[[], None]], name: str) -> None:
        """Call callbacks again with the old values, after a failure. Further errors only cause warnings."""
        for callback in called:
            try:
                callback()
            except (ValueError, OSError, ConfigError) as again:
                self.warn(f"CONFIG SET {name}: the old settings could not be applied again: {again}")

    # -- CONFIG REWRITE --------------------------------------------------------------------------------------
    def rewrite(self) -> None:
        if self.file is None:
            raise CommandError("ERR The server is running without a config file")
        try:
            rewrite(self, self.file)
        except (OSError, ConfigError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc.text
            raise CommandError(f"ERR Rewriting config file: {reason}") from exc


def _wanted(pairs: Sequence[tuple[bytes, bytes]]) -> list[tuple[str, Directive | None, str]]:
    """Return name, directive (None: an ignored one), and value of each pair. Raises CommandError."""
    wanted: list[tuple[str, Directive | None, str]] = []
    seen: set[str] = set()
    for raw_name, raw_value in pairs:
        given = raw_name.decode("utf-8", "surrogateescape").lower()
        name = ALIASES.get(given, given)
        directive = DIRECTIVES.get(name)
        if (directive is None and reason_ignored(name) is None) or (directive is not None and directive.hidden):
            raise CommandError(f"ERR Unknown option or number of arguments for CONFIG SET - '{show(raw_name)}'")
        if directive is not None and not directive.mutable:
            raise _set_failed(given, "can't set immutable config")
        if name in seen:
            raise _set_failed(given, "duplicate parameter")
        seen.add(name)
        wanted.append((given, directive, raw_value.decode("utf-8", "surrogateescape")))
    return wanted


def _set_failed(name: str, why: str) -> CommandError:
    return CommandError(f"ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
