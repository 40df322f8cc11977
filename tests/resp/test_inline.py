from __future__ import annotations

import socket

import pytest

from resp.decode import RequestDecoder, SharedDecoding
from resp.errors import ProtocolError
from resp.inline import split_inline
from tests.conftest import RedisServer

WORDS: list[tuple[bytes, list[bytes]]] = [
    (b"", []),
    (b" \t\v\f\r ", []),
    (b"PING", [b"PING"]),
    (b"  set  key\tvalue ", [b"set", b"key", b"value"]),
    (b'"a b"', [b"a b"]),
    (b"'a b' c", [b"a b", b"c"]),
    (b'""', [b""]),
    (b"'' \"\"", [b"", b""]),
    (rb'"\x00\xfF\x4a"', [b"\0\xffJ"]),
    (rb'"\n\r\t\b\a\\\"\q"', [b'\n\r\t\b\a\\"q']),
    (rb'"\xg1\x4"', [b"xg1x4"]),
    (rb"'\n\'\x41\"'", [rb"\n'\x41" + b'\\"']),
    (rb"a\nb \ ", [rb"a\nb", b"\\"]),
    (b'foo"bar baz"', [b"foobar baz"]),
    (b"foo'bar baz' x", [b"foobar baz", b"x"]),
    (b'"it\'s" \'say "hi"\'', [b"it's", b'say "hi"']),
    (b"a\vb 'c'\vd", [b"a\vb", b"c", b"d"]),
    (b"\xc3\xa9 \xff", [b"\xc3\xa9", b"\xff"]),
]
UNBALANCED = [b'"', b"'", b'"a', b"'a", b'a "b', b'"a"b', b"'a'b", b"\"a\"'b'", b'a"b"c', rb'"a\"', rb"'a\'", b'"\\']


@pytest.mark.parametrize(("line", "words"), WORDS)
def test_words(line: bytes, words: list[bytes]) -> None:
    assert split_inline(line) == words


@pytest.mark.parametrize("line", UNBALANCED)
def test_unbalanced(line: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^unbalanced quotes in request$"):
        split_inline(line)


# -- as a real redis-server does -----------------------------------------------------------------------------
def ask(port: int, request: bytes) -> bytes:
    """Everything that the server sends until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(request)
        answer = b""
        while (data := sock.recv(65536)) != b"":
            answer += data
        return answer


@pytest.mark.parametrize("line", [line for line, words in WORDS if len(words) == 1 and words != [b"PING"]])
def test_redis_splits_alike(line: bytes, redis_server: RedisServer) -> None:
    [word] = split_inline(line)
    assert ask(redis_server.port, b"ECHO " + line + b"\r\nQUIT\r\n") == b"$%d\r\n%b\r\n+OK\r\n" % (len(word), word)


@pytest.mark.parametrize(
    "request_",
    [b"ECHO " + line + b"\r\n" for line in UNBALANCED]
    + [
        b"*x\r\n", b"*01\r\n", b"*\r\n", b"*-0\r\n", b"*+1\r\n", b"*9999999999\r\n", b"*1\n$1\r\n",
        b"*1\r\n:5\r\n", b"*1\r\n*1\r\n",
        b"*1\r\n\r\n", b"*1\r\nx\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$01\r\n", b"*1\r\n$\r\n", b"*1\r\n$536870913\r\n",
        b"*0\r\n*-5\r\n*x\r\n", b"x" * 70_000, b"*" + b"1" * 70_000, b"*1\r\n$" + b"1" * 70_000,
    ],
    ids=lambda r: repr(r[:24]),
)  # fmt: skip
def test_redis_breaks_off_alike(request_: bytes, redis_server: RedisServer) -> None:
    decoder = RequestDecoder(SharedDecoding())
    assert decoder.calls(request_) == []
    text = str(decoder.error).replace("\r", " ")
    try:
        answer = ask(redis_server.port, request_)
    except ConnectionResetError:  # closed while it had not read all: the reply may be lost
        answer = b"-ERR Protocol error: %b\r\n" % text.encode() if len(request_) > 65536 else b""
    assert answer == b"-ERR Protocol error: %b\r\n" % text.encode()
