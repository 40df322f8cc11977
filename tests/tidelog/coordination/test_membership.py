"""The members of a document on a real server: who joins, who is removed, under which epoch."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
import redis

from tests.tidelog.coordination.leasekit import losing
from tidelog.client.client import Client
from tidelog.client.steps import Steps, run
from tidelog.coordination.documents import change
from tidelog.coordination.membership import check_names, with_member, without_members

KEY = "members"


class Member(msgspec.Struct, frozen=True):
    epoch: int
    cores: int = 1


Members = dict[str, Member]


def _decoded(text: bytes | None) -> Members:
    return {} if text is None else msgspec.json.decode(text, type=Members)


def _changed(text: bytes | None, members: Members) -> tuple[bytes | None, Members]:
    return (text if members == _decoded(text) else msgspec.json.encode(members)), members


def join(name: str, member: Member) -> Steps[Members]:
    return change(KEY, lambda text: _changed(text, with_member(_decoded(text), name, member)))


def remove(gone: Mapping[str, int]) -> Steps[Members]:
    return change(KEY, lambda text: _changed(text, without_members(_decoded(text), gone)))


def there(client: Client) -> Members:
    return _decoded(client.redis.get(KEY))  # type: ignore[arg-type] # a client that is not asynchronous


def test_members_join_and_leave(client: Client) -> None:
    assert run(client, join("a", Member(1))) == {"a": Member(1)}
    assert run(client, join("b", Member(2, 4))) == {"a": Member(1), "b": Member(2, 4)}
    assert run(client, remove({"a": 1})) == {"b": Member(2, 4)}
    assert there(client) == {"b": Member(2, 4)}


def test_a_member_that_is_there_stays_as_it_is(client: Client) -> None:
    run(client, join("a", Member(1, 4)))
    before = client.redis.get(KEY)
    assert run(client, join("a", Member(1, 8))) == {"a": Member(1, 4)}
    assert client.redis.get(KEY) == before


def test_a_restarted_process_replaces_its_predecessor_and_outlives_its_removal(client: Client) -> None:
    run(client, join("a", Member(1)))
    run(client, join("b", Member(2)))
    run(client, join("a", Member(3)))  # restarted
    assert run(client, remove({"a": 1, "b": 1})) == {"a": Member(3), "b": Member(2)}
    assert run(client, remove({"a": 3, "c": 9})) == {"b": Member(2)}
    assert there(client) == {"b": Member(2)}


def test_a_join_whose_reply_is_lost_is_repeated(client: Client) -> None:
    with pytest.raises(redis.ConnectionError):
        losing(client, join("a", Member(1)), 1)
    assert run(client, join("a", Member(1))) == {"a": Member(1)}
    with pytest.raises(redis.ConnectionError):
        losing(client, remove({"a": 1}), 1)
    assert run(client, remove({"a": 1})) == {}


def test_nothing_is_copied_if_nothing_changes() -> None:
    members = {"a": Member(1)}
    assert with_member(members, "a", Member(1)) is members
    assert without_members(members, {"a": 2, "b": 1}) is members
    assert without_members(members, {"a": 1}) == {}
    assert members == {"a": Member(1)}


@pytest.mark.parametrize("name", ["", "a|b", "\udcff"])
def test_names_that_are_no_processes(name: str) -> None:
    check_names(["host-1", "ö"])
    with pytest.raises(ValueError):
        check_names(["host-1", name])
