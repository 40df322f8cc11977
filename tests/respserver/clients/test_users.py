"""The source by which failed logins are counted."""

from __future__ import annotations

import pytest

from commands.session import Session
from respserver.clients.users import login_source


@pytest.mark.parametrize(
    ("addr", "place", "local"),
    [
        ("10.1.2.3:4711", "10.1.2.3", False),
        ("127.0.0.1:4711", "127.0.0.1", True),
        ("[::1]:4711", "[::1]", True),
        ("[::ffff:127.0.0.1]:4711", "127.0.0.1", True),
        ("[::ffff:10.1.2.3]:4711", "10.1.2.3", False),
        ("[2001:db8:1:2:aaaa:bbbb:cccc:dddd]:4711", "2001:db8:1:2::/64", False),
        ("[2001:db8:1:2::1]:4711", "2001:db8:1:2::/64", False),
        ("[fe80::1%eth0]:4711", "fe80::/64", False),
    ],
)
def test_places(addr: str, place: str, local: bool) -> None:
    assert login_source(Session(1, addr, "", 0)) == (place, local)


def test_the_unix_socket() -> None:
    session = Session(1, "/run/tidelog.sock:0", "", 0)
    session.unix = True
    assert login_source(session) == ("the unix socket", True)
