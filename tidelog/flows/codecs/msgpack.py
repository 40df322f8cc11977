"""``msgpack``, implemented with msgspec. Its time type is decoded as a datetime; other extension types are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.base import DEPTH, StatelessCodec, check_depth


def _extension(code: int, data: memoryview) -> NoReturn:  # noqa: ARG001 - msgspec's signature
    raise ValueError(f"the extension type {code} is not known")


_DECODER: Final = msgspec.msgpack.Decoder(ext_hook=_extension)
_ENCODER: Final = msgspec.msgpack.Encoder()


class MsgpackCodec(StatelessCodec):
    """Decodes and encodes one MessagePack value per message."""

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002 - a codec's signature
        try:
            value = _DECODER.decode(data)
        except RecursionError:
            raise ValueError(f"nested more than {DEPTH} deep") from None
        except TypeError as error:  # a map as a key of a map
            raise ValueError(str(error)) from None
        if len(data) > DEPTH:
            check_depth(value)
        return value

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        try:
            return _ENCODER.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RejectError(f"not encodable as MessagePack: {error}") from error
