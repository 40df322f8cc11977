"""EVAL, EVALSHA, SCRIPT for three known scripts, those of the Lock of redis-py. There is no Lua.

Programs use that class, sync or async, to acquire locks. Its scripts are recognized by the SHA1 of their texts, whether
they were loaded or not, and run as the functions here. All other scripts are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final

from commands.context import Context, Reply
from commands.declare import MOST_NAMES, arg, command, key, opt
from commands.keys.setoptions import delete, set_expiry
from commands.parse import INT_MAX, INT_MIN, integer, invalid_expire
from resp import reply
from resp.errors import CommandError

_NOSCRIPT: Final = "NOSCRIPT No matching script. Please use EVAL."
_TOO_MANY_KEYS: Final = "ERR Number of keys can't be greater than number of args"
_NEGATIVE_KEYS: Final = "ERR Number of keys can't be negative"
_SHA1_DIGITS: Final = 40
_NO_LUA: Final = (
    "ERR this server runs no Lua: it knows the scripts of redis-py's Lock, and no others. Conditions on strings: SET "
    "and DELEX with IFEQ; several commands in one step: MULTI, with WATCH"
)


def _held(ctx: Context, name: bytes, token: bytes) -> bool:
    """Return whether the lock exists and its owner has this token. Raises CommandError."""
    return ctx.ks.read_string(name, ctx.now) == token


def _expire(ctx: Context, name: bytes, ms: int) -> None:
    """Execute PEXPIRE. Raises CommandError."""
    if not INT_MIN <= ms <= INT_MAX - ctx.now:
        raise invalid_expire("pexpire")
    set_expiry(ctx, name, ctx.now + ms)


def _release(ctx: Context, name: bytes, args: list[bytes]) -> int:
    """Release the lock. ARGV: token."""
    if not _held(ctx, name, args[0]):
        return 0
    delete(ctx, name)
    return 1


def _extend(ctx: Context, name: bytes, args: list[bytes]) -> int:
    """Extend the lock. ARGV: token, ms, and "0" if the ms are added to the remaining time."""
    if not _held(ctx, name, args[0]):
        return 0
    expire_at = ctx.ks.expire_at(name)
    if not expire_at:
        return 0
    ms = integer(args[1])
    _expire(ctx, name, ms + expire_at - ctx.now if args[2] == b"0" else ms)
    return 1


def _reacquire(ctx: Context, name: bytes, args: list[bytes]) -> int:
    """Renew the lock. ARGV: token, ms for which the lock is valid from now on."""
    if not _held(ctx, name, args[0]):
        return 0
    _expire(ctx, name, integer(args[1]))
    return 1


Script = Callable[[Context, bytes, list[bytes]], int]

# SHA1 of a script's text -> the equivalent function, and the number of its arguments. Each script has one key.
_SCRIPTS: Final[dict[bytes, tuple[Script, int]]] = {
    b"c3f8721cbb97f72bc19e972846bd7aaf91901658": (_release, 1),
    b"a4e8783852e6b949f9ef3a97212805108459a890": (_extend, 3),
    b"1cac51482acf5858da00f6d685d68f886cd6b6b2": (_reacquire, 2),
}


def _sha1(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _run(ctx: Context, argv: list[bytes], sha1: bytes, unknown: str) -> bytes:
    """Run a script and return its reply. ``unknown``: the error for other scripts. Raises CommandError."""
    if len(sha1) != _SHA1_DIGITS:
        raise CommandError(unknown)
    count = integer(argv[2])
    if count > len(argv) - 3:
        raise CommandError(_TOO_MANY_KEYS)
    if count < 0:
        raise CommandError(_NEGATIVE_KEYS)
    found = _SCRIPTS.get(sha1)
    if found is None:
        raise CommandError(unknown)
    script, most = found
    if count != 1 or len(argv) != 4 + most:
        raise CommandError(f"ERR this script takes 1 key and {most} arguments, not {count} and {len(argv) - 3 - count}")
    return reply.integer(script(ctx, argv[3], argv[4:]))


def _known_text(argv: list[bytes]) -> bool:
    return _sha1(argv[1]) in _SCRIPTS


def _known_sha1(argv: list[bytes]) -> bool:
    return argv[1].lower() in _SCRIPTS


_eval = partial(command, group="scripting", flags="noscript stale skip_monitor no_mandatory_keys", traits="may_write")


@_eval(
    "EVAL", arg("script"), arg("numkeys", "integer"), opt(key("RW ACCESS UPDATE", multiple=True)),
    opt(arg("arg", multiple=True)), writes=_known_text,
)  # fmt: skip
def eval_(ctx: Context, argv: list[bytes]) -> Reply:
    """Run a script of redis-py's Lock; others are refused."""
    return _run(ctx, argv, _sha1(argv[1]), _NO_LUA)


@_eval(
    "EVALSHA", arg("sha1"), arg("numkeys", "integer"), opt(key("RW ACCESS UPDATE", multiple=True)),
    opt(arg("arg", multiple=True)), writes=_known_sha1,
)  # fmt: skip
def evalsha(ctx: Context, argv: list[bytes]) -> Reply:
    """Run a script of redis-py's Lock by its SHA1; others are refused."""
    return _run(ctx, argv, argv[1].lower(), _NOSCRIPT)


@command("SCRIPT|LOAD", arg("script"), group="scripting", flags="noscript stale", complexity="O(N): N bytes.")
def script_load(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the SHA1 of a script of redis-py's Lock; others are refused."""
    sha1 = _sha1(argv[2])
    if sha1 not in _SCRIPTS:
        raise CommandError(_NO_LUA)
    return reply.bulk(sha1)


@command(
    "SCRIPT|EXISTS", arg("sha1", multiple=True), group="scripting", flags="noscript", complexity="O(N): N names.",
    most=MOST_NAMES,
)  # fmt: skip
def script_exists(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 or 0 for each SHA1, depending on whether the script is known."""
    return reply.array([reply.integer(int(sha1.lower() in _SCRIPTS)) for sha1 in argv[2:]])
