"""TLS contexts from the ``tls-`` directives.

Errors are raised as ``ConfigError`` with the directive and the file, because OpenSSL's texts include neither. Without
TLS, this module is not imported.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
from typing import Any

from respserver.config.conffile import ConfigError
from respserver.config.config import Config

_VERSIONS = {
    "tlsv1": ssl.TLSVersion.TLSv1,
    "tlsv1.1": ssl.TLSVersion.TLSv1_1,
    "tlsv1.2": ssl.TLSVersion.TLSv1_2,
    "tlsv1.3": ssl.TLSVersion.TLSv1_3,
}
_ORDER = list(_VERSIONS)
_OFF = {
    "tlsv1": ssl.OP_NO_TLSv1,
    "tlsv1.1": ssl.OP_NO_TLSv1_1,
    "tlsv1.2": ssl.OP_NO_TLSv1_2,
    "tlsv1.3": ssl.OP_NO_TLSv1_3,
}
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.\d+")  # file names by which OpenSSL finds certificates in a directory


def build_context(config: Config) -> ssl.SSLContext:
    """Build the context for ``tls-port`` from the files. Raises ConfigError.

    CONFIG SET of the certificate or the key, even to the same path, reloads the files for new connections. So a renewed
    certificate does not require a restart.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, config.tls_protocols)
    _load_certificate(context, config)
    _set_client_auth(context, config)
    if config.tls_ciphers:
        _set_ciphers(context, config.tls_ciphers)
    if config.tls_ciphersuites:
        _set_ciphersuites(context, config.tls_ciphersuites)
    if config.tls_dh_params_file:
        path = _readable("tls-dh-params-file", config.tls_dh_params_file)
        try:
            context.load_dh_params(path)
        except ssl.SSLError as exc:
            raise ConfigError(f"tls-dh-params-file: {path} contains no usable parameters{_reason(exc)}") from None
    if config.tls_prefer_server_ciphers:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if not config.tls_session_caching:
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0

    def renew() -> None:
        _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config)  # if this fails, the old files stay loaded
        _load_certificate(context, config)

    for name in ("tls-cert-file", "tls-key-file", "tls-key-file-pass"):
        config.on_change[name] = renew
    return context


def build_client_context(config: Config) -> ssl.SSLContext:
    """Build the context for the link to a leader (tls-replication). Raises ConfigError.

    The leader's certificate is verified, but not its name: as in Redis, replicas identify their leader by address.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _set_protocols(context, config.tls_protocols)
    if not config.tls_ca_cert_file and not config.tls_ca_cert_dir:
        raise ConfigError("tls-replication: needs tls-ca-cert-file or tls-ca-cert-dir to verify the leader")
    _load_authorities(context, config)
    if config.tls_client_cert_file:
        _load_pair(context, config, "tls-client-cert-file", "tls-client-key-file", "tls-client-key-file-pass")
    elif config.tls_cert_file:
        _load_certificate(context, config)
    if config.tls_ciphers:
        _set_ciphers(context, config.tls_ciphers)
    return context


def _set_protocols(context: ssl.SSLContext, names: list[str]) -> None:
    wanted = [name.lower() for name in names] or ["tlsv1.2", "tlsv1.3"]
    for name in names:
        if name.lower() not in _VERSIONS:
            known = " ".join(v.name.replace("_", ".") for v in _VERSIONS.values())
            raise ConfigError(f"tls-protocols: '{name}' is not a protocol; the protocols are {known}")
    chosen = sorted(_ORDER.index(name) for name in wanted)
    context.minimum_version = _VERSIONS[_ORDER[chosen[0]]]
    context.maximum_version = _VERSIONS[_ORDER[chosen[-1]]]
    for index in range(chosen[0], chosen[-1]):  # versions in between that are not allowed
        if index not in chosen:
            context.options |= _OFF[_ORDER[index]]


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    _load_pair(context, config, "tls-cert-file", "tls-key-file", "tls-key-file-pass")


def _load_pair(context: ssl.SSLContext, config: Config, cert_name: str, key_name: str, pass_name: str) -> None:
    """Load a certificate and its private key, from the files of these directives. Raises ConfigError."""
    if not config.value(cert_name):
        raise ConfigError(f"{cert_name}: TLS needs the server's certificate; none is configured")
    if not config.value(key_name):
        raise ConfigError(f"{key_name}: TLS needs the private key of {cert_name}; none is configured")
    cert = _readable(cert_name, config.value(cert_name))
    key = _readable(key_name, config.value(key_name))
    try:
        # load_cert_chain does not report which of the two files is invalid, so the certificate is checked first
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=cert)
    except ssl.SSLError as exc:
        raise ConfigError(f"{cert_name}: {cert} contains no certificate in PEM form{_reason(exc)}") from None
    encrypted = False

    def password() -> str:
        nonlocal encrypted
        encrypted = True  # OpenSSL calls this only for an encrypted key; without it, it would prompt on the terminal
        return config.value(pass_name)

    try:
        context.load_cert_chain(cert, key, password)
    except ssl.SSLError as exc:
        if encrypted:
            what = "is wrong for" if config.value(pass_name) else "is missing: a password is needed for"
            raise ConfigError(f"{pass_name}: the password {what} {key_name} {key}") from None
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key_name}: {key} is not the key of {cert_name} {cert}") from None
        if exc.reason == "EE_KEY_TOO_SMALL":
            raise ConfigError(f"{cert_name}: the key of {cert} is too small for this OpenSSL") from None
        raise ConfigError(f"{key_name}: {key} contains no private key in PEM form{_reason(exc)}") from None


def _set_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise ConfigError(f"tls-ciphers: OpenSSL knows no cipher in '{ciphers}'") from None


def _set_client_auth(context: ssl.SSLContext, config: Config) -> None:
    if config.tls_auth_clients == "no":
        context.verify_mode = ssl.CERT_NONE
        return
    if not config.tls_ca_cert_file and not config.tls_ca_cert_dir:
        raise ConfigError(
            f"tls-auth-clients: {config.tls_auth_clients} needs tls-ca-cert-file or tls-ca-cert-dir to verify clients' "
            "certificates; or set it to no"
        )
    _load_authorities(context, config)
    optional = config.tls_auth_clients == "optional"
    context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED


def _load_authorities(context: ssl.SSLContext, config: Config) -> None:
    """Load the certificate authorities that sign the peers' certificates. Raises ConfigError."""
    if config.tls_ca_cert_file:
        path = _readable("tls-ca-cert-file", config.tls_ca_cert_file)
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError as exc:
            raise ConfigError(f"tls-ca-cert-file: {path} contains no certificate in PEM form{_reason(exc)}") from None
    if config.tls_ca_cert_dir:
        path = config.tls_ca_cert_dir
        try:
            names = os.listdir(path)
        except OSError as exc:
            raise ConfigError(f"tls-ca-cert-dir: can't read {path}: {exc.strerror}") from None
        if not any(map(_HASHED_NAME.fullmatch, names)):
            what = f"{path} contains no certificate under a hashed name: openssl rehash {path}"
            raise ConfigError(f"tls-ca-cert-dir: {what}")
        context.load_verify_locations(capath=path)


def _set_ciphersuites(context: Any, suites: str) -> None:  # Any: typeshed for 3.11 lacks the method
    setter = getattr(context, "set_ciphersuites", None)
    if setter is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ConfigError(
            f"tls-ciphersuites: Python {version} can't select ciphersuites for TLS 1.3 (3.15 can); remove the line: "
            "OpenSSL's default has strong ones only"
        )
    try:
        setter(suites)
    except ssl.SSLError:
        raise ConfigError(f"tls-ciphersuites: OpenSSL knows no ciphersuite in '{suites}'") from None


def _readable(directive: str, path: str) -> str:
    try:
        with open(path, "rb"):
            return path
    except OSError as exc:
        raise ConfigError(f"{directive}: can't read {path}: {exc.strerror}") from None


def _reason(exc: ssl.SSLError) -> str:
    return f" (OpenSSL: {exc.reason.lower().replace('_', ' ')})" if exc.reason else ""
