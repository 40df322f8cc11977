"""SIGKILL at random moments while batches, checkpoints and large batches run; the log alone, without a server."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.keyspace.values import String
from storage.streams.stream import Stream
from tests.persistence.datakit import append, opened

WRITER = """
import random, sys, threading
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
from tests.persistence.datakit import append, commit, opened
from tests.storage.streams.captures import all_stored, whole_capture
rng = random.Random(int(sys.argv[3]))
with opened(Path(sys.argv[1]), appendfsync=sys.argv[2], journal_flush_ms=2) as (log, ks, _):
    running = None
    while True:
        stream = append(ks, b"a", rng.choice((1, 3)), pad=rng.choice((0, 100, 3000)))
        ks.set_string(b"n", b"%d" % stream.last_ms, 0)  # in one batch with it
        if rng.random() < 0.01:
            ks.set_string(b"big", b"x" * 200_000)
        if stream.length > 500:
            ks.evict(b"a", stream, stream.first_ord + 200, stream.id_at(stream.first_ord + 199))
        commit(log, ks)
        sys.stdout.write(f"{{stream.last_ms}}\\n")
        sys.stdout.flush()
        if running is None and rng.random() < 0.05:
            capture = whole_capture(ks)
            running = threading.Thread(target=log.checkpoint, args=(capture, log.offset))
            running.start()
        elif running is not None and not running.is_alive():
            log.renew_view()
            all_stored(ks, capture)
            running = None
"""


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_killed_at_any_moment(tmp_path: Path, fsync: str) -> None:
    here = Path(__file__).parent
    program = WRITER.format(root=str(here.parents[1]), here=str(here))
    rng = random.Random(fsync)
    acknowledged = stored = 0
    for turn in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), fsync, str(turn)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            for _ in range(rng.randrange(1, 400)):
                line = child.stdout.readline()
                assert line, "the writer ended by itself"
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().splitlines(keepends=True)
        lines = [line for line in [line, *rest] if line.endswith(b"\n")]
        acknowledged = int(lines[-1])
        with opened(tmp_path) as (log, ks, _):
            stream, number = ks.keys[b"a"], ks.keys[b"n"]
            assert isinstance(stream, Stream)
            assert isinstance(number, String)
            assert stream.last_ms >= acknowledged
            assert int(number.value) == stream.last_ms, "a batch was torn"
            assert stream.last_ms - acknowledged <= 3, "more than the one batch in flight came from nowhere"
            assert stream.raw_ids(stream.seek(0), stream.next_ord) == [
                ((ordinal + 1) << 64).to_bytes(16, "big") for ordinal in range(stream.first_ord, stream.next_ord)
            ]
            stored = max(stored, log.store.offset)
            append(ks, b"a", 0)
    assert acknowledged > 100
    assert stored, "no checkpoint happened: the test shows too little"
