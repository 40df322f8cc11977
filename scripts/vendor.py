"""Renews the vendored files of the console. ``scripts/vendor`` runs it.

``vendor.json`` pins each npm package: its version, and the integrity of its archive as npm publishes it. This program
downloads the archives with ``npm pack``, verifies them, extracts the named files, and writes their SHA-256 to
``hashes.json``. The console and a test verify the files against these hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "tidelog/console/static/vendor"


def archive(package: str, version: str, folder: Path) -> bytes:
    """Download the archive of a package."""
    name = f"{package}@{version}"
    done = subprocess.run(["npm", "pack", "--silent", name], cwd=folder, capture_output=True, text=True, check=True)
    return (folder / done.stdout.split()[-1]).read_bytes()


def verify(data: bytes, integrity: str, what: str) -> None:
    algorithm, _, expected = integrity.partition("-")
    found = base64.b64encode(hashlib.new(algorithm, data).digest()).decode()
    if found != expected:
        sys.exit(f"{what}: the archive has the integrity {algorithm}-{found}, vendor.json has {integrity}")


def renew(pinned: list[dict[str, Any]]) -> dict[str, str]:
    """Write the files of all packages; return their hashes by name."""
    hashes = {}
    with tempfile.TemporaryDirectory(prefix="tidelog-vendor-") as scratch:
        for each in pinned:
            what = f"{each['package']} {each['version']}"
            data = archive(each["package"], each["version"], Path(scratch))
            verify(data, each["integrity"], what)
            path = Path(scratch, "archive.tgz")
            path.write_bytes(data)
            with tarfile.open(path) as opened:
                for inside, name in each["files"].items():
                    member = opened.extractfile(f"package/{inside}")
                    assert member is not None, inside
                    content = member.read()
                    (FOLDER / name).write_bytes(content)
                    hashes[name] = hashlib.sha256(content).hexdigest()
            print(f"{what}: {', '.join(each['files'].values())}")
    return hashes


def main() -> None:
    hashes = renew(json.loads((FOLDER / "vendor.json").read_text()))
    (FOLDER / "hashes.json").write_text(json.dumps(hashes, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
