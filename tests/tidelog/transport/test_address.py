"""URLs of servers: what they say, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from tidelog import Access, AsyncClient, Client
from tidelog.transport.address import OPTIONS, Address, address_of, without_credentials

TLS = "ssl_ca_certs=/ca&ssl_ca_path=/cas&ssl_certfile=/cert&ssl_keyfile=/key&ssl_password=p"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", Address("h", 6379, "", False)),
        ("redis:///0", Address("localhost", 6379, "", False, db=0)),
        ("redis://[::1]:7/3", Address("::1", 7, "", False, db=3)),
        ("rediss://u:p%2F%40@h:1?db=2", Address("h", 1, "", True, "u", "p/@", 2)),
        ("redis://h/2?db=2", Address("h", 6379, "", False, db=2)),
        ("redis://h?username=u&password=a%2Bb", Address("h", 6379, "", False, "u", "a+b")),
        ("unix:///tmp/a%20b?password=p&db=1", Address("", 0, "/tmp/a b", False, None, "p", 1)),
        ("unix://:p@/tmp/s", Address("", 0, "/tmp/s", False, None, "p")),
        (
            f"rediss://h?{TLS}&ssl_cert_reqs=none&ssl_check_hostname=False",
            Address("h", 6379, "", True, None, None, None, "/ca", "/cas", "/cert", "/key", "p", False, False),
        ),
        ("rediss://h?ssl_cert_reqs=optional", Address("h", 6379, "", True, verify=True)),
        ("redis://h?socket_timeout=1.5&socket_connect_timeout=2", Address("h", 6379, "", False, connect_ms=2000,
                                                                          read_ms=1500)),
        ("redis://h?protocol=3", Address("h", 6379, "", False, protocol=3)),
    ],
)  # fmt: skip
def test_what_a_url_says(url: str, expected: Address) -> None:
    assert address_of(url) == expected


WRONG = [
    ("http://h", "is not the URL of a server: it must be redis://"),
    ("redis://", "is not the URL of a server"),
    ("redis://h:x", "host and port can't be parsed"),
    ("redis://h:99999", "host and port can't be parsed"),
    ("redis://:secr/et@h:1", "host and port can't be parsed"),
    ("redis://:secr#et@h:1", "can't be parsed"),
    ("redis://h#x", "must be written as %23"),
    ("redis://h/x", "'x' is not the number of a database"),
    ("redis://user:123/secr-et@h", "the path is not the number of a database"),
    ("redis://h/1?db=2", "db is given twice"),
    ("redis://:a@h?password=b", "password is given twice"),
    ("redis://h?db=1&db=1", "the option db is given twice"),
    ("redis://h?db=-1", "the option db must be a whole number"),
    ("redis://h?password=", "the option password is empty"),
    ("redis://h?ssl_cafile=/x", "unknown option 'ssl_cafile': known are username, password, db, ssl_ca_certs"),
    ("redis://h?retry_on_timeout=true", "unknown option"),
    ("redis://h?SSL_CA_CERTS=/x", "unknown option"),
    ("rediss://h?ssl_cert_reqs=NONE", "ssl_cert_reqs must be none, optional or required"),
    ("rediss://h?ssl_check_hostname=maybe", "must be true or false"),
    ("redis://h?socket_timeout=soon", "must be a number of seconds"),
    ("redis://h?socket_timeout=nan", "must be a number of seconds"),
    ("redis://h?protocol=4", "must be 2 or 3"),
    ("unix://h", "the path of the socket is missing"),
]


@pytest.mark.parametrize(("url", "message"), WRONG)
def test_what_is_refused_and_by_everything_that_takes_a_url(url: str, message: str) -> None:
    makers: list[Any] = [address_of, Access.of, Client, AsyncClient]
    for make in makers:
        with pytest.raises(ValueError) as raised:
            make(url)
        said = str(raised.value)
        assert message in said or "urls must be redis://" in said
        assert "secr" not in said
        assert "et@" not in said


@pytest.mark.parametrize("option", [name for name in OPTIONS if name.startswith("ssl_")])
def test_options_for_tls_need_tls(option: str) -> None:
    value = {"ssl_cert_reqs": "none", "ssl_check_hostname": "false"}.get(option, "/x")
    pair = "&ssl_certfile=/c" if option == "ssl_keyfile" else ""
    with pytest.raises(ValueError, match=r"is for TLS: write rediss://"):
        Access.of(f"redis://h?{option}={value}{pair}")
    assert Access.of(f"rediss://h?{option}={value}{pair}").secure
    assert Access((f"redis://h?{option}={value}{pair}",), tls=True).secure


def test_fields_for_tls_need_tls_too() -> None:
    with pytest.raises(ValueError, match="ca_file is for TLS"):
        Access(("redis://h",), ca_file="/x")
    with pytest.raises(ValueError, match="key_file needs cert_file"):
        Access(("rediss://h",), key_file="/x")
    with pytest.raises(ValueError, match="ssl_keyfile needs ssl_certfile"):
        Access.of("rediss://h?ssl_keyfile=/x")


def test_an_option_of_one_url_holds_for_all_and_two_values_are_an_error() -> None:
    access = Access.of("rediss://u:p@a, rediss://b?ssl_ca_certs=/ca&socket_timeout=5")
    first, second = (access.address(url) for url in access.urls)
    assert (first.ca_file, second.ca_file, access.read_ms) == ("/ca", "/ca", 5000)
    assert (first.username, second.username) == ("u", None)
    other = access.address("rediss://c")  # a replica that ROLE names
    assert (other.ca_file, other.password) == ("/ca", None)
    with pytest.raises(ValueError, match="ssl_ca_certs has different values"):
        Access.of("rediss://a?ssl_ca_certs=/x,rediss://b?ssl_ca_certs=/y")


def test_a_comma_in_a_password_separates_nothing() -> None:
    assert Access.of("redis://:a,b@h").urls == ("redis://:a,b@h",)


def test_fields_hold_against_options() -> None:
    access = Access(("rediss://u:p@h?ssl_ca_certs=/a&ssl_certfile=/c&ssl_keyfile=/k",), username="v", password="q",
                    ca_file="/b", cert_file="/d")  # fmt: skip
    made = access.address(access.urls[0])
    assert (made.username, made.password, made.ca_file, made.cert_file, made.key_file) == ("v", "q", "/b", "/d", None)


def test_sentinels() -> None:
    access = Access.of(
        "rediss+sentinel://u:p%40@a,b:5,[::1]/tide?ssl_ca_certs=/ca&ssl_check_hostname=no&sentinel_password=q&"
        "socket_timeout=3"
    )
    assert access.sentinels == ("rediss://a:26379", "rediss://b:5", "rediss://[::1]:26379")
    assert (access.service, access.username, access.password, access.sentinel_password) == ("tide", "u", "p@", "q")
    assert (access.ca_file, access.check_hostname, access.read_ms, access.secure) == ("/ca", False, 3000, True)
    assert not Access.of("redis+sentinel://a/tide").secure
    for wrong, message in (
        ("redis+sentinel://a", "a URL of Sentinels is"), ("redis+sentinel:///tide", "a URL of Sentinels is"),
        ("redis+sentinel://a/tide?db=1", "db is not possible with Sentinels"),
        ("redis+sentinel://a/tide?x=1", "unknown option 'x'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Access.of(wrong)


def test_the_files_that_it_names() -> None:
    access = Access.of("rediss://a?ssl_certfile=/cert&ssl_keyfile=/key,unix:///sock")
    assert access.files == ("/cert", "/key", "/sock")
    assert Access.of("rediss+sentinel://a/tide?ssl_ca_certs=/ca").files == ("/ca",)
    assert Access.of("redis://a").files == ()


def test_nothing_of_a_password_is_shown() -> None:
    for url in (
        "redis://u:secret@h",
        "redis://h?password=secret",
        "redis://u:se?cret@h",
        "redis://h?password=a@secret",
    ):
        assert "secret" not in without_credentials(url)
        assert "cret" not in without_credentials(url)


def test_one_access_has_another() -> None:
    access = Access(("rediss://a:1", "rediss://b"), password="p", ca_file="/ca")
    for url in ("rediss://a:1", "rediss://b:6379", "rediss://:p@a:1", "rediss://a:1?ssl_ca_certs=/ca"):
        assert access.has(Access.of(url)), url
    for url in ("redis://a:1", "rediss://a", "rediss://:q@a:1", "rediss://a:1/3", "rediss://a:1?ssl_ca_certs=/b"):
        assert not access.has(Access.of(url)), url
    sentinels = Access.of("redis+sentinel://a/tide", password="p")
    assert sentinels.has(Access.of("redis+sentinel://a/tide"))
    assert not sentinels.has(Access.of("redis+sentinel://a/other"))
    assert not sentinels.has(Access.of("redis://a:26379"))


@pytest.mark.parametrize("where", ["redis+sentinel://127.0.0.1:1/tide", "redis://127.0.0.1:1,redis://127.0.0.1:2"])
def test_no_leader_is_no_error_of_an_address_that_nobody_has_tried(where: str) -> None:
    async def ask() -> None:
        async with AsyncClient(where) as client:
            await client.redis.ping()

    with pytest.raises(redis.ConnectionError, match=r"^no leader ") as caught, Client(where) as client:
        client.redis.ping()
    assert "connecting to" not in str(caught.value)
    with pytest.raises(redis.ConnectionError, match=r"^no leader ") as caught:
        asyncio.run(ask())
    assert "connecting to" not in str(caught.value)
