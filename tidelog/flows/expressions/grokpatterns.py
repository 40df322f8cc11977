"""The library of grok patterns.

The names are those of Logstash. The patterns are written for RE2, which has no look-around. A pattern such as ``INT``
can therefore match a part of a longer word.
"""

from __future__ import annotations

from typing import Final

_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
GROK: Final[dict[str, str]] = {
    # words and numbers
    "WORD": r"\b\w+\b",
    "NOTSPACE": r"\S+",
    "SPACE": r"\s*",
    "DATA": r".*?",
    "GREEDYDATA": r".*",
    "USERNAME": r"[a-zA-Z0-9._-]+",
    "USER": "%{USERNAME}",
    "INT": r"[+-]?[0-9]+",
    "POSINT": r"\b[1-9][0-9]*\b",
    "NONNEGINT": r"\b[0-9]+\b",
    "BASE10NUM": r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)",
    "NUMBER": "%{BASE10NUM}",
    "BASE16NUM": r"[+-]?(?:0x)?[0-9A-Fa-f]+",
    "QUOTEDSTRING": r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""",
    "QS": "%{QUOTEDSTRING}",
    "UUID": r"[A-Fa-f0-9]{8}-(?:[A-Fa-f0-9]{4}-){3}[A-Fa-f0-9]{12}",
    "EMAILADDRESS": r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]+@%{HOSTNAME}",
    # networks
    "MAC": r"(?:[A-Fa-f0-9]{2}[:-]){5}[A-Fa-f0-9]{2}|(?:[A-Fa-f0-9]{4}\.){2}[A-Fa-f0-9]{4}",
    "IPV4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "IPV6": r"(?:[A-Fa-f0-9]{0,4}:){2,7}(?:%{IPV4}|[A-Fa-f0-9]{0,4})(?:%[0-9A-Za-z]+)?",
    "IP": "(?:%{IPV6}|%{IPV4})",
    "HOSTNAME": r"\b[0-9A-Za-z](?:[0-9A-Za-z-]{0,62})(?:\.[0-9A-Za-z][0-9A-Za-z-]{0,62})*\.?",
    "IPORHOST": "(?:%{IP}|%{HOSTNAME})",
    "HOSTPORT": "%{IPORHOST}:%{POSINT}",
    # paths and URLs
    "UNIXPATH": r"(?:/[^\s/]*)+",
    "WINPATH": r"(?:[A-Za-z]+:|\\)(?:\\[^\\?*\s]*)+",
    "PATH": "(?:%{UNIXPATH}|%{WINPATH})",
    "URIPROTO": r"[A-Za-z][A-Za-z0-9+.-]+",
    "URIHOST": "%{IPORHOST}(?::%{POSINT})?",
    "URIPATH": r"(?:/[A-Za-z0-9$.+!*'(){},~:;=@#%&_-]*)+",
    "URIPARAM": r"\?[A-Za-z0-9$.+!*'|(){},~@#%&/=:;_?\[\]<>-]*",
    "URIPATHPARAM": "%{URIPATH}(?:%{URIPARAM})?",
    "URI": r"%{URIPROTO}://(?:%{USER}(?::[^@]*)?@)?(?:%{URIHOST})?(?:%{URIPATHPARAM})?",
    # times
    "MONTH": (
        r"\b(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:tember)?|Oct(?:ober)?"
        r"|Nov(?:ember)?|Dec(?:ember)?)\b"
    ),
    "MONTHNUM": "(?:0?[1-9]|1[0-2])",
    "MONTHDAY": "(?:0[1-9]|[12][0-9]|3[01]|[1-9])",
    "DAY": r"(?:Mon(?:day)?|Tue(?:sday)?|Wed(?:nesday)?|Thu(?:rsday)?|Fri(?:day)?|Sat(?:urday)?|Sun(?:day)?)",
    "YEAR": r"[0-9]{2}(?:[0-9]{2})?",
    "HOUR": "(?:2[0123]|[01]?[0-9])",
    "MINUTE": "[0-5][0-9]",
    "SECOND": "(?:[0-5]?[0-9]|60)(?:[:.,][0-9]+)?",
    "TIME": "%{HOUR}:%{MINUTE}(?::%{SECOND})?",
    "DATE_US": "%{MONTHNUM}[/-]%{MONTHDAY}[/-]%{YEAR}",
    "DATE_EU": "%{MONTHDAY}[./-]%{MONTHNUM}[./-]%{YEAR}",
    "ISO8601_TIMEZONE": "(?:Z|[+-]%{HOUR}(?::?%{MINUTE})?)",
    "TIMESTAMP_ISO8601": (
        "%{YEAR}-%{MONTHNUM}-%{MONTHDAY}[T ]%{HOUR}:?%{MINUTE}(?::?%{SECOND})?(?:%{ISO8601_TIMEZONE})?"
    ),
    "TZ": "(?:[A-Z]{3,4})",
    "HTTPDATE": "%{MONTHDAY}/%{MONTH}/%{YEAR}:%{TIME} %{INT}",
    "SYSLOGTIMESTAMP": "%{MONTH} +%{MONTHDAY} %{TIME}",
    "DATESTAMP_RFC2822": "%{DAY}, %{MONTHDAY} %{MONTH} %{YEAR} %{TIME} %{ISO8601_TIMEZONE}",
    # lines of logs
    "LOGLEVEL": (
        "(?i:trace|debug|notice|info(?:rmation)?|warn(?:ing)?|err(?:or)?|crit(?:ical)?|fatal|severe|alert"
        "|emerg(?:ency)?)"
    ),
    "PROG": r"[\x21-\x5a\x5c\x5e-\x7e]+",
    "SYSLOGPROG": r"%{PROG:process}(?:\[%{POSINT:pid:int}\])?",
    "SYSLOGHOST": "%{IPORHOST}",
    "SYSLOGLINE": r"%{SYSLOGTIMESTAMP:timestamp} (?:%{SYSLOGHOST:host} )?%{SYSLOGPROG}: %{GREEDYDATA:message}",
    "HTTPDUSER": "(?:%{EMAILADDRESS}|%{USER}|-)",
    "COMMONAPACHELOG": (
        r"%{IPORHOST:clientip} %{HTTPDUSER:ident} %{HTTPDUSER:auth} \[%{HTTPDATE:timestamp}\] "
        r'"(?:%{WORD:verb} %{NOTSPACE:request}(?: HTTP/%{NUMBER:httpversion})?|%{DATA:rawrequest})" '
        r"%{INT:response:int} (?:%{INT:bytes:int}|-)"
    ),
    "COMBINEDAPACHELOG": r"%{COMMONAPACHELOG} %{QS:referrer} %{QS:agent}",
}
