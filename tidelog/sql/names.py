"""The tables that a query names, found by DuckDB's own parser."""

from __future__ import annotations

import json
from typing import Any

import duckdb


class SqlError(ValueError):
    """The query is invalid, or can't be executed. The text is for its user."""


def tables_of(connection: duckdb.DuckDBPyConnection, query: str) -> set[str]:
    """Return the names of the tables of a SELECT, without those that it defines itself (WITH). Raises SqlError."""
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise SqlError(str(error)) from None
    if len(statements) != 1:
        raise SqlError(f"one SELECT is needed, not {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name
        raise SqlError(f"only SELECT is possible, not {kind}: the tables are streams on the server")
    ((text,),) = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree: Any = json.loads(text)
    if tree.get("error"):
        raise SqlError(str(tree.get("error_message", "the query can't be parsed")))
    named: set[str] = set()
    defined: set[str] = set()
    _walk(tree, named, defined)
    return named - defined


def _walk(tree: Any, named: set[str], defined: set[str]) -> None:
    if isinstance(tree, list):
        for each in tree:
            _walk(each, named, defined)
    elif isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE" and not tree.get("schema_name") and not tree.get("catalog_name"):
            named.add(tree["table_name"])
        for name, each in tree.items():
            if name == "cte_map":
                defined.update(entry["key"] for entry in each["map"])
            _walk(each, named, defined)
