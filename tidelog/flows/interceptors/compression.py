"""Compression: gzip, zlib, zstd, lz4 (frames), and ``decompress``, which detects the format.

Rule 1: Output is produced in small steps and counted, so output beyond the limit costs little more than the limit.
Rule 2: Consecutive members or frames are one message, as in files. Skippable frames (RFC 8878, 3.1.2), which pzstd and
        seekable files contain, and zero bytes that pad gzip files, are ignored.
Rule 3: With ``stream: true`` the bytes are one compressed stream in portions of any size. The preprocessor is placed
        before the one that splits the stream.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Final

import zstandard

from tidelog.flows.interceptors.base import BadMessage, BrokenStreamError, MessagePostprocessor
from tidelog.options.structs import Struct

STEP: Final = 64 << 10  # bytes of output at a time
GIVEN: Final = 4 << 10  # bytes of input at a time: the rest after a member is copied, and there can be thousands
ZSTD_STEP: Final = 1 << 10  # bytes of input for zstd at a time, which become at most 32 MB
ZSTD_WINDOW: Final = 8 << 20  # maximum memory for a frame in bytes (RFC 8878, 3.1.1.1.2)
PORTION: Final = 64  # for a stream: limit of the output of one portion, as a multiple of ``most``

GZIP, ZSTD, LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
SKIPPABLE: Final = b"\x2a\x4d\x18"  # of zstd and lz4, after a byte from 0x50 to 0x5f


class DecompressedTooLongError(ValueError):
    """The output exceeds the limit."""


class _Member:
    """One member or frame."""

    rest = b""  # the bytes after its end
    eof = False  # whether it is complete

    _object: Any  # of the format's library
    _errors: tuple[type[Exception], ...] = ()  # that it raises if the input is not valid

    def run(self, data: bytes) -> Iterator[bytes]:
        """Yield the output in small pieces. Raises ValueError if the input is not valid."""
        more = True
        while more and not self.eof:
            try:
                made: bytes = self._object.decompress(data, STEP)
            except self._errors as error:
                raise ValueError(str(error)) from None
            if made:
                yield made
            data, more = self._rest_of(made)
            if self._object.eof:
                self.eof = True
                self.rest = self._object.unused_data or b""

    def _rest_of(self, made: bytes) -> tuple[bytes, bool]:
        """Return the remaining input after a step, and whether another step can produce output."""
        raise NotImplementedError


class _Zlib(_Member):
    _errors = (zlib.error,)

    def __init__(self, bits: int) -> None:
        self._object = zlib.decompressobj(bits)

    def _rest_of(self, made: bytes) -> tuple[bytes, bool]:
        left: bytes = self._object.unconsumed_tail
        return left, bool(left) or len(made) == STEP


class _Zstd(_Member):
    def __init__(self) -> None:
        self._object = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()

    def run(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), ZSTD_STEP):
            try:
                made = self._object.decompress(data[at : at + ZSTD_STEP])
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from None
            if made:
                yield made
            if self._object.eof:
                self.eof = True
                self.rest = self._object.unused_data + data[at + ZSTD_STEP :]
                return


class _Lz4(_Member):
    _errors = (RuntimeError,)

    def __init__(self) -> None:
        self._object = _lz4().LZ4FrameDecompressor()

    def _rest_of(self, made: bytes) -> tuple[bytes, bool]:
        return b"", bool(made) and not self._object.needs_input


class _Skipped(_Member):
    """A skippable frame: a magic number, the size in 4 bytes, and content of that size to ignore."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # remaining bytes, once the size is known

    def run(self, data: bytes) -> Iterator[bytes]:
        if len(self._head) < 8:
            taken = 8 - len(self._head)
            self._head, data = self._head + data[:taken], data[taken:]
            if len(self._head) < 8:
                return
            self._left = int.from_bytes(self._head[4:], "little")
        taken = min(self._left, len(data))
        self._left -= taken
        if not self._left:
            self.eof = True
            self.rest = data[taken:]
        yield from ()


def _lz4() -> Any:
    try:
        import lz4.frame  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ValueError("lz4 needs the package 'lz4': pip install 'tidelog[flows-all]'") from None
    return lz4.frame


class DecompressOptions(Struct):
    """Options of preprocessors that decompress."""

    stream: bool = False  # `false`: each message is compressed by itself. `true`: one compressed stream.


class _Decompress:
    Options = DecompressOptions
    name = ""
    new: ClassVar[Callable[[], _Member]]  # creates the decoder of a member
    padded = False  # zero bytes may follow a member
    skippable = False  # skippable frames are allowed before, between and after the others

    def __init__(self, options: DecompressOptions, most: int) -> None:
        self._stream = options.stream
        self._most = most
        self._member: _Member | None = None
        self._head = b""  # of a stream: bytes that are too few to detect the format
        self._begun = False  # a member or frame has begun

    def member(self, head: bytes) -> _Member | None:  # noqa: ARG002 - only decompress inspects it
        """Return the decoder for input that begins with these bytes; None: more bytes are needed.

        Raises ValueError if the format is unknown.
        """
        return type(self).new()

    def feed(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        if self._stream:
            try:
                self._portion(data, self._most * PORTION, pieces)
            except ValueError as error:
                raise BrokenStreamError(f"{self.name}: {error}", pieces) from None
            return pieces
        try:
            return [self.message(data)]
        except ValueError as error:
            return [BadMessage.of(data, f"{self.name}: {error}")]

    def message(self, data: bytes) -> bytes:
        """Return a whole message. Raises DecompressedTooLongError, or ValueError if the data is not valid."""
        pieces: list[bytes] = []
        try:
            self._portion(data, self._most, pieces)
            if self._member is not None or self._head:
                raise ValueError("the data ends too early")
        finally:
            self._member, self._head, self._begun = None, b"", False
        return b"".join(pieces)

    def _portion(self, data: bytes, most: int, pieces: list[bytes]) -> None:
        size = 0
        for at in range(0, len(data), GIVEN):
            left, self._head = self._head + data[at : at + GIVEN], b""
            while left:
                if self._member is None:
                    if self._begun and self.padded:
                        left = left.lstrip(b"\0")
                        if not left:
                            break
                    self._begun = True
                    self._member = self._next(left)
                    if self._member is None:
                        self._head = left
                        break
                for piece in self._member.run(left):
                    size += len(piece)
                    if size > most:
                        raise DecompressedTooLongError(f"decompressed, it has more than {most} bytes")
                    pieces.append(piece)
                left = b""
                if self._member.eof:
                    left, self._member = self._member.rest, None

    def _next(self, head: bytes) -> _Member | None:
        if self.skippable and 0x50 <= head[0] <= 0x5F and SKIPPABLE.startswith(head[1:4]):
            return _Skipped() if len(head) >= 4 else None
        return self.member(head)

    def end(self) -> list[bytes]:
        begun = self._member is not None or self._head
        self._member, self._head, self._begun = None, b"", False
        return [BadMessage.of(b"", f"{self.name}: the stream ended within compressed data")] if begun else []


class Gunzip(_Decompress):
    """Decompresses gzip with one or several members."""

    name = "gzip"
    new = partial(_Zlib, 31)
    padded = True


class Unzlib(_Decompress):
    """Decompresses zlib (RFC 1950)."""

    name = "zlib"
    new = partial(_Zlib, 15)
    padded = True


class Inflate(_Decompress):
    """Decompresses the encoding ``deflate`` of HTTP: zlib, but some clients omit its header."""

    name = "deflate"

    def member(self, head: bytes) -> _Member:
        return _Zlib(15 if head[0] & 15 == 8 else -15)


class Unzstd(_Decompress):
    """Decompresses Zstandard. A frame that needs a window of more than 8 MB is rejected."""

    name = "zstd"
    new = _Zstd
    skippable = True


class Unlz4(_Decompress):
    """Decompresses LZ4 frames."""

    name = "lz4"
    new = _Lz4
    skippable = True

    def __init__(self, options: DecompressOptions, most: int) -> None:
        super().__init__(options, most)
        _lz4()


class Decompress(_Decompress):
    """Detects the format and decompresses."""

    name = "decompress"
    padded = True
    skippable = True

    def member(self, head: bytes) -> _Member | None:
        if head.startswith(GZIP):
            return _Zlib(31)
        if head.startswith(ZSTD):
            return _Zstd()
        if head.startswith(LZ4):
            return _Lz4()
        if len(head) >= 2 and head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
            return _Zlib(15)
        if len(head) < 4 and (len(head) < 2 or any(each.startswith(head) for each in (ZSTD, LZ4))):
            return None
        raise ValueError(f"the data begins with {head[:4].hex(' ')}: it is neither gzip, zlib, zstd nor lz4")


# -- postprocessors ------------------------------------------------------------------------------------------
class CompressionOptions(Struct):
    """Options of postprocessors that compress."""

    level: int | None = None
    # `gzip` and `zlib`: 0 to 9, `zstd`: 1 to 19, `lz4`: 0 to 16. `null`: the default of the format's library.


class _Compress(MessagePostprocessor):
    """Compresses each message into a member or frame of its own. Together they form a valid file."""

    Options = CompressionOptions
    levels = (0, 9)

    def __init__(self, options: CompressionOptions) -> None:
        low, high = self.levels
        if options.level is not None and not low <= options.level <= high:
            raise ValueError(f"level is {options.level}: it must be from {low} to {high}")
        self._level = options.level


class Gzip(_Compress):
    """Compresses as gzip without a time, so the same message gives the same bytes."""

    def process(self, data: bytes) -> list[bytes]:
        return [gzip.compress(data, 6 if self._level is None else self._level, mtime=0)]


class Zlib(_Compress):
    """Compresses as zlib (RFC 1950)."""

    def process(self, data: bytes) -> list[bytes]:
        return [zlib.compress(data, -1 if self._level is None else self._level)]


class Zstd(_Compress):
    """Compresses as Zstandard. Higher levels are not allowed, because reading needs more memory than Unzstd allows."""

    levels = (1, 19)

    def __init__(self, options: CompressionOptions) -> None:
        super().__init__(options)
        self._object = zstandard.ZstdCompressor(3 if self._level is None else self._level)

    def process(self, data: bytes) -> list[bytes]:
        return [self._object.compress(data)]


class Lz4(_Compress):
    """Compresses as LZ4 frames."""

    levels = (0, 16)

    def __init__(self, options: CompressionOptions) -> None:
        super().__init__(options)
        self._frame = _lz4()

    def process(self, data: bytes) -> list[bytes]:
        made: bytes = self._frame.compress(data, compression_level=self._level or 0)
        return [made]
