"""How cluster members announce their IDs, addresses and host names: golden bytes, and what is malformed."""

from __future__ import annotations

import pytest

from replication.frames import LinkError
from replication.members import ClusterMember, announced, capability, decode, encode

pytestmark = pytest.mark.quick

ID = "0123456789" * 4
VECTORS = [
    (ClusterMember(ID, 6379, 0, "10.0.0.1"), b"6379,0,10.0.0.1"),
    (ClusterMember(ID, 0, 6380, ""), b"0,6380,"),
    (ClusterMember(ID, 6379, 6380, "::1", "a.example"), b"6379,6380,::1,a.example"),
    (ClusterMember(ID, 6379, 6380, "", "a.example"), b"6379,6380,,a.example"),
]


@pytest.mark.parametrize(("member", "fields"), VECTORS)
def test_golden_bytes(member: ClusterMember, fields: bytes) -> None:
    assert capability(member) == b"node-" + ID.encode() + b"," + fields
    assert announced(capability(member)) == member
    assert encode([member]) == ID.encode() + b" " + fields.replace(b",", b" ")


def test_lists_of_members() -> None:
    members = [member for member, _ in VECTORS]
    assert decode(encode(members)) == members


@pytest.mark.parametrize(
    "fields",
    [
        b"", b"6379", b"6379,0", b"65536,0,h", b"6379,65536,h", b"x,0,h", b"6379,0,h,", b"6379,0,h,a,b",
        b"6379,0,h,a b",
        b'6379,0,"h"', b"6379,0,h,a\\b", b"6379,0,h,\xff\n", b"6379,0,h," + b"a" * 256, b"6379,0," + b"h" * 256,
    ],
)  # fmt: skip
def test_malformed_ones(fields: bytes) -> None:
    assert announced(b"node-" + ID.encode() + b"," + fields) is None
    with pytest.raises(LinkError, match="malformed"):
        decode(ID.encode() + b" " + fields)


def test_other_capabilities() -> None:
    assert announced(b"eof") is None
    assert announced(b"node-" + b"g" * 40 + b",1,0,h") is None
