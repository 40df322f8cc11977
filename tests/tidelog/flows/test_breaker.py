"""The set of reasons why nothing may be sent, and how slowly it begins after one."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.tidelog.flows.test_tokens import Owner
from tidelog.flows.api.breaker import Breaker, BreakerReason
from tidelog.flows.api.event import BATCH
from tidelog.flows.api.signals import Restore, Trigger
from tidelog.flows.api.tokens import OK, RETRY, Token
from tidelog.flows.runtime.sourcewindow import InFlight, SlowStart

MESSAGES = st.lists(st.tuples(st.sampled_from(["a:x", "a:y", "b:x"]), st.booleans()), max_size=30)


@given(MESSAGES, st.randoms(use_true_random=False))
def test_the_newest_message_of_each_reason_counts(messages: list[tuple[str, bool]], chance: Random) -> None:
    sent = [(Trigger if stands else Restore)(reason, version) for version, (reason, stands) in enumerate(messages, 1)]
    newest = {each.reason: each for each in sent}
    arriving = sent + [each for each in sent if chance.random() < 0.5]  # on two ways
    chance.shuffle(arriving)
    breaker = Breaker()
    for each in arriving:
        if isinstance(each, Trigger):
            breaker.trigger(each, 1.0)
        else:
            breaker.restore(each)
    active = {reason for reason, each in newest.items() if isinstance(each, Trigger)}
    assert {each.reason for each in breaker.reasons} == active
    assert len(breaker) == len(active)
    assert bool(breaker) == bool(active)


def test_a_reason_stands_since_it_was_first_given() -> None:
    breaker = Breaker()
    assert breaker.trigger(Trigger("busy:out", 1, "first"), 5.0)
    assert not breaker.trigger(Trigger("busy:out", 2, "second"), 6.0)
    assert breaker.reasons == (BreakerReason("busy:out", 5.0, "first"),)
    assert not breaker.restore(Restore("busy:other", 3))
    assert "busy:out" in breaker
    assert breaker.restore(Restore("busy:out", 4))
    assert not breaker.restore(Restore("busy:out", 5))
    assert not breaker


def tokens(count: int) -> list[Token]:
    return [Token(Owner(), number) for number in range(count)]


def test_a_ramp_doubles_while_nothing_is_given_back() -> None:
    ramp = SlowStart()
    assert ramp.room(0.0) == BATCH
    ramp.begin()
    sizes = []
    while ramp.size:
        sizes.append(ramp.room(0.0))
        sent = tokens(sizes[-1])
        ramp.sent(sent)
        assert ramp.room(0.0) == 0
        for each in sent:
            assert ramp.settled(0.0) == 0.0
            each.settle(OK)
        assert ramp.settled(0.0) == 0.0
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert ramp.room(0.0) == BATCH


def test_a_step_that_was_too_much_begins_anew_after_a_rest_that_doubles() -> None:
    ramp = SlowStart()
    ramp.begin()
    now = 0.0
    for rest in (0.1, 0.2, 0.4):
        sent = tokens(ramp.room(now))
        assert len(sent) == 1
        ramp.sent(sent)
        sent[0].settle(RETRY)
        assert ramp.settled(now) == rest
        assert ramp.room(now) == ramp.room(now + rest * 0.9) == 0
        now += rest
    sent = tokens(ramp.room(now))
    ramp.sent(sent)
    sent[0].settle()
    ramp.settled(now)
    assert ramp.room(now) == 2
    ramp.begin()  # it goes on already
    assert ramp.room(now) == 2


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_oldest_under_way_is_known_in_any_order(sizes: list[int], chance: Random) -> None:
    under_way = InFlight()
    left: list[tuple[float, Token]] = []
    for when, size in enumerate(sizes, 1):
        batch = tokens(size)
        under_way.add(float(when), batch)
        left += [(float(when), each) for each in batch]
        chance.shuffle(left)
        for _ in range(chance.randrange(len(left) + 1)):
            left.pop()[1].settle()
        assert under_way.oldest() == min((when for when, _ in left), default=None)


def test_what_is_settled_in_the_middle_is_let_go_of() -> None:
    under_way = InFlight()
    first = tokens(1)
    under_way.add(0.0, first)
    for when in range(10_000):
        batch = tokens(3)
        under_way.add(when, batch)
        for each in batch:
            each.settle()
        under_way.forget()
        assert len(under_way) <= 65
    assert under_way.oldest() == 0.0
