"""URLs in logs, errors and status have no secrets."""

from __future__ import annotations

import json
import logging
import time

import pytest

from tidelog.cli.logs import JsonFormatter, text_formatter
from tidelog.operating.redaction import is_secret, redacted

SHOWN = (
    ("redis://user:pa55@host/0", "redis://***@host/0"),
    ("redis://:pa/s?s#w@host:1,redis://:x@other", "redis://***@host:1,redis://***@other"),
    ("redis+sentinel://u:p@host,other/service", "redis+sentinel://***@host,other/service"),
    ("rediss://host?ssl_ca_certs=/etc/ca.pem&password=pp", "rediss://host?ssl_ca_certs=/etc/ca.pem&password=***"),
    ("unix://u:p@/run/server.sock?db=1", "unix://***@/run/server.sock?db=1"),
    ("https://host/in?api_key=x&page=2&access_token=y", "https://host/in?api_key=***&page=2&access_token=***"),
    ("https://host/in?sig=a&code=b;pwd=c&key=d#token=e", "https://host/in?sig=***&code=***;pwd=***&key=***#token=***"),
    ("https://host/?%73ig=a&x-functions-key=b&sessionKey=c", "https://host/?%73ig=***&x-functions-key=***&sessionKey=***"),
    ("https://b.example.org/?X-Amz-Credential=a&X-Amz-Signature=b&X-Amz-Date=c",
     "https://b.example.org/?X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-Date=c"),
    ("https://host/?sv=2024-11-04&anything=k3J9sdf8sdKJsd9f8sdf&keyboard=qwerty",
     "https://host/?sv=2024-11-04&anything=***&keyboard=qwerty"),
    ("WSS://u:p@host/?SIG=1", "WSS://***@host/?SIG=***"),
    ("see 'http://host/x?key=1', or \"http://u:p@host\"", "see 'http://host/x?key=***', or \"http://***@host\""),
    ("http://host/?to=a@example.org&page=1", "http://host/?to=a@example.org&page=1"),
    ("http://host/a?" + "n" * 300 + "=v", "http://host/a?" + "n" * 300 + "=***"),
    ("no URL, user:password@host, key=1", "no URL, user:password@host, key=1"),
    ("tcp://host:1 is down; http://host/?key=", "tcp://host:1 is down; http://host/?key="),
)  # fmt: skip


@pytest.mark.parametrize(("given", "shown"), SHOWN, ids=[given[:40] for given, _ in SHOWN])
def test_secrets_are_hidden(given: str, shown: str) -> None:
    assert redacted(given) == shown
    assert redacted(shown) == shown


def test_names_of_options_that_hold_secrets() -> None:
    secret = ("password", "sasl_plain_password", "api_key", "apikey", "token", "auth", "headers", "clientSecret")
    plain = ("key", "code", "url", "id", "hash", "consumer")
    assert all(map(is_secret, secret))
    assert not any(map(is_secret, plain))


@pytest.mark.parametrize(
    "text",
    ["http://h/" + "?pass" * 50_000, "://" * 80_000, "http://" + "@" * 250_000, "http://h?" + "&a;b=;" * 40_000,
     "http://h/?" + "A" * 250_000 + "=1", "redis://" + "a," * 120_000],
)  # fmt: skip
def test_long_text_takes_linear_time(text: str) -> None:
    began = time.process_time()
    redacted(text)
    assert time.process_time() - began < 2  # a quadratic one takes minutes


def test_programs_log_no_secrets() -> None:
    try:
        raise ConnectionError("redis://:pa55@host refuses")
    except ConnectionError as error:
        record = logging.LogRecord(
            "tidelog.flows", logging.ERROR, "x.py", 1, "no answer from %s", ("http://host/?sig=pa55",),
            (type(error), error, error.__traceback__),
        )  # fmt: skip
    for formatter in (text_formatter(), JsonFormatter()):
        text = formatter.format(record)
        assert "pa55" not in text
        assert "http://host/?sig=***" in text
    assert json.loads(JsonFormatter().format(record))["message"] == "no answer from http://host/?sig=***"
