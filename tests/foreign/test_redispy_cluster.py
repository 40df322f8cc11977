"""redis-py's own tests of its cluster client, from its source distribution, on a leader and a replica.

They run in an environment of their own in pytest's cache, which downloads pytest-asyncio and the sources once for each
version of redis-py. LEFT_OUT has the reasons for the tests that do not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import redis

from tests.replication.cluster import cluster, in_sync, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LEFT_OUT = {
    "tidelog has no bit operations on strings": "bitop",
    "tidelog has no lists": (
        "blmove blpop brpop rpoplpush lmove sort_store error_is_truncated exec_error_in_response"
        " exec_error_in_no_transaction_pipeline pipeline_readonly test_pipeline_error_records_metric_with_error"
        " test_command_error_records_metric_with_error_type"
    ),
    "tidelog has no sets": "scan_type sdiff sinter smove sunion",
    "tidelog has no sorted sets": "bzpop zdiff zinter zrangestore zunion georadius geosearch",
    "tidelog has no hashes": "acl_log",
    "tidelog has no HyperLogLog": "pfcount pfmerge",
    "tidelog has no modules, MIGRATE, ZUNIONSTORE and GEORADIUS": (
        "test_get_command_policies test_resolves_correctly_policies get_moveable_keys"
    ),
    "CLUSTER DELSLOTS is refused": "not_require_full_coverage_cluster_down_error",
    "they fail with redis-server 8.2, too": (
        "connection_leak_on_non_timeout_error_during_connect dirty_connection_not_reused"
        " return_previously_acquired_connections address_remap cluster_retry_object"
        " timeout_error_topology_refresh_reuse_connections"
    ),
}


def _run(*command: str | Path, folder: Path) -> None:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"{' '.join(map(str, command))}: {(ran.stderr.strip().splitlines() or ['failed'])[-1]}")


@pytest.fixture(scope="module")
def sources(request: pytest.FixtureRequest) -> Path:
    """The sources, without the package itself, and an environment with it."""
    folder = Path(request.config.cache.mkdir(f"redis-py-{redis.__version__}"))
    top = folder / f"redis-{redis.__version__}"
    if not (folder / "complete").exists():
        python = folder / "venv" / "bin" / "python"
        _run(sys.executable, "-m", "venv", "--clear", "venv", folder=folder)
        wanted = f"redis=={redis.__version__}"
        libraries = ("pytest", "pytest-asyncio", "pytest-timeout", "packaging", "numpy")
        _run(python, "-m", "pip", "install", "-q", wanted, *libraries, folder=folder)
        _run(python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "redis", wanted, folder=folder)
        with tarfile.open(folder / f"redis-{redis.__version__}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        (top / "redis").rename(top / "unused")  # the installed one is tested
        (folder / "complete").touch()
    return top


def test_redis_pys_own_tests(sources: Path, tmp_path: Path) -> None:
    names = [name for names in LEFT_OUT.values() for name in names.split()]
    with cluster() as made:
        leader = made.node(cluster_enabled="yes")
        replica = made.node(of=leader.port, cluster_enabled="yes")
        wait_until(lambda: in_sync(leader, replica), "in sync")
        wait_until(lambda: b"known_nodes:2" in leader.say("CLUSTER", "INFO"), "both members")
        command = [
            str(sources.parent / "venv" / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-o", "addopts=", "--timeout", "60", f"--redis-url=redis://localhost:{leader.port}/0",
            "--redis-cluster-nodes=2", "-k", f"not ({' or '.join(names)})", f"--junitxml={tmp_path}/results.xml",
            "tests/test_cluster.py", "tests/test_command_parser.py", "tests/test_command_policies.py",
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        ran = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    cases = list(ElementTree.parse(tmp_path / "results.xml").getroot().iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    assert not failed, ran.stdout[-5000:]
    passed = [case for case in cases if case.find("skipped") is None]
    assert len(passed) > 150, ran.stdout[-2000:]
