"""Scrapes of ``/metrics``, read with the parser of prometheus-client."""

from __future__ import annotations

import socket
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.types, f"{family.name} occurs twice"
            assert family.documentation
            self.types[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"{key} occurs twice"
                self.samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"tidelog_{name}", frozenset(labels.items())]

    def labels(self, name: str, label: str) -> set[str]:
        """The values of a label."""
        return {dict(labels)[label] for each, labels in self.samples if each == f"tidelog_{name}"}


def scrape(port: int, host: str = "127.0.0.1") -> Scrape:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Scrape(answer.read().decode())


def answer(port: int, request: bytes) -> bytes:
    """The whole reply to a request that may be invalid."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(request)
        parts = []
        while part := sock.recv(65536):
            parts.append(part)
        return b"".join(parts)
