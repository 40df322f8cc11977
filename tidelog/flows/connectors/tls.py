"""The option ``tls`` of connectors: certificates of clients and servers, and the authorities to trust."""

from __future__ import annotations

import ssl

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
        """Return the TLS settings. Blocks. Raises OSError if a file can't be read."""
        made = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            made.load_cert_chain(self.cert, self.key)
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
        """Return the TLS settings. Blocks. Raises OSError if a file can't be read."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
        made.load_cert_chain(self.cert, self.key)
        if self.ca is not None:
            made.verify_mode = ssl.CERT_REQUIRED
        return made
