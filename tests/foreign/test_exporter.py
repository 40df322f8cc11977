"""prometheus-redis-exporter: it scrapes INFO, CONFIG, SLOWLOG, LATENCY, and the streams that it is told to look at."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest
import redis

from tests.foreign.servers import Target, until
from tidelog.testing import free_port


@pytest.fixture
def exporter(target: Target) -> Iterator[str]:
    """Where its metrics are."""
    program = shutil.which("prometheus-redis-exporter") or shutil.which("redis_exporter")
    if program is None:
        pytest.skip("no redis_exporter here (Debian: apt-get install prometheus-redis-exporter)")
    port = free_port()
    command = [program, "-redis.addr", target.url, "-web.listen-address", f"127.0.0.1:{port}", "-check-streams", "s*"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/"

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url + "health", timeout=5):
                return True
        except OSError:
            return False

    try:
        until(answers)
        yield url + "metrics"
    finally:
        process.kill()
        process.wait()


def test_metrics_of_streams(target: Target, exporter: str) -> None:
    with redis.Redis(port=target.port) as client:
        for number in range(1, 6):
            client.xadd("s1", {"n": number}, id=f"{number}-0")
        client.xgroup_create("s1", "g", id="0")
        client.xreadgroup("g", "c", {"s1": ">"}, count=3)
        client.xack("s1", "g", "1-0")
        client.set("string", "x")
    with urllib.request.urlopen(exporter, timeout=10) as page:
        text = page.read().decode()
    metrics = dict(re.findall(r"^(redis_\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))
    assert metrics["redis_up"] == "1"
    assert metrics['redis_exporter_last_scrape_error{err=""}'] == "0"
    assert metrics['redis_stream_length{db="db0",stream="s1"}'] == "5"
    assert metrics['redis_stream_groups{db="db0",stream="s1"}'] == "1"
    assert metrics['redis_stream_group_consumers{db="db0",group="g",stream="s1"}'] == "1"
    assert metrics['redis_stream_group_messages_pending{db="db0",group="g",stream="s1"}'] == "2"
    assert metrics['redis_stream_group_consumer_messages_pending{consumer="c",db="db0",group="g",stream="s1"}'] == "2"
    assert float(metrics['redis_stream_group_consumer_idle_seconds{consumer="c",db="db0",group="g",stream="s1"}']) >= 0
    assert metrics['redis_db_keys{db="db0"}'] == "2"
    assert float(metrics['redis_commands_total{cmd="xadd"}']) >= 5
    for name in ("memory_used_bytes", "connected_clients", "uptime_in_seconds", "slowlog_length"):
        assert float(metrics["redis_" + name]) >= 0
