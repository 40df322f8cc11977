"""ACL: users and their permissions. Semantics [45] to [48]; the rules are in ``commands.acl``."""

from __future__ import annotations

from functools import partial

from commands.acl import rules
from commands.acl.check import denied
from commands.context import Context, Reply
from commands.declare import DECLARED, MOST_NAMES, arg, command, find, oneof, opt, token
from commands.glob import check_together
from commands.parse import integer
from commands.users.denials import DenialEntry
from commands.users.user import User
from resp import errors, reply
from resp.errors import CommandError

_own = partial(command, flags="noscript loading stale", group="server")
_all = partial(command, flags="admin noscript loading stale", group="server")

PATTERNS = (b"~", b"%", b"&")  # prefixes of rules with patterns
MOST_BITS = 4096  # maximum bits of a generated password


# -- the caller, and words -----------------------------------------------------------------------------------------
@_own("ACL|WHOAMI")
def acl_whoami(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the name of the caller's user."""
    return reply.bulk(ctx.session.user.name)


@_own("ACL|CAT", opt(arg("category")), complexity="O(N): N commands.")
def acl_cat(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the categories, or the commands in a category."""
    if len(argv) > 3:
        raise errors.bad_subcommand(argv)
    if len(argv) == 2:
        return reply.bulk_array([name.encode() for name in rules.CATEGORIES])
    category = argv[2].decode("latin-1").lower()
    if category not in rules.CATEGORIES:
        raise errors.quoting(errors.UNKNOWN_CATEGORY, argv[2])
    return reply.bulk_array([DECLARED[name].called.encode() for name in sorted(rules.members(category))])


@_own("ACL|GENPASS", opt(arg("bits", "integer")))
def acl_genpass(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a random password in hex, of 256 bits or the given number of bits."""
    if len(argv) > 3:
        raise errors.bad_subcommand(argv)
    bits = integer(argv[2]) if len(argv) == 3 else 256
    if not 1 <= bits <= MOST_BITS:
        raise CommandError(errors.BAD_GENPASS)
    digits = (bits + 3) // 4
    return reply.bulk(ctx.server.users.secret((digits + 1) // 2).hex()[:digits].encode())


# -- users -----------------------------------------------------------------------------------------------------------
@_all("ACL|USERS", complexity="O(N): N users.")
def acl_users(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the names of all users."""
    return reply.bulk_array([user.name for user in ctx.server.users.all()])


@_all("ACL|LIST", complexity="O(N): N users.")
def acl_list(ctx: Context, argv: list[bytes]) -> Reply:
    """Return all users with their rules, as lines of an ACL file."""
    return reply.bulk_array([_line(user) for user in ctx.server.users.all()])


def _line(user: User) -> bytes:
    return b" ".join([b"user", user.name, *rules.describe(user)])


@_all("ACL|GETUSER", arg("username"), complexity="O(N): N rules of the user.")
def acl_getuser(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the rules of a user, by kind."""
    proto, user = ctx.session.proto, ctx.server.users.get(argv[2])
    if user is None:
        return reply.null(proto)
    flags = [b"on" if user.enabled else b"off", *([b"nopass"] if user.nopass else [])]
    return reply.map_reply(proto, [
        (reply.bulk(b"flags"), reply.set_reply(proto, [reply.bulk(flag) for flag in flags])),
        (reply.bulk(b"passwords"), reply.bulk_array(user.passwords)),
        (reply.bulk(b"commands"), reply.bulk(b" ".join(rules.command_words(user)))),
        (reply.bulk(b"keys"), reply.bulk(b" ".join(rules.key_words(user)))),
        (reply.bulk(b"channels"), reply.bulk(b" ".join(rules.channel_words(user)))),
        (reply.bulk(b"selectors"), reply.EMPTY_ARRAY),
    ])  # fmt: skip


@_all(
    "ACL|SETUSER", arg("username"), opt(arg("rule", multiple=True)), complexity="O(N + M): N rules, M clients.",
    most=MOST_NAMES // 2,
)  # fmt: skip
def acl_setuser(ctx: Context, argv: list[bytes]) -> Reply:
    """Apply rules to a user and create the user if necessary; if one rule is invalid, none is applied."""
    check_together([word for word in argv[3:] if word[:1] in PATTERNS])
    ctx.server.users.change(ctx.session, argv[2], argv[3:])
    return reply.OK


@_all("ACL|DELUSER", arg("username", multiple=True), complexity="O(N + M): N users, M clients.", most=MOST_NAMES)
def acl_deluser(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove users and close their connections; return how many existed."""
    return reply.integer(ctx.server.users.delete(ctx.session, argv[2:]))


@_all(
    "ACL|DRYRUN", arg("username"), arg("command"), opt(arg("arg", multiple=True)),
    complexity="O(N): N arguments of the command.", most=MOST_NAMES,
)  # fmt: skip
def acl_dryrun(ctx: Context, argv: list[bytes]) -> Reply:
    """Return whether a user may make a call, without executing it."""
    user, called = ctx.server.users.get(argv[2]), argv[3:]
    if user is None:
        raise errors.quoting(errors.USER_NOT_FOUND, argv[2])
    found = find(called[:2])
    if found is None:
        raise errors.quoting(errors.COMMAND_NOT_FOUND, argv[3])
    if not found.takes(len(called)):
        raise errors.arity(found.called)
    denial = denied(user, found, called, ctx.ks)
    return reply.OK if denial is None else reply.bulk(denial.dryrun_reply())


# -- files -----------------------------------------------------------------------------------------------------------
@_all("ACL|LOAD", complexity="O(N + M): N users, M clients.")
def acl_load(ctx: Context, argv: list[bytes]) -> Reply:
    """Reload the users from the ACL file; if a line is invalid, nothing changes."""
    ctx.server.users.load(ctx.session)
    return reply.OK


@_all("ACL|SAVE", complexity="O(N): N users.")
def acl_save(ctx: Context, argv: list[bytes]) -> Reply:
    """Write the users to the ACL file."""
    ctx.server.users.save()
    return reply.OK


# -- denials -----------------------------------------------------------------------------------------------------
@_all("ACL|LOG", opt(oneof("operation", arg("count", "integer"), token("RESET"))), complexity="O(N): N entries.")
def acl_log(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the latest calls and logins that were denied, or remove them."""
    if len(argv) > 3:
        raise errors.bad_subcommand(argv)
    denials = ctx.server.users.denials
    count = 10
    if len(argv) == 3:
        if argv[2].upper() == b"RESET":
            denials.reset()
            return reply.OK
        count = max(0, integer(argv[2]))
    return reply.encode(ctx.session.proto, [_entry(each, ctx.now) for each in denials.entries()[:count]])


def _entry(entry: DenialEntry, now: int) -> dict[str, object]:
    return {
        "count": entry.count,
        "reason": entry.reason,
        "context": entry.context,
        "object": entry.what,
        "username": entry.user,
        "age-seconds": max(0, now - entry.updated) / 1000,
        "client-info": entry.client.encode("latin-1", "replace"),
        "entry-id": entry.number,
        "timestamp-created": entry.created,
        "timestamp-last-updated": entry.updated,
    }
