"""The words of ACL SETUSER, against a model, and back from a user to words. ``tests/wire`` compares with Redis."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.acl.rules import CATEGORIES, RuleError, build_user, describe
from commands.declare import DECLARED
from commands.registry import all_commands
from commands.users.user import User, hashed, matches_any

NAMES = sorted(DECLARED)
SUBCOMMANDS = {name: {sub for sub in NAMES if sub.startswith(name + "|")} for name in NAMES}


def allowed(words: list[str]) -> set[str]:
    """The model: each word adds or takes away commands by itself."""
    found: set[str] = set()
    for word in words:
        name = word[1:]
        if name == "@all":
            these = set(NAMES)
        elif name.startswith("@"):
            these = {each.name for each in all_commands() if name[1:] in each.acl_categories}
        else:
            these = {name} | SUBCOMMANDS[name]
        found = found | these if word[0] == "+" else found - these
    return found


RULE = st.builds(
    str.__add__, st.sampled_from("+-"), st.sampled_from(["@all", *["@" + each for each in CATEGORIES], *NAMES])
)


@settings(deadline=None)
@given(st.lists(RULE, max_size=12))
def test_commands_as_in_the_model(words: list[str]) -> None:
    user = build_user(b"al", [word.encode() for word in words])
    assert user.commands == allowed(words)
    assert user.all_commands == (user.commands == set(NAMES))
    again = build_user(b"al", describe(user))
    assert again.commands == user.commands
    assert describe(again) == describe(user)


OTHERS = st.one_of(
    st.sampled_from([b"on", b"off", b"nopass", b"resetpass", b"resetkeys", b"resetchannels", b"allkeys", b"&*"]),
    st.builds(bytes.__add__, st.sampled_from([b">", b"<", b"~", b"%R~", b"%W~", b"%RW~", b"&"]), st.binary(max_size=3)),
    RULE.map(str.encode),
)


@settings(deadline=None)
@given(st.lists(OTHERS, max_size=20))
def test_a_described_user_is_the_same(words: list[bytes]) -> None:
    user = User(b"al")
    for word in words:
        with contextlib.suppress(RuleError):
            user = build_user(b"al", [word], user)
    again = build_user(b"al", describe(user))
    assert describe(again) == describe(user)
    for key in (b"", b"a", b"b", b"ab", b"\xff"):
        for reads, writes in ((False, False), (True, False), (False, True), (True, True)):
            assert again.may_touch(key, reads, writes) == user.may_touch(key, reads, writes)
        for pattern in (False, True):
            assert again.may_subscribe(key, pattern) == user.may_subscribe(key, pattern)
    assert [again.enabled, again.nopass, again.passwords] == [user.enabled, user.nopass, user.passwords]
    assert again.unrestricted == user.unrestricted


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        ("+get +set +get", "-@all +set +get"),
        ("+get -get", "-@all -get"),
        ("+config|get +config", "-@all +config"),
        ("+config -config|set", "-@all +config -config|set"),
        ("+@all -@admin +config|get", "+@all -@admin +config|get"),
        ("+@read -@read", "-@all -@read"),
        ("+GET +@READ", "-@all +get +@read"),
        ("+@all -get +@all", "+@all"),
        ("+client|id +client|info -client", "-@all -client"),
    ],
)
def test_rules_that_are_kept(words: str, rules: str) -> None:
    """As in Redis since 7.2."""
    user = build_user(b"al", words.encode().split())
    assert b" ".join(describe(user)) == b"off resetchannels " + rules.encode()


def test_nothing_is_changed_in_the_user_that_a_new_one_is_based_on() -> None:
    base = build_user(b"al", [b"on", b">x", b"~a", b"&c", b"+get"])
    before = describe(base)
    build_user(b"al", [b">y", b"<x", b"%W~a", b"~b", b"&d", b"+set", b"-get", b"off"], base)
    assert describe(base) == before


def test_passwords() -> None:
    user = build_user(b"al", [b"on", b">one", b">two"])
    assert [user.accepts(word) for word in (b"one", b"two", b"three", b"")] == [True, True, False, False]
    assert list(user.passwords) == [hashed(b"one"), hashed(b"two")]
    assert not build_user(b"al", [b"off"], user).accepts(b"one")
    assert build_user(b"al", [b"nopass"], user).accepts(b"anything")
    assert not build_user(b"al", [b"on"]).accepts(b"")
    assert not matches_any(b"", [])


@pytest.mark.parametrize("name", [b"a b", b"a\0", b"\n"])
def test_names_that_no_user_can_have(name: bytes) -> None:
    with pytest.raises(RuleError, match="Usernames can't contain spaces or null characters"):
        build_user(name)
