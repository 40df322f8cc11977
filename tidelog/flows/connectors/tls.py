"""The option ``tls`` of connectors: certificates of clients and servers, and the authorities to trust."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import NoReturn

from tidelog.options.structs import Struct


class ClientTlsOptions(Struct):
    """The option ``tls`` of clients. By default, the system's authorities are trusted and host names are verified."""

    ca: str | None = None  # File of the certificate authorities to trust. `null`: those of the system.
    cert: str | None = None  # File of the client's certificate.
    key: str | None = None  # File of the client's key. `null`: it is in the file of `cert`.
    verify: bool = True  # `false`: any server is accepted, including an impostor.

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise ValueError("tls: key needs cert")

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings. Blocks. Raises OSError, which names the file, if one can't be read."""
        with _named(ca=self.ca):
            made = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            with _named(cert=self.cert, key=self.key):
                made.load_cert_chain(self.cert, self.key, _no_password)
        if not self.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        return made


class ServerTlsOptions(Struct):
    """The option ``tls`` of servers."""

    cert: str  # File of the certificate and its chain.
    key: str | None = None  # File of the key. `null`: it is in the file of `cert`.
    ca: str | None = None  # File of certificate authorities. Clients must present a certificate of one of them.

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings. Blocks. Raises OSError, which names the file, if one can't be read."""
        with _named(ca=self.ca):
            made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
        with _named(cert=self.cert, key=self.key):
            made.load_cert_chain(self.cert, self.key, _no_password)
        if self.ca is not None:
            made.verify_mode = ssl.CERT_REQUIRED
        return made


@contextlib.contextmanager
def _named(**files: str | None) -> Iterator[None]:
    """Name the files, by option, in errors of ssl, which omits them."""
    try:
        yield
    except OSError as error:
        given = {option: path for option, path in files.items() if path is not None}
        for option, path in given.items():
            try:
                with open(path, "rb"):
                    pass
            except OSError as reason:
                raise type(reason)(f"tls: {option}: {reason}") from error
        names = ", ".join(f"{option} {path!r}" for option, path in given.items())
        raise OSError(f"tls: {names}: {error}") from error


def _no_password() -> NoReturn:
    """OpenSSL would ask for the password on the terminal, and wait."""
    raise OSError("the key has a password: decrypt it with openssl pkey")
