"""What permissions need of declarations: a command that lacked it would be open to those who may not use its keys."""

from __future__ import annotations

import pytest

from commands.declare import Command
from commands.registry import all_commands

# Commands that tell no more of a key than that it is there, of what type, and how large. Any permission for it will do.
ABOUT_KEYS = {
    "exists", "type", "touch", "watch", "strlen", "tlen", "xlen", "memory|usage", "object|encoding", "object|freq",
    "object|idletime", "object|refcount", "debug|object",
}  # fmt: skip
# Commands that write but name no key: all keys.
WITHOUT_KEYS = {"flushall", "flushdb", "swapdb", "tcluster|import"}
# As in Redis, whoever may read a key may read it for a group.
READS_FOR_GROUPS = {"xreadgroup"}


@pytest.mark.parametrize("cmd", [cmd for cmd in all_commands() if cmd.key_specs], ids=lambda cmd: cmd.name)
def test_keys_say_what_is_done_with_them(cmd: Command) -> None:
    if not any(spec.real for spec in cmd.key_specs):
        assert cmd.channels or cmd.name == "sunsubscribe"
        return
    for spec in cmd.key_specs:
        assert (spec.reads or spec.writes) == (cmd.name not in ABOUT_KEYS)
        assert not spec.writes or cmd.write
        assert not spec.keyword or cmd.key_after_token is not None, "a word that looks like the token would mislead"
    assert not cmd.write or any(spec.writes for spec in cmd.key_specs) or cmd.name in READS_FOR_GROUPS


def test_commands_that_write_without_naming_keys() -> None:
    found = {cmd.name for cmd in all_commands() if cmd.write and not cmd.key_specs}
    assert found == WITHOUT_KEYS
    assert {cmd.name for cmd in all_commands() if cmd.reaches is not None} == {"tpublish", "tdrop"}


def test_channels() -> None:
    assert {cmd.name: cmd.channels for cmd in all_commands() if cmd.channels} == {
        "publish": "first", "spublish": "first", "subscribe": "all", "ssubscribe": "all", "psubscribe": "patterns",
    }  # fmt: skip
