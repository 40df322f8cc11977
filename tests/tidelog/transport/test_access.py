from __future__ import annotations

import pickle

import pytest

from tidelog.transport.access import DEFAULT_URL, Access, is_url, without_credentials


def test_defaults() -> None:
    access = Access()
    assert (access.urls, access.secure, access.verify) == ((DEFAULT_URL,), False, True)
    assert (access.connect_ms, access.read_ms, access.retries, access.retry_ms) == (10_000, 120_000, 60, 1000)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("redis://h", True), ("rediss://:secret@h:1?ssl_ca_certs=/x", True), ("rediss://[::1]:1", True),
        ("unix:///x", True), ("redis://", False), ("http://h", False), ("h:6379", False), ("", False),
        (" redis://h", False),
    ],
)  # fmt: skip
def test_urls(text: str, accepted: bool) -> None:
    assert is_url(text) is accepted
    if accepted:
        assert Access((DEFAULT_URL, text)).urls[1] == text
    else:
        with pytest.raises(ValueError, match="urls must be redis://"):
            Access((DEFAULT_URL, text))


def test_at_least_one_url() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Access(())


def test_one_rediss_url_asks_for_tls_and_so_does_the_setting() -> None:
    assert Access(("redis://a", "rediss://b")).secure
    assert Access(("redis://a",), tls=True).secure
    assert not Access(("redis://rediss",)).secure


def test_sentinels() -> None:
    access = Access(
        sentinels=("redis://:secret@a:1", "rediss://b"), service="tide", username="u", password="p", tls=True,
        sentinel_password="q", connect_ms=100,
    )  # fmt: skip
    assert access.movable
    assert access.places == "tide of the Sentinels a:1, rediss://b"
    first, second = map(access.of_sentinel, access.sentinels)
    assert (first.username, first.password, first.secure, second.secure) == (None, "q", False, True)
    assert (first.connect_ms, first.read_ms) == (100, 2000)
    assert not Access().movable
    assert Access(("redis://a", "redis://b")).movable
    for wrong in ({"sentinels": ("redis://a",)}, {"service": "tide"}, {"sentinels": ("a:1",), "service": "tide"}):
        with pytest.raises(ValueError, match="sentinels must be URLs, and need the name of a service"):
            Access(**wrong)


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(Access(password="secret"))
    assert without_credentials("redis://user:secret@h:1") == "h:1"
    assert without_credentials("redis://h:1") == "redis://h:1"
    assert without_credentials("unix:///tmp/s?password=secret") == "unix:///tmp/s"


def test_names_for_messages_do_not_count_in_comparisons_and_it_can_be_pickled() -> None:
    access = Access(retries=5, names={"retries": "numRetries"})
    assert (access.called("retries"), access.called("retry_ms")) == ("numRetries", "retry_ms")
    again = pickle.loads(pickle.dumps(access))
    assert again == access == Access(retries=5)
    assert hash(again) == hash(Access(retries=5))
    assert again.called("retries") == "numRetries"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("redis://a,b:7000, c/2?db=2", [f"redis://{host}/2?db=2" for host in ("a", "b:7000", "c")]),
        ("redis://u:p,w@a,b", ["redis://u:p,w@a", "redis://u:p,w@b"]),
        ("rediss://[::1]:1,[::2]", ["rediss://[::1]:1", "rediss://[::2]"]),
        ("redis://a,b,redis://:x@c", ["redis://a", "redis://b", "redis://:x@c"]),
        ("redis://u:p,w@a", ["redis://u:p,w@a"]),
        ("unix:///a,b", ["unix:///a,b"]),
    ],
)
def test_several_hosts_in_one_url(text: str, urls: list[str]) -> None:
    assert list(Access.of(text).urls) == urls
    assert Access.of(text).movable is (len(urls) > 1)
