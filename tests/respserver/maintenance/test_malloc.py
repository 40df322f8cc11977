"""Freed memory between blocks in use is returned to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
from respserver.observe.stats import process_memory
from respserver.maintenance.checkpoints import trim_memory
before = process_memory().anonymous
blocks = [bytes(3000) for _ in range(20_000)]
full = process_memory().anonymous
kept = blocks[::100]
del blocks
trim_memory()
print(before, full, process_memory().anonymous)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_freed_memory_is_returned() -> None:
    out = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    before, full, after = map(int, out.split())
    assert full - before > 50_000_000
    assert after - before < (full - before) / 5
