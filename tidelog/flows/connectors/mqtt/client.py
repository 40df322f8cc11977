"""One connection to an MQTT broker. It extends the client of aiomqtt:

Rule 1: A message is acknowledged by ``ack``. aiomqtt acknowledges it when it is received.
Rule 2: ``send`` returns the reason if the broker refuses a message. aiomqtt ignores the reason, and also waits for the
        answer of a broker that has closed the connection.
Rule 3: At most ``buffer`` messages with QoS 0 wait for ``take``; others are dropped and counted. The broker limits the
        other messages, because it stops sending until they are acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiomqtt
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties

WINDOW: Final = 100  # messages that are sent and not confirmed; a broker can lower it
OLD_WINDOW: Final = 20  # with MQTT 3.1.1, in which a broker can't announce its limit: the default of Mosquitto
NO_TOPIC: Final = "tidelog/none"  # without a subscription
LAST: Final = 1.0  # s for the last answer of a broker


class _ClosingSocket(ssl.SSLSocket):
    """paho-mqtt leaves a socket open if its handshake fails."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class MqttClient(aiomqtt.Client):
    """A connection. Create one for each attempt to connect."""

    def __init__(self, hostname: str, port: int, buffer: int, **given: Any) -> None:
        if given["tls_context"] is not None:
            given["tls_context"].sslsocket_class = _ClosingSocket
        super().__init__(hostname, port, max_inflight_messages=WINDOW, **given)
        self._client.manual_ack_set(True)
        self._five = given["protocol"] == aiomqtt.ProtocolVersion.V5
        self._messages: deque[MQTTMessage] = deque()
        self._buffer = buffer
        self._waiting = 0  # messages with QoS 0 in it
        self._arrived = asyncio.Event()
        self._sent: dict[int, asyncio.Future[str]] = {}  # by message ID: the reason of a refusal
        self._shut = False
        self._acked = False
        self._disconnected.add_done_callback(_retrieved)
        self._slots = asyncio.Semaphore(OLD_WINDOW)
        self.dropped = 0
        self.max_packet = 0  # bytes of a packet that the broker accepts; 0: unknown

    async def open(self) -> None:
        """Connect. Raises ConnectionError. The thread of paho-mqtt can't be cancelled, so its socket is closed later.
        """
        opening = asyncio.ensure_future(self.__aenter__())
        try:
            await asyncio.shield(opening)
        except aiomqtt.MqttError as error:
            self.abort()
            raise ConnectionError(str(error)) from error
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: self.abort() if done.cancelled() or not done.exception() else None)
            raise

    def watch(self, lost: Callable[[Exception], None]) -> None:
        """Call ``lost`` if the connection is lost."""
        self._disconnected.add_done_callback(lambda _: lost(self._lost()) if not self._shut else None)

    async def shut(self) -> None:
        """Close the connection after the broker has processed the acknowledgements.

        It processes requests in order, so the answer to a later one is awaited. Without this, the next connection of
        the session can be accepted before, and gets messages again that were acknowledged.
        """
        self._shut = True
        with contextlib.suppress(aiomqtt.MqttError):
            if self._acked and not self._disconnected.done():
                await self.unsubscribe(NO_TOPIC, timeout=LAST)
        with contextlib.suppress(aiomqtt.MqttError):
            await self.__aexit__(None, None, None)

    def abort(self) -> None:
        """Close the connection without a farewell."""
        found: Any = self._client.socket()
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:  # noqa: ARG002
        """Wait until the socket can be written. aiomqtt does so even if it was closed meanwhile."""

        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:  # noqa: BLE001 - the connection is lost
                if not self._disconnected.done():
                    self._disconnected.set_exception(error)

        def register() -> None:
            if sock.fileno() >= 0:
                self._loop.add_writer(sock.fileno(), write)

        self._loop.call_soon_threadsafe(register)

    # -- messages of the broker ------------------------------------------------------------------------------
    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None) -> None:
        if self._five and properties is not None:
            self._slots = asyncio.Semaphore(min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW)))
            self.max_packet = getattr(properties, "MaximumPacketSize", 0)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    def _on_message(self, client: Any, userdata: Any, message: MQTTMessage) -> None:  # noqa: ARG002
        if message.qos == 0:
            if self._waiting >= self._buffer:
                self.dropped += 1
                return
            self._waiting += 1
        self._messages.append(message)
        self._arrived.set()

    async def arrived(self) -> None:
        """Wait for a message. Raises ConnectionError if the connection is lost."""
        if not self._messages:
            self._arrived.clear()
            await self._answer(self._arrived.wait())

    def take(self) -> MQTTMessage | None:
        """Return the next message."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._waiting -= message.qos == 0
        return message

    @property
    def waiting(self) -> int:
        """The number of messages with QoS 0 that wait for ``take``."""
        return self._waiting

    def ack(self, message_id: int) -> None:
        """Acknowledge a message with QoS 1."""
        self._client.ack(message_id, 1)
        self._acked = True

    # -- messages to the broker ------------------------------------------------------------------------------
    async def send(self, topic: str, payload: bytes, qos: int, properties: Properties | None, *, retain: bool) -> str:
        """Publish a message. Return "", or the reason why the broker refuses it.

        Raises ValueError for a topic or a payload that is not valid, and ConnectionError if the connection is lost.
        """
        async with self._slots:
            info = self._client.publish(topic, payload, qos, retain, properties)
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise ConnectionError(f"not connected: {info.rc.name}")
            if not qos:
                return ""
            confirmed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._sent[info.mid] = confirmed
            try:
                return str(await self._answer(confirmed))
            finally:
                self._sent.pop(info.mid, None)

    def _on_publish(self, client: Any, userdata: Any, mid: int, reason_code: Any, properties: Any) -> None:  # noqa: ARG002
        confirmed = self._sent.get(mid)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(str(reason_code) if reason_code.is_failure else "")

    async def _answer(self, work: Awaitable[Any]) -> Any:
        """Wait for an answer, or for the end of the connection."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._disconnected), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        raise self._lost()

    def _lost(self) -> ConnectionError:
        error = self._disconnected.exception()
        return ConnectionError("the broker has closed the connection" if error is None else str(error))


def _retrieved(future: asyncio.Future[None]) -> None:
    """Retrieve an exception. If nobody waits for it, asyncio would log it."""
    if not future.cancelled():
        future.exception()
