"""The patterns of a user are found by dicts, with the result of a comparison with each of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.acl.rules import MOST_OF_A_KIND, RuleError, build_user
from commands.users.patterns import FEW, Matcher, Pattern

TEXTS = st.text("ab*?[]\\", max_size=5).map(str.encode)


@given(st.lists(TEXTS, max_size=3 * FEW, unique=True), st.lists(st.text("ab*", max_size=6).map(str.encode)))
def test_as_if_each_pattern_was_compared(texts: list[bytes], names: list[bytes]) -> None:
    patterns = [Pattern(text) for text in texts]
    matcher = Matcher(patterns)
    for name in names:
        assert set(matcher.matching(name)) == {each for each in patterns if each.glob.matches(name)}


def test_what_is_found_without_a_comparison() -> None:
    patterns = [Pattern(b"k%d:*" % n) for n in range(50)] + [Pattern(b"key%d" % n) for n in range(50)]
    others = [Pattern(text) for text in (b"a*b", b"?", b"[xy]*")]
    more = [Pattern(text) for text in (b"*", b"[x]*", b"a\\*")]
    matcher = Matcher([*patterns, *others, *more])
    assert matcher._others == others
    assert [each.glob.pattern for each in matcher.matching(b"k49:x")] == [b"*", b"k49:*"]


def test_several_forms_of_one_pattern_all_count() -> None:
    """As a rule for reading and another one for writing."""
    user = build_user(b"al", [b"on", b"%R~a*", b"%W~a**", b"%R~b", b"%W~\\b", *[b"~k%d" % n for n in range(FEW)]])
    for name in (b"a1", b"b"):
        assert user.may_touch(name, True, False)
        assert user.may_touch(name, False, True)


def test_the_numbers_of_a_user_are_limited() -> None:
    for letter, what in ((b"~", "key patterns"), (b"&", "channel patterns"), (b">", "passwords")):
        user = build_user(b"al", [letter + b"%d" % n for n in range(MOST_OF_A_KIND)])
        build_user(b"al", [letter + b"7"], user)
        with pytest.raises(RuleError, match=f"A user can have at most {MOST_OF_A_KIND} {what}"):
            build_user(b"al", [letter + b"x"], user)
