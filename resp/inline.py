"""Inline commands: a line of words, as typed into telnet. Quoting is Redis's (sdssplitargs)."""

from __future__ import annotations

from resp.errors import ProtocolError

_SPACE = b" \t\n\r\v\f\0"
_ESCAPES = {0x6E: 0x0A, 0x72: 0x0D, 0x74: 0x09, 0x62: 0x08, 0x61: 0x07}  # n r t b a
_HEX = b"0123456789abcdefABCDEF"


def split_inline(line: bytes) -> list[bytes]:
    """The words of a line: bare, ``"..."`` with escapes, or ``'...'`` with ``\\'``. Raises ProtocolError."""
    words: list[bytes] = []
    at, end = 0, len(line)
    while True:
        while at < end and line[at] in _SPACE:
            at += 1
        if at >= end:
            return words
        word = bytearray()
        quote = 0
        while True:
            if at >= end:
                if quote:
                    raise ProtocolError("unbalanced quotes in request")
                break
            char = line[at]
            if quote:
                if char == 0x5C and quote == 0x22 and line[at + 1 : at + 2] == b"x" and _is_hex(line[at + 2 : at + 4]):
                    word.append(int(line[at + 2 : at + 4], 16))
                    at += 3
                elif char == 0x5C and quote == 0x22 and at + 1 < end:
                    at += 1
                    word.append(_ESCAPES.get(line[at], line[at]))
                elif char == 0x5C and quote == 0x27 and line[at + 1 : at + 2] == b"'":
                    at += 1
                    word.append(0x27)
                elif char == quote:
                    if at + 1 < end and line[at + 1] not in _SPACE:
                        raise ProtocolError("unbalanced quotes in request")
                    at += 1
                    break
                else:
                    word.append(char)
            elif char in _SPACE:
                break
            elif char in (0x22, 0x27):
                quote = char
            else:
                word.append(char)
            at += 1
        words.append(bytes(word))


def _is_hex(two: bytes) -> bool:
    return len(two) == 2 and two[0] in _HEX and two[1] in _HEX
