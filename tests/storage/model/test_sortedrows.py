"""Sets of rows in chunks, of which most are packed. What the table of pending messages makes of them: test_pending."""

from __future__ import annotations

import random

import pytest

from storage.groups.pendingformat import assemble
from storage.model import sortedrows


def check_chunks(part: sortedrows.SortedRows) -> None:
    chunks = [part._chunk(i) for i in range(len(part._chunks))]
    packed = [key for key, chunk in zip(part._mins, part._chunks, strict=True) if not chunk]
    assert sorted(part._packed) == ([] if chunks == [b""] else packed)
    assert part._mins[0] == b""
    assert len(part._mins) == len(part._chunks)
    assert all(chunks) or chunks == [b""]
    assert sum(map(len, chunks)) == part.count * part._width
    for i, chunk in enumerate(chunks):
        assert len(chunk) <= part._capacity
        assert part._mins[i] <= chunk
        assert i + 1 == len(chunks) or chunk[-part._width :] < part._mins[i + 1]


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(5))
def test_sets_that_are_nearly_all_packed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    for name, value in (("CHUNK_BYTES", 200), ("HOT_CHUNKS", 2), ("PACKED_FROM", 1)):
        monkeypatch.setattr(sortedrows, name, value)
    chance = random.Random(seed)
    part, model = sortedrows.SortedRows(10, 8), dict[bytes, bytes]()

    def row(key: bytes) -> bytes:
        return key + chance.randbytes(2)

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
            check_chunks(part)
            frozen, dump = part.freeze(), part.dump()
            part.delete_many([each[:8] for each in order[::7]])
            assert frozen.span(b"", b"", 10_000) == order
            assert assemble(dump)[:-4] == b"".join(order)
            for each in order[::7]:
                del model[each[:8]]
    assert part._packed
    part.delete_many(sorted(model))
    assert (part._chunks, part._mins, part._packed, part._saved) == ([b""], [b""], {}, 0)


@pytest.mark.interpreted
def test_a_run_that_ends_on_the_bound_of_a_chunk_whose_first_row_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sortedrows, "CHUNK_BYTES", 240)
    rows = sortedrows.SortedRows(8, 8)
    number = [n.to_bytes(8, "big") for n in range(120)]
    rows.fill(b"".join(number[::2]))
    bound = rows._mins[1]
    assert rows.delete(bound) == bound
    at = number.index(bound)
    rows.insert_many(number[at - 1] + bound)
    assert rows.get(bound) == bound
    assert rows.span(b"", b"", 100) == sorted({*number[::2], number[at - 1]})
