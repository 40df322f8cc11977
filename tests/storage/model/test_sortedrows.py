"""Sets of rows in chunks, of which most are packed. What the table of pending messages makes of them: test_pending."""

from __future__ import annotations

import random

import pytest

from storage.groups.pendingformat import assemble
from storage.model import sortedrows

WIDTH, KEY = 10, 8
CHUNK_BYTES = sortedrows.CHUNK_BYTES  # compiled code ignores a patch of it
COMPILED = not str(sortedrows.__file__).endswith(".py")


def packed(part: sortedrows.SortedRows) -> bool:
    return any(isinstance(chunk, sortedrows.PackedRows) for chunk in part.dump())


def check_chunks(part: sortedrows.SortedRows, width: int, key_size: int) -> None:
    chunks = [bytes(assemble([chunk])[:-4]) for chunk in part.dump()]
    assert all(chunks) or chunks == [b""]
    most = CHUNK_BYTES if COMPILED else sortedrows.CHUNK_BYTES
    assert all(len(chunk) <= most and not len(chunk) % width for chunk in chunks)
    whole = b"".join(chunks)
    rows = [whole[at : at + width] for at in range(0, len(whole), width)]
    assert len(rows) == part.count
    assert rows == sorted(rows)
    assert [part.get(row[:key_size]) for row in rows] == rows  # the bounds of the chunks lead to each


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(5))
def test_sets_that_are_nearly_all_packed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    for name, value in (("CHUNK_BYTES", 200), ("HOT_CHUNKS", 2), ("PACKED_FROM", 1)):
        monkeypatch.setattr(sortedrows, name, value)
    chance = random.Random(seed)
    part, model = sortedrows.SortedRows(WIDTH, KEY), dict[bytes, bytes]()

    def row(key: bytes) -> bytes:
        return key + chance.randbytes(WIDTH - KEY)

    def some(count: int) -> list[bytes]:
        start = chance.randrange(3000)
        return sorted({(start + chance.randrange(3 * count)).to_bytes(8, "big") for _ in range(count)})

    for turn in range(4000):
        keys = some(chance.choice((1, 2, 40)))
        new = {key: row(key) for key in keys if key not in model}
        if chance.random() < (0.6 if turn % 1000 < 700 else 0.1):
            if len(new) == 1 or chance.random() < 0.1:
                for each in new.values():
                    part.insert(each)
            elif new:
                part.insert_many(b"".join(new.values()))
            model |= new
        elif chance.random() < 0.5:
            gone = [model.pop(key) for key in keys if key in model]
            assert part.delete_many(keys) == gone
        else:
            for key in keys:
                assert part.delete(key) == model.pop(key, b"")
        order = sorted(model.values())
        key = keys[-1]
        if key in model and chance.random() < 0.3:
            changed = row(key)
            assert part.replace(changed)
            model[key] = changed
            order = sorted(model.values())
        assert part.count == len(model)
        assert part.get(key) == model.get(key, b"")
        assert part.present(keys) == [each for each in keys if each in model]
        assert part.floor(key) == max((each for each in order if each[:8] <= key), default=b"")
        assert part.above(key) == min((each for each in order if each[:8] > key), default=b"")
        assert part.span(keys[0], key, 30) == [each for each in order if keys[0] <= each < key][:30]
        assert part.between(keys[0], b"") == sum(each >= keys[0] for each in order)
        assert (part.first(), part.last()) == (order[0] if order else b"", order[-1] if order else b"")
        if turn % 50 == 0:
            check_chunks(part, WIDTH, KEY)
            frozen, dump = part.freeze(), part.dump()
            part.delete_many([each[:8] for each in order[::7]])
            assert frozen.span(b"", b"", 10_000) == order
            assert assemble(dump)[:-4] == b"".join(order)
            for each in order[::7]:
                del model[each[:8]]
    assert packed(part)
    part.delete_many(sorted(model))
    assert part.dump() == [b""]
    assert part.memory_bytes() == sortedrows.SortedRows(WIDTH, KEY).memory_bytes()


@pytest.mark.interpreted
def test_a_run_that_ends_on_the_bound_of_a_chunk_whose_first_row_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sortedrows, "CHUNK_BYTES", 240)
    rows = sortedrows.SortedRows(8, 8)
    number = [n.to_bytes(8, "big") for n in range(120)]
    rows.fill(b"".join(number[::2]))
    second = rows.dump()[1]
    assert isinstance(second, bytes)
    bound = second[:8]
    assert rows.delete(bound) == bound
    at = number.index(bound)
    rows.insert_many(number[at - 1] + bound)
    assert rows.get(bound) == bound
    assert rows.span(b"", b"", 100) == sorted({*number[::2], number[at - 1]})
