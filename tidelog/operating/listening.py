"""The options of programs that listen for HTTP: an address, and a certificate.

Rule 1: a program listens on this machine only, unless its options name another address. Other addresses need TLS, or
        ``--without-tls``: passwords would be readable on the network.
"""

from __future__ import annotations

import ssl

from tidelog.operating.hostnames import is_local


class ListenError(ValueError):
    """An invalid option. The text names the option and the remedy."""


def listen_address(listen: str, default: str) -> tuple[str, int]:
    """Parse ``--listen``. ``default``: an example for the message. Raises ListenError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ListenError(f"--listen is {listen!r}: it must be HOST:PORT, such as {default}")
    return host.strip("[]"), int(port)


def check_exposure(listen: str, default: str, *, tls: bool, without_tls: bool) -> None:
    """Raise ListenError if other machines could send passwords without encryption, and no option permits it."""
    if not is_local(listen_address(listen, default)[0]) and not tls and not without_tls:
        raise ListenError(
            f"other machines can connect to {listen}: use --tls-cert, or --without-tls to send passwords"
            f" without encryption, or listen on {default}"
        )


def server_tls(cert_file: str | None, key_file: str | None) -> ssl.SSLContext | None:
    """Return the TLS settings of a server; None without a certificate. Raises ListenError."""
    if cert_file is None:
        if key_file is not None:
            raise ListenError("--tls-key needs --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise ListenError(f"the certificate {cert_file} can't be used: {error}") from None
    return context
