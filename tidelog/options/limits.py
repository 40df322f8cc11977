"""Types of options with limits that many structures share. ``structs.read`` checks them."""

from __future__ import annotations

from typing import Annotated

import msgspec

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
