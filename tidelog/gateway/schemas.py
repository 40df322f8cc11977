"""JSON schemas of bodies, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from tidelog.gateway.limits import ENTRIES

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Return the schema of an object. required: the names that are always there."""
    return {"type": "object", "properties": properties, "required": list(required)}


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
FLAG: Final[Schema] = {"type": "boolean"}
ID: Final[Schema] = {"type": "string", "examples": ["1700000000000.0"]}
_PAIR: Final = array(ref("Value"), minItems=2, maxItems=2)

_LIMIT: Final = {"type": ["integer", "null"], "minimum": 0}

IDS: Final = record(("ids",), ids=array(ID, minItems=1, maxItems=ENTRIES))
ACKNOWLEDGED: Final = record(("acknowledged",), acknowledged=NUMBER)
RETURNED: Final = record(("returned",), returned=NUMBER)
EVICTED: Final = record(("evicted",), evicted=NUMBER)
DELAYED: Final = record(("tokens",), tokens=array(TEXT))
GROUPS: Final = record(
    ("groups",),
    groups=array(record(("group", "offset", "pending"), group=ref("Value"), offset=ID, pending=NUMBER, readers=NUMBER)),
)
DELAYED_PAGE: Final = record(
    ("entries", "cursor"), cursor={"type": ["string", "null"]},
    entries=array(record(("token", "at", "fields"), token=ref("Value"), at=TEXT, fields=ref("Fields"))),
)  # fmt: skip
RETENTION: Final = record(
    maxcount=_LIMIT | {"description": "retain the newest entries, up to this number"},
    maxage={"type": ["number", "string", "null"],
            "description": "retain entries that are younger: seconds, or text such as 7d"},
    maxbytes={"type": ["integer", "string", "null"],
              "description": "retain the newest entries whose sizes add up to this, such as 10MB"},
    groups=FLAG | {"description": "retain entries that a group has not read or acknowledged"},
    limit=_LIMIT | {"description": "the number of entries up to which groups retains entries"},
    exact=FLAG | {"description": "evict single entries, not only whole nodes"},
)  # fmt: skip
LOCAL_HISTORY: Final = record(
    age={"type": ["number", "string", "null"],
         "description": "entries that are younger stay local: seconds, or text such as 7d"},
    bytes={"type": ["integer", "string", "null"],
           "description": "the newest nodes with this size in the store stay local, such as 1GB"},
) | {"minProperties": 1, "maxProperties": 1}  # fmt: skip
TOKEN: Final = record(
    ("key",), key=ref("Value"),
    ttl={"type": ["number", "string"], "default": 3600, "description": "seconds, or text such as 15m; at most a day"},
)  # fmt: skip
ISSUED: Final = record(("token", "expires"), token=TEXT, expires={"type": "string", "format": "date-time"})
APPENDED: Final = record(("ids",), ids=array(ID))
PAGE_OBJECT: Final = record(
    ("entries", "next", "more"), entries=array(ref("Entry")),
    next=ID | {"description": "the position for `after` of the next page"},
    more=FLAG | {"description": "whether the stream had more entries"},
    missing=FLAG | {"description": "true: entries after the position were evicted before they were read"},
)  # fmt: skip
ENTRY_BODIES: Final = {
    "oneOf": [ref("NewEntry"), array(ref("NewEntry"), minItems=1, maxItems=ENTRIES)],
    "description": "One entry or a list. In NDJSON, each line has one entry.",
}

COMPONENTS: Final[dict[str, Schema]] = {
    "Value": {
        "oneOf": [
            TEXT, {"type": "number", "description": "in requests, stored as it is written"},
            record(("base64",), base64=TEXT) | {"description": "bytes that are not UTF-8"},
        ],
    },
    "Fields": {
        "oneOf": [
            {"type": "object", "additionalProperties": ref("Value"), "minProperties": 1},
            array(_PAIR, minItems=1) | {"description": "pairs, if a field is repeated or its name is not UTF-8"},
        ],
    },
    "Entry": record(
        ("id",), id=ID, fields=ref("Fields"),
        omitted=NUMBER | {"description": "the size of an entry that is too large to be shown, in place of its fields"},
    ),
    "NewEntry": record(("fields",), fields=ref("Fields")) | {"additionalProperties": False},
    "Problem": record(
        ("status", "title", "detail", "code"), status=NUMBER, title=TEXT, detail=TEXT,
        code=TEXT | {"description": "the code of the server's error, or a word in lower case"},
    ),
}  # fmt: skip
