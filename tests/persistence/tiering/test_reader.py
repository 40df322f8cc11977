"""The order in which the process reads sections."""

from __future__ import annotations

from persistence.tiering.reader import RequestQueue


def test_sections_that_commands_wait_for_come_first() -> None:
    queue = RequestQueue()
    for number, urgent in enumerate([False, False, True, False, False, True, True, True]):
        queue.put({"id": number, "object": "o", "urgent": urgent})
    queue.put({"id": 4, "urgent": True})
    queue.put({"id": 4, "urgent": True})
    queue.put({"id": 2, "urgent": True})
    queue.put({"id": 99, "urgent": True})
    assert [queue.take()["id"] for _ in range(8)] == [2, 5, 6, 0, 7, 4, 1, 3], "each fourth one is one of the others"
    queue.put({"id": 8, "object": "o", "urgent": False})
    queue.put({"id": 99, "urgent": True})
    assert queue.take()["id"] == 8
