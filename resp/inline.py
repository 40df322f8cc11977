"""Inline commands: a line of words, as typed into telnet, with the quoting of Redis.

Blanks separate words. In ``"..."``, the escapes are ``\\n \\r \\t \\b \\a`` and ``\\xHH``; a backslash before any other
byte stands for that byte. In ``'...'``, the only escape is ``\\'``. A quote may open inside a word; a blank or the end
of the line must follow the closing quote.
"""

from __future__ import annotations

from resp.errors import ProtocolError

BLANKS = b" \t\n\v\f\r"  # allowed before a word and after a closing quote
ENDS = b" \t\n\r"  # end a word that is not in quotes: fewer than BLANKS, as in Redis
HEX = b"0123456789abcdefABCDEF"
ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}

QUOTE, APOSTROPHE, BACKSLASH, LETTER_X = b"\"'\\x"


def split_inline(line: bytes) -> list[bytes]:
    """Return the words of a line (without its end). Raises ProtocolError if quotes are unbalanced.

    Unlike in Redis, whose lines are C strings, a zero byte is treated like any other byte.
    """
    if QUOTE not in line and APOSTROPHE not in line and 11 not in line and 12 not in line:
        return line.split()
    words: list[bytes] = []
    at, end = 0, len(line)
    while True:
        while at < end and line[at] in BLANKS:
            at += 1
        if at == end:
            return words
        word = bytearray()
        while at < end and line[at] not in ENDS:
            byte = line[at]
            at += 1
            if byte in (QUOTE, APOSTROPHE):
                at = (_double if byte == QUOTE else _single)(line, at, word)
                if at < end and line[at] not in BLANKS:
                    raise _unbalanced()
                break
            word.append(byte)
        words.append(bytes(word))


def _double(line: bytes, at: int, word: bytearray) -> int:
    """Read the inside of ``"..."`` into ``word``; return the index after the closing quote."""
    end = len(line)
    while at < end:
        byte = line[at]
        at += 1
        if byte == QUOTE:
            return at
        if byte == BACKSLASH and at < end:
            byte = line[at]
            at += 1
            if byte == LETTER_X and at + 2 <= end and line[at] in HEX and line[at + 1] in HEX:
                byte = int(line[at : at + 2], 16)
                at += 2
            else:
                byte = ESCAPES.get(byte, byte)
        word.append(byte)
    raise _unbalanced()


def _single(line: bytes, at: int, word: bytearray) -> int:
    """Read the inside of ``'...'`` into ``word``; return the index after the closing quote."""
    end = len(line)
    while at < end:
        byte = line[at]
        at += 1
        if byte == APOSTROPHE:
            return at
        if byte == BACKSLASH and at < end and line[at] == APOSTROPHE:
            byte = APOSTROPHE
            at += 1
        word.append(byte)
    raise _unbalanced()


def _unbalanced() -> ProtocolError:
    return ProtocolError("unbalanced quotes in request")
