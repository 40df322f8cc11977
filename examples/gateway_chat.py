"""The tokens of a language model as a stream: a page that is reloaded in the middle of an answer misses nothing.

    tidelog-server --dir ./data &
    tidelog gateway --cors-origin http://127.0.0.1:8000 &
    python examples/gateway_chat.py          # open http://127.0.0.1:8000 and click "Ask"

The model writes its answer to a stream, not to the connection of a page. Pages follow the stream with an EventSource. A
page that loses its connection resumes at its last event. A page that is reloaded or opened on another device reads the
answer from the beginning. The model here is simulated: it splits a text into tokens and sends them with pauses.

If the default user has a password, set GATEWAY_USER and GATEWAY_PASSWORD to those of a user of the server.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import secrets
import sys

import aiohttp
from aiohttp import web

GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:9897")
PORT = int(os.environ.get("PORT", "8000"))
PAUSE = float(os.environ.get("PAUSE", "0.05"))  # s between two tokens
RETAINED = 3600  # s for which an answer can be read

ANSWER = """\
An answer belongs in a log, and not in the connection of a page. The connection ends when a train enters a tunnel, a \
laptop closes, or someone presses the reload key.

The log is still there, and so is every token. ✅
"""

PAGE = """\
<!doctype html>
<meta charset="utf-8">
<title>Chat</title>
<link rel="icon" href="data:,">
<style>body { font: 1rem/1.5 system-ui; max-width: 40rem; margin: 2rem auto; } #answer { white-space: pre-wrap }</style>
<button id="ask">Ask</button>
<p id="answer"></p>
<p id="state"></p>
<script>
const show = (name, text) => document.getElementById(name).textContent = text;
let answer = "", position = "earliest";

async function follow(chat) {
  const { url } = await (await fetch(`/chats/${chat}`)).json();   // has a token for this stream only
  const source = new EventSource(`${url}&after=${position}`);
  source.onmessage = (event) => {
    position = event.lastEventId;
    const { fields } = JSON.parse(event.data);
    if (fields.end) { source.close(); show("state", "complete"); return; }
    show("answer", answer += fields.token);
  };
  source.onerror = () => {   // it reconnects by itself, unless the token has expired
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 1000, chat);
  };
}

document.getElementById("ask").onclick = async () => {
  location.hash = (await (await fetch("/chats", { method: "POST" })).json()).chat;
  location.reload();
};
if (location.hash) { show("state", "reading"); follow(location.hash.slice(1)); }
</script>
"""


async def model(session: aiohttp.ClientSession, chat: str) -> None:
    """Write an answer to a stream, a token at a time. A request that fails is repeated; its token is appended once."""
    for number, token in enumerate([*re.findall(r"\s*\S{1,6}|\s+$", ANSWER), None]):
        fields = {"end": "1"} if token is None else {"token": token}
        headers = {"Idempotency-Key": f"{chat}-{number}"}
        while True:
            try:
                url = f"{GATEWAY}/v1/streams/chat:{chat}?maxage={RETAINED}"
                async with session.post(url, json={"fields": fields}, headers=headers) as response:
                    if response.status < 500:
                        response.raise_for_status()
                        break
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(1)
        await asyncio.sleep(PAUSE)


async def page(_: web.Request) -> web.Response:
    return web.Response(text=PAGE, content_type="text/html")


def routes(session: aiohttp.ClientSession) -> list[web.RouteDef]:
    answers: set[asyncio.Task[None]] = set()

    async def ask(_: web.Request) -> web.Response:
        chat = secrets.token_hex(8)
        task = asyncio.create_task(model(session, chat))
        answers.add(task)
        task.add_done_callback(answers.discard)
        return web.json_response({"chat": chat})

    async def where(request: web.Request) -> web.Response:
        key = f"chat:{request.match_info['chat']}"
        async with session.post(f"{GATEWAY}/v1/tokens", json={"key": key, "ttl": "15m"}) as response:
            response.raise_for_status()
            token = (await response.json())["token"]
        return web.json_response({"url": f"{GATEWAY}/v1/streams/{key}?token={token}"})

    return [web.get("/", page), web.post("/chats", ask), web.get("/chats/{chat}", where)]


async def main() -> None:
    headers = {}
    if user := os.environ.get("GATEWAY_USER"):
        credentials = f"{user}:{os.environ['GATEWAY_PASSWORD']}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
    async with aiohttp.ClientSession(headers=headers) as session:
        app = web.Application()
        app.add_routes(routes(session))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", PORT).start()
        sys.stdout.write(f"open http://127.0.0.1:{PORT}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
