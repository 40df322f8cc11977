"""Groups and consumers on ours and on a real redis-server: XGROUP, XREADGROUP, XACK, XPENDING, claims, XINFO.

Replies are compared byte for byte, but for times, and for when a consumer was active, which redis-server 7.0 does not
tell. Where 7.0 differs from later versions, the scripts keep away: it makes no consumer for a read or a claim that gets
nothing, and it has other lags where entries are gone, and other texts for $ and + and keys without IDs. test_xreadgroup
and test_xinfo have these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.wire.alike import Pair
from tests.wire.rawclient import Raw

Same = Callable[[str], None]

IDLE = re.compile(rb":\d+(\r\n:\d+\r\n)")  # in XPENDING: before the number of deliveries
TIME = re.compile(rb":1[0-9]{12}\r\n")  # in XINFO FULL
IDLE_CONSUMER = re.compile(rb"(idle\r\n):\d+\r\n")
NEWER = re.compile(  # pairs that 7.0 does not have
    rb"\$\d+\r\n(inactive|active-time|idmp-duration|idmp-maxsize|[pi]ids-tracked|iids-added|iids-duplicates"
    rb"|nacked-count)\r\n:-?\w+\r\n"
)
STREAM_MAP = re.compile(rb"(%|\*)\d+(\r\n\$6\r\nlength\r\n)")
NODES = re.compile(rb"(radix-tree-(keys|nodes)\r\n):\d+\r\n")
CONSUMER_MAP = re.compile(
    rb"(%|\*)\d+(\r\n\$4\r\nname\r\n\$\d+\r\n[^\r]*\r\n"
    rb"\$(7\r\npending\r\n:\d+\r\n\$4|9\r\nseen-time|17\r\nlast-delivered-id)\r\n)"
)  # of a consumer, or of a group in FULL


def masked(line: str, reply: bytes) -> bytes:
    words = line.upper().split()
    if words[0] == "XPENDING":
        return IDLE.sub(rb":IDLE\1", reply)
    if words[0] == "XINFO":
        reply = NODES.sub(rb"\1:N\r\n", IDLE_CONSUMER.sub(rb"\1:IDLE\r\n", TIME.sub(b":TIME\r\n", reply)))
        return STREAM_MAP.sub(rb"\1N\2", CONSUMER_MAP.sub(rb"\1N\2", NEWER.sub(b"", reply)))
    return reply


@pytest.fixture
def both(pair: Pair) -> Pair:
    """Each holds a string, five entries at ``s`` and none at ``empty``."""
    for connection in pair:
        connection.ask("SET", "string", "v")
        for number in range(1, 6):
            connection.ask("XADD", "s", f"{number}-0", "f", number)
        connection.ask("XGROUP", "CREATE", "empty", "e", "0", "MKSTREAM")
    return pair


@pytest.fixture
def same(both: Pair) -> Same:
    """Runs a script, commands separated by lines or semicolons, on both; the replies must be the same."""

    def same(script: str) -> None:
        for line in script.replace(";", "\n").strip().splitlines():
            words = ["" if word == "''" else word for word in line.split()]
            if words:
                ours, theirs = both[0].ask(*words), both[1].ask(*words)
                assert masked(line, ours) == masked(line, theirs), line

    return same


def test_xgroup_create(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XGROUP CREATE s g 0 ; XGROUP CREATE s g 5 MKSTREAM ; XGROUP CREATE s h $
        XINFO GROUPS s
        XGROUP CREATE s i 3 ; XGROUP CREATE s j 3-0 ENTRIESREAD 3 ; XGROUP CREATE s k 99 ; XINFO GROUPS s
        XGROUP CREATE s x foo ; XGROUP CREATE s x - ; XGROUP CREATE s x + ; XGROUP CREATE s x > ; XGROUP CREATE s x (1
        XGROUP CREATE s x 1-x ; XGROUP CREATE s x 1- ; XGROUP CREATE s x ''
        XGROUP CREATE none g $ ; XGROUP CREATE none g foo ; XGROUP CREATE none g foo MKSTREAM ; EXISTS none
        XGROUP CREATE none g $ MKSTREAM FOO ; XGROUP CREATE none g $ ENTRIESREAD -2 ; EXISTS none
        XGROUP CREATE none g $ MKSTREAM ENTRIESREAD x ; XGROUP CREATE none g $ MKSTREAM ENTRIESREAD ; EXISTS none
        XGROUP CREATE none g $ mkstream ; TYPE none ; XLEN none ; XINFO STREAM none ; XINFO GROUPS none
        XGROUP CREATE none h 7-7 MKSTREAM ; XINFO GROUPS none ; XADD none 1-0 f v ; XINFO GROUPS none
        XGROUP CREATE more g 0 MKSTREAM MKSTREAM MKSTREAM ; XGROUP CREATE more h 0 MKSTREAM MKSTREAM MKSTREAM MKSTREAM
        XGROUP CREATE more h 0 ENTRIESREAD -1 MKSTREAM ; XINFO GROUPS more
        XGROUP CREATE s '' 0 ; XINFO GROUPS s ; XGROUP DESTROY s '' ; XGROUP DESTROY s ''
        XGROUP CREATE string g 0 ; XGROUP CREATE string g 0 MKSTREAM ; XGROUP CREATE string g foo ; XGROUP CREATE s
        XGROUP ; XGROUP FOO ; XGROUP FOO a b c ; XGROUP CREATE ; XGROUP CREATE s y ; XGROUP create s y 0 foo bar
    """)


def test_xgroup_the_others(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XGROUP SETID s g 3 ; XINFO GROUPS s ; XGROUP SETID s g $ ; XINFO GROUPS s
        XGROUP SETID s g - ; XINFO GROUPS s ; XGROUP SETID s g + ; XINFO GROUPS s ; XGROUP SETID s g 0 ENTRIESREAD 0
        XINFO GROUPS s ; XGROUP SETID s g 2-0 ENTRIESREAD 2 ; XINFO GROUPS s ; XGROUP SETID s g 2 ENTRIESREAD -2
        XGROUP SETID s g foo ; XGROUP SETID s g (1 ; XGROUP SETID s g 1 MKSTREAM ; XGROUP SETID s g 1 ENTRIESREAD
        XGROUP SETID s no 1 ; XGROUP SETID none g 1 ; XGROUP SETID string g 1 ; XGROUP SETID s g
        XGROUP SETID s no foo ; XGROUP SETID none g foo ; XGROUP SETID s g 1 ENTRIESREAD 1 ENTRIESREAD 2
        XGROUP CREATECONSUMER s g b ; XGROUP CREATECONSUMER s g a ; XGROUP CREATECONSUMER s g a
        XGROUP CREATECONSUMER s g '' ; XINFO CONSUMERS s g ; XINFO GROUPS s ; XGROUP DELCONSUMER s g ''
        XGROUP CREATECONSUMER s no a ; XGROUP CREATECONSUMER none g a ; XGROUP CREATECONSUMER string g a
        XGROUP CREATECONSUMER s g ; XGROUP CREATECONSUMER s g a b ; XGROUP DELCONSUMER s g
        XGROUP DELCONSUMER s g a b
        XREADGROUP GROUP g a COUNT 2 STREAMS s > ; XREADGROUP GROUP g b STREAMS s > ; XPENDING s g
        XGROUP DELCONSUMER s g nobody ; XGROUP DELCONSUMER s g a ; XPENDING s g ; XINFO CONSUMERS s g
        XGROUP DELCONSUMER s g b ; XPENDING s g ; XINFO CONSUMERS s g ; XGROUP DELCONSUMER s g b
        XGROUP DELCONSUMER s no a ; XGROUP DELCONSUMER none g a ; XGROUP DELCONSUMER string g a
        XGROUP DESTROY s no ; XGROUP DESTROY none g ; XGROUP DESTROY string g ; XGROUP DESTROY s
        XGROUP DESTROY s g x
        XGROUP DESTROY s g ; XINFO GROUPS s ; XINFO STREAM s ; XPENDING s g ; XGROUP DESTROY empty e ; EXISTS empty
        XINFO STREAM empty ; XINFO GROUPS empty
    """)


def test_xreadgroup(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XGROUP CREATECONSUMER s g new ; XGROUP CREATECONSUMER s g other
        XREADGROUP GROUP g a COUNT 2 STREAMS s > ; XINFO GROUPS s ; XPENDING s g - + 10
        XREADGROUP GROUP g b COUNT 1 NOACK STREAMS s > ; XPENDING s g ; XINFO GROUPS s ; XINFO CONSUMERS s g
        XREADGROUP GROUP g b STREAMS s > ; XREADGROUP GROUP g b STREAMS s > ; XREADGROUP GROUP g new STREAMS s >
        XINFO CONSUMERS s g ; XREADGROUP GROUP g a STREAMS s 0 ; XREADGROUP GROUP g a STREAMS s 1
        XREADGROUP GROUP g a STREAMS s 1-5 ; XREADGROUP GROUP g a STREAMS s 2
        XREADGROUP GROUP g a COUNT 1 STREAMS s 0
        XREADGROUP GROUP g other STREAMS s 0 ; XPENDING s g - + 10 ; XINFO CONSUMERS s g
        XREADGROUP GROUP g a BLOCK 0 STREAMS s 0 ; XREADGROUP GROUP g a BLOCK 1 STREAMS s >
        XDEL s 1 ; XREADGROUP GROUP g a STREAMS s 0 ; XPENDING s g - + 10 ; XTRIM s MAXLEN 1
        XREADGROUP GROUP g a STREAMS s 0 ; XREADGROUP GROUP g b STREAMS s 0 ; XPENDING s g - + 10
        XACK s g 1 2 3 4 5 ; XREADGROUP GROUP g a STREAMS s 0 ; XINFO CONSUMERS s g
        XREADGROUP GROUP g a COUNT 0 STREAMS s > ; XREADGROUP GROUP g a COUNT -5 STREAMS s > ; XADD s 6 f v
        XADD s 7 f v ; XREADGROUP GROUP g a COUNT 0 STREAMS s > ; XGROUP SETID s g 5
        XREADGROUP GROUP g b COUNT 1 STREAMS s > ; XPENDING s g - + 10 ; XREADGROUP GROUP g b STREAMS s >
        XPENDING s g - + 10 ; XPENDING s g
    """)


def test_xreadgroup_of_many_keys(same: Same) -> None:
    same("""
        XADD t 1-0 a b c d ; XGROUP CREATE s g 0 ; XGROUP CREATE t g 0 ; XGROUP CREATE empty g 0
        XREADGROUP GROUP g a COUNT 2 STREAMS s t > > ; XREADGROUP GROUP g a STREAMS t s empty > > >
        XREADGROUP GROUP g a STREAMS t s empty > > > ; XREADGROUP GROUP g a STREAMS t s empty 0 > 0
        XREADGROUP GROUP g a STREAMS s s t t 0 > 0 > ; XADD t 2-0 a b ; XREADGROUP GROUP g a STREAMS t t > >
        XREADGROUP GROUP g a STREAMS s none > > ; XREADGROUP GROUP g a STREAMS none s > > ; XGROUP CREATE s h 0
        XREADGROUP GROUP h a STREAMS s t > > ; XINFO GROUPS s ; XREADGROUP GROUP g a STREAMS s string > >
        XREADGROUP GROUP h a STREAMS s t foo > ; XREADGROUP GROUP h a STREAMS s s > foo ; XPENDING s h
        COMMAND GETKEYS XREADGROUP GROUP g a STREAMS x y > >
        COMMAND GETKEYS XREADGROUP GROUP g a COUNT 1 STREAMS x 0
        COMMAND GETKEYS XREADGROUP GROUP STREAMS STREAMS STREAMS x 0
    """)


def test_xreadgroup_errors(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XREADGROUP ; XREADGROUP GROUP g a STREAM s >
        XREADGROUP GROUP g a COUNT x STREAMS s > ; XREADGROUP GROUP g a BLOCK x STREAMS s > ; XPENDING s g
        XREADGROUP GROUP g a BLOCK -1 STREAMS s > ; XREADGROUP GROUP g a BLOCK STREAMS s >
        XREADGROUP GROUP g a COUNT s >
        XREADGROUP COUNT 1 NOACK NOACK STREAMS s > ; XREADGROUP FOO 1 NOACK NOACK STREAMS s >
        XREADGROUP GROUP g a FOO STREAMS s > ; XREADGROUP GROUP g a NOACK NOACK COUNT 1 COUNT 2 BLOCK
        XREADGROUP GROUP g a STREAMS s foo ; XREADGROUP GROUP g a STREAMS s - ; XREADGROUP GROUP g a STREAMS s (1
        XREADGROUP GROUP no a STREAMS s > ; XREADGROUP GROUP g a STREAMS none >
        XREADGROUP GROUP g a STREAMS string > ; XREADGROUP GROUP no a STREAMS s foo
        XREADGROUP GROUP '' a STREAMS s >
        XREADGROUP GROUP g a COUNT 1.5 STREAMS s > ; XREADGROUP GROUP g a NOACK NOACK NOACK NOACK
        XINFO CONSUMERS s g
        XREADGROUP GROUP g '' COUNT 1 STREAMS s > ; XPENDING s g ; XPENDING s g - + 10 '' ; XINFO STREAM s FULL
        XREADGROUP GROUP g a GROUP h b STREAMS s > ; XREADGROUP GROUP no a GROUP g b STREAMS s 0
    """)


def test_xack(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XREADGROUP GROUP g a STREAMS s > ; XACK s g 1 ; XACK s g 1 ; XACK s g 2-0 2-0 9 3
        XACK s g 4 foo ; XPENDING s g ; XACK s no foo ; XACK none g foo ; XACK string g 1 ; XACK s g - ; XACK s g $
        XACK s ; XACK s g ; XACK s g 4-0 5-0 ; XPENDING s g
    """)


def test_xpending(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XPENDING s g ; XPENDING s g - + 10 ; XREADGROUP GROUP g b COUNT 2 STREAMS s >
        XREADGROUP GROUP g a COUNT 2 STREAMS s > ; XREADGROUP GROUP g b COUNT 2 STREAMS s > ; XPENDING s g
        XPENDING s g - + 10 ; XPENDING s g - + 2 ; XPENDING s g 2 4 10 ; XPENDING s g (2 (4 10 ; XPENDING s g + - 10
        XPENDING s g 3 3 10 ; XPENDING s g - + 0 ; XPENDING s g - + -1 ; XPENDING s g - + 10 a ; XPENDING s g - + 10 b
        XPENDING s g - + 2 b ; XPENDING s g 2 + 2 b ; XPENDING s g - 4 9 b ; XPENDING s g (1 (5 9 b
        XPENDING s g - + 10 nobody ; XPENDING s g IDLE 0 - + 10 ; XPENDING s g IDLE 0 - + 10 a
        XPENDING s g IDLE 100000 - + 10 ; XPENDING s g IDLE 100000 - + 10 a ; XPENDING s g IDLE -1 - + 10
        XPENDING s g idle 0 - + 3 b ; XPENDING s g - ; XPENDING s g - + ; XPENDING s g IDLE 0 - +
        XPENDING s g IDLE 0
        XPENDING s g IDLE x - + 10 ; XPENDING s g - + x ; XPENDING s g x + 1 ; XPENDING s g - x 1 ; XPENDING s g x x x
        XPENDING s g IDLE 0 - + 10 a b ; XPENDING s g - + 10 a b ; XPENDING s g - + 10 a b c ; XPENDING s
        XPENDING s g (18446744073709551615-18446744073709551615 + 1 ; XPENDING s g - (0-0 1 ; XPENDING s g - (0 1
        XPENDING s no ; XPENDING none g ; XPENDING string g ; XPENDING s no - + 1 ; XPENDING s no - + x
        XPENDING s g IDLE 9223372036854775807 - + 10 ; XPENDING s g - + 9223372036854775807
    """)


def test_xclaim(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XGROUP CREATECONSUMER s g f ; XREADGROUP GROUP g a COUNT 3 STREAMS s >
        XCLAIM s g b 0 1 2 ; XPENDING s g - + 10
        XCLAIM s g b 0 2 JUSTID ; XPENDING s g - + 10 ; XCLAIM s g b 100000 1 ; XCLAIM s g b 0 9 8 4
        XCLAIM s g b 0 4 FORCE ; XPENDING s g - + 10 ; XCLAIM s g c 100000 5 FORCE JUSTID ; XPENDING s g - + 10
        XCLAIM s g c 0 5 1 3 IDLE 100000 ; XCLAIM s g a 90000 5 1 2 RETRYCOUNT 7 ; XPENDING s g - + 10
        XCLAIM s g a 0 5 1 TIME 1000 JUSTID ; XCLAIM s g d 100000 5 ; XCLAIM s g d 0 1 RETRYCOUNT -3
        XPENDING s g - + 10 ; XCLAIM s g d 0 1 RETRYCOUNT 0 ; XPENDING s g - + 10 ; XCLAIM s g d 0 1 TIME -1
        XCLAIM s g d 0 1 1 1 ; XPENDING s g - + 10 ; XCLAIM s g d 10000 1 1 ; XCLAIM s g e 0 1 3 1 JUSTID
        XCLAIM s g d 0 6 6 FORCE ; XCLAIM s g f 0 FORCE ; XCLAIM s g f 0 9 ; XINFO CONSUMERS s g
        XDEL s 2 3 ; XCLAIM s g d 0 1 2 3 ; XPENDING s g - + 10 ; XCLAIM s g d 0 2 FORCE ; XPENDING s g
        XCLAIM s g d 0 1 LASTID 2 ; XINFO GROUPS s ; XCLAIM s g d 0 1 LASTID 4-5 ; XINFO GROUPS s
        XCLAIM s g d 0 1 LASTID foo ; XCLAIM s g d 0 1 FOO ; XCLAIM s g d 0 1 IDLE ; XCLAIM s g d 0 1 IDLE x
        XCLAIM s g d 0 1 TIME x ; XCLAIM s g d 0 1 RETRYCOUNT x ; XCLAIM s g d x 1 ; XCLAIM s g d -5 1
        XCLAIM s g d 0 foo ; XCLAIM s g d 0 1 foo 2 ; XCLAIM s no d x 1 ; XCLAIM none g d x 1 ; XCLAIM string g d 0 1
        XCLAIM s g d 0 ; XCLAIM s g d ; XCLAIM s g d 0 1 FORCE JUSTID IDLE 1 TIME 2 RETRYCOUNT 4 LASTID 1
        XPENDING s g - + 10 ; XCLAIM s g d 0 1 LASTID ; XCLAIM s g d 0 1 idle -5 ; XPENDING s g ; XINFO CONSUMERS s g
    """)


def test_xautoclaim(same: Same) -> None:
    same("""
        XGROUP CREATE s g 0 ; XGROUP CREATECONSUMER s g c
        XREADGROUP GROUP g a STREAMS s > ; XAUTOCLAIM s g b 0 0 COUNT 2 ; XPENDING s g - + 10
        XAUTOCLAIM s g b 0 3 COUNT 2 JUSTID ; XPENDING s g - + 10 ; XAUTOCLAIM s g b 0 5 ; XAUTOCLAIM s g b 0 6
        XAUTOCLAIM s g b 0 (4 ; XAUTOCLAIM s g b 0 - COUNT 1 ; XAUTOCLAIM s g b 0 + ; XAUTOCLAIM s g b 100000 0
        XAUTOCLAIM s g b 100000 0 COUNT 1 ; XCLAIM s g a 0 5 IDLE 200000 JUSTID ; XAUTOCLAIM s g b 100000 0 COUNT 1
        XDEL s 2 3 ; XAUTOCLAIM s g b 0 0 COUNT 2 ; XPENDING s g - + 10 ; XAUTOCLAIM s g b 0 0 ; XPENDING s g
        XTRIM s MAXLEN 0 ; XAUTOCLAIM s g b 0 0 COUNT 1 JUSTID ; XAUTOCLAIM s g c 0 0 ; XPENDING s g
        XAUTOCLAIM s g c 0 0
        XINFO CONSUMERS s g ; XAUTOCLAIM s g b x 0 ; XAUTOCLAIM s g b 0 x ; XAUTOCLAIM s g b 0 0 COUNT 0
        XAUTOCLAIM s g b 0 0 COUNT x ; XAUTOCLAIM s g b 0 0 COUNT -1 ; XAUTOCLAIM s g b 0 0 COUNT
        XAUTOCLAIM s g b 0 0 FOO ; XAUTOCLAIM s no b 0 0 ; XAUTOCLAIM none g b 0 0 ; XAUTOCLAIM string g b 0 0
        XAUTOCLAIM s g b 0 ; XAUTOCLAIM none g b x 0 ; XAUTOCLAIM s g b 0 0 COUNT 8070450532247928833
        XAUTOCLAIM s g b 0 (18446744073709551615-18446744073709551615 ; XAUTOCLAIM s g b -1 0 JUSTID JUSTID COUNT 3
    """)


def test_xautoclaim_looks_at_ten_times_as_many(same: Same) -> None:
    same("\n".join(f"XADD t {number} f v" for number in range(1, 40)))
    same("""
        XGROUP CREATE t g 0 ; XREADGROUP GROUP g a STREAMS t > ; XAUTOCLAIM t g b 100000 0 COUNT 1
        XAUTOCLAIM t g b 100000 11 COUNT 2 ; XAUTOCLAIM t g b 100000 31 COUNT 2 ; XAUTOCLAIM t g b 100000 39 COUNT 3
        XCLAIM t g a 0 12 IDLE 200000 JUSTID ; XAUTOCLAIM t g b 100000 0 COUNT 1 JUSTID
        XAUTOCLAIM t g b 100000 11 COUNT 1 JUSTID ; XAUTOCLAIM t g b 100000 2 COUNT 1 JUSTID
    """)


def test_xinfo(same: Same) -> None:
    same("""
        XINFO STREAM s ; XINFO GROUPS s ; XINFO STREAM s FULL ; XGROUP CREATE s g 0 ; XGROUP CREATE s a 2
        XREADGROUP GROUP g x COUNT 3 STREAMS s > ; XREADGROUP GROUP g b COUNT 1 STREAMS s > ; XINFO STREAM s
        XINFO STREAM s FULL ; XINFO STREAM s FULL COUNT 2 ; XINFO STREAM s FULL COUNT 0 ; XINFO STREAM s FULL COUNT -1
        XINFO STREAM s full count 1 ; XINFO GROUPS s ; XINFO CONSUMERS s g ; XINFO CONSUMERS s a
        XINFO STREAM empty ; XINFO STREAM empty FULL ; XINFO GROUPS empty ; XINFO CONSUMERS empty e
        XTRIM s MAXLEN 2 ; XINFO STREAM s ; XINFO STREAM s FULL ; XDEL s 4 ; XINFO STREAM s ; XDEL s 5
        XINFO STREAM s
        XINFO STREAM none ; XINFO GROUPS none ; XINFO CONSUMERS none g
        XINFO STREAM string ; XINFO GROUPS string ; XINFO CONSUMERS string g ; XINFO CONSUMERS s no ; XINFO
        XINFO STREAM ; XINFO GROUPS ; XINFO CONSUMERS s ; XINFO GROUPS s x ; XINFO CONSUMERS s g x ; XINFO FOO
        XINFO FOO s
        XINFO STREAM s FOO ; XINFO STREAM s FULL COUNT ; XINFO STREAM s FULL COUNT x ; XINFO STREAM s FULL FOO 1
        XINFO STREAM s FULL COUNT 1 2 ; XINFO STREAM none FOO
    """)


def test_entries_read_and_lag(same: Same) -> None:
    """Where nothing was deleted one by one."""
    same("""
        XGROUP CREATE s g 0 ; XINFO GROUPS s ; XREADGROUP GROUP g a COUNT 1 STREAMS s > ; XINFO GROUPS s
        XREADGROUP GROUP g a COUNT 2 STREAMS s > ; XINFO GROUPS s ; XTRIM s MAXLEN 3 ; XINFO GROUPS s
        XREADGROUP GROUP g a STREAMS s > ; XINFO GROUPS s ; XTRIM s MAXLEN 1 ; XINFO GROUPS s ; XADD s 6 f v
        XADD s 7 f v ; XINFO GROUPS s
        XGROUP CREATE s mid 6 ; XGROUP CREATE s last 7 ; XGROUP CREATE s dollar $ ; XGROUP CREATE s first 5
        XGROUP CREATE s before 4 ; XGROUP CREATE s beyond 99 ; XINFO GROUPS s ; XADD s 8 f v ; XINFO GROUPS s
        XREADGROUP GROUP mid a COUNT 1 STREAMS s > ; XINFO GROUPS s ; XREADGROUP GROUP mid a STREAMS s >
        XINFO GROUPS s
        XREADGROUP GROUP first a COUNT 1 STREAMS s > ; XREADGROUP GROUP before a COUNT 1 STREAMS s > ; XINFO GROUPS s
        XREADGROUP GROUP before a COUNT 2 NOACK STREAMS s > ; XINFO GROUPS s ; XGROUP SETID s g 6 ; XINFO GROUPS s
        XREADGROUP GROUP g a STREAMS s > ; XINFO GROUPS s
    """)


@pytest.mark.parametrize("name", ["xgroup", "xinfo", "xreadgroup", "xack", "xpending", "xclaim", "xautoclaim"])
def test_command_info(emptied: Any, redis_server: Any, name: str) -> None:
    """Flags, arity, key positions and specs; categories, and subcommands in the order of their names."""

    def facts(row: Any) -> Any:
        return [
            row[0], row[1], sorted(row[2]), *row[3:6], sorted(row[6]), row[8], sorted([facts(sub) for sub in row[9]]),
        ]  # fmt: skip

    def ask(port: int) -> Any:
        with Raw(port) as client:
            return facts(client("COMMAND", "INFO", name)[0])

    assert ask(emptied.port) == ask(redis_server.port)
