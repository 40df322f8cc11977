"""What readings.yaml calls."""

from __future__ import annotations

from typing import Any


def to_celsius(reading: dict[str, Any]) -> dict[str, Any]:
    return {"day": reading["day"], "hour": reading["hour"], "celsius": round((reading["fahrenheit"] - 32) / 1.8, 2)}
