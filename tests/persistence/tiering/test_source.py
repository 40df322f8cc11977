"""Read transactions of other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from persistence.store import Store

READER = """
import sys
from pathlib import Path
from persistence.tiering import source
with source.opened(Path(sys.argv[1])) as view:
    print(view.offset, flush=True)
    sys.stdin.read()
"""


def test_the_transaction_of_a_killed_process_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "0\n"
        store.forget_dead_readers()
        assert str(reader.pid) in store.env.readers()
        reader.kill()
        reader.wait()
        assert str(reader.pid) in store.env.readers()
        store.forget_dead_readers()
        assert str(reader.pid) not in store.env.readers()
    store.close()
