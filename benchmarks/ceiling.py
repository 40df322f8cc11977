"""The ceiling: a server on uvloop and hiredis that decodes each command and answers with a constant. No engine, no log.

What it reaches is what any server in Python can reach at most on these two: ``python -m benchmarks.ceiling --port N``
takes (and ignores) a server's other options, so that it can stand in tidelog's place.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import hiredis
import uvloop

ANSWER = b"$15\r\n1700000000000.0\r\n"


class Constant(asyncio.Protocol):
    """A connection on which every command has the same answer; PING's is its own, by which a start is recognised."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.reader = hiredis.Reader(notEnoughData=None)

    def data_received(self, data: bytes) -> None:
        if data[:4] == b"PING":
            self.transport.write(b"+PONG\r\n")
            return
        self.reader.feed(data)
        gets = self.reader.gets
        commands = 0
        while gets() is not None:
            commands += 1
        self.transport.write(ANSWER * commands)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[sys.argv.index("--port") + 1])))
