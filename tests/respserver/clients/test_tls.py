"""The TLS context: what clients may connect, and errors that name the directive and the file."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from resp.errors import CommandError
from respserver.clients.tls import build_context
from respserver.config.conffile import ConfigError
from respserver.config.config import Config


class Files:
    """A certificate authority, a server's and a client's certificate, written once for all tests."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.authority = trustme.CA()
        self.server = self.authority.issue_cert("localhost")
        self.client = self.authority.issue_cert("client@example.org")
        self.ca = str(directory / "ca.crt")
        self.cert = str(directory / "server.crt")
        self.key = str(directory / "server.key")
        self.authority.cert_pem.write_to_path(self.ca)
        self.server.cert_chain_pems[0].write_to_path(self.cert)
        self.server.private_key_pem.write_to_path(self.key)
        self.encrypted = str(directory / "encrypted.key")
        from cryptography.hazmat.primitives import serialization as ser

        key = ser.load_pem_private_key(self.server.private_key_pem.bytes(), None)
        Path(self.encrypted).write_bytes(
            key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.BestAvailableEncryption(b"secret"))
        )
        self.garbage = str(directory / "garbage.pem")
        Path(self.garbage).write_text("no PEM at all\n")

    def config(self, **changes: object) -> Config:
        config = Config()
        config.tls_cert_file, config.tls_key_file, config.tls_auth_clients = self.cert, self.key, "no"
        for name, value in changes.items():
            assert hasattr(config, name)
            setattr(config, name, value)
        return config


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def shake(
    files: Files, server: ssl.SSLContext, *, certificate: bool = False, **limits: ssl.TLSVersion
) -> ssl.SSLObject:
    """A handshake in memory; returns the client's end. Raises ssl.SSLError as either end would."""
    client = ssl.create_default_context()
    files.authority.configure_trust(client)
    for name, version in limits.items():
        setattr(client, name, version)
    if certificate:
        files.client.configure_cert(client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    right = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for end in (left, right):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    assert done == {left, right}
    return left


def wrong(files: Files, **changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        build_context(files.config(**changes))
    return caught.value.text


def test_a_client_connects(files: Files) -> None:
    assert shake(files, build_context(files.config())).version() == "TLSv1.3"


def test_encrypted_key(files: Files) -> None:
    context = build_context(files.config(tls_key_file=files.encrypted, tls_key_file_pass="secret"))
    assert shake(files, context).version() == "TLSv1.3"


@pytest.mark.parametrize("mode", ["yes", "optional", "no"])
def test_client_certificates(files: Files, mode: str) -> None:
    context = build_context(files.config(tls_auth_clients=mode, tls_ca_cert_file=files.ca))
    assert shake(files, context, certificate=True).version() == "TLSv1.3"
    if mode == "yes":
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            shake(files, context)
    else:
        assert shake(files, context).version() == "TLSv1.3"


def test_a_foreign_client_certificate_is_refused(files: Files, tmp_path: Path) -> None:
    other = str(tmp_path / "other.crt")
    trustme.CA().cert_pem.write_to_path(other)
    context = build_context(files.config(tls_auth_clients="optional", tls_ca_cert_file=other))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake(files, context, certificate=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl program is not installed")
def test_ca_directory(files: Files, tmp_path: Path) -> None:
    shutil.copy(files.ca, tmp_path / "ca.pem")
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True, capture_output=True)
    context = build_context(files.config(tls_auth_clients="yes", tls_ca_cert_dir=str(tmp_path)))
    assert shake(files, context, certificate=True).version() == "TLSv1.3"


def test_protocols(files: Files) -> None:
    only_12 = build_context(files.config(tls_protocols=["TLSv1.2"]))
    assert shake(files, only_12).version() == "TLSv1.2"
    only_13 = build_context(files.config(tls_protocols=["tlsv1.3"]))
    with pytest.raises(ssl.SSLError):
        shake(files, only_13, maximum_version=ssl.TLSVersion.TLSv1_2)


def test_ciphers_and_their_order(files: Files) -> None:
    config = files.config(tls_ciphers="ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384")
    end = shake(files, build_context(config), maximum_version=ssl.TLSVersion.TLSv1_2)
    cipher = end.cipher()
    assert cipher is not None
    assert "AES256-GCM-SHA384" in cipher[0]
    for wanted in (True, False):
        context = build_context(files.config(tls_prefer_server_ciphers=wanted))
        assert bool(context.options & ssl.OP_CIPHER_SERVER_PREFERENCE) is wanted


def test_no_session_caching(files: Files) -> None:
    assert build_context(files.config()).num_tickets > 0
    assert build_context(files.config(tls_session_caching=False)).num_tickets == 0


def test_ciphersuites(files: Files) -> None:
    if hasattr(ssl.SSLContext, "set_ciphersuites"):
        context = build_context(files.config(tls_ciphersuites="TLS_AES_128_GCM_SHA256"))
        cipher = shake(files, context).cipher()
        assert cipher is not None
        assert cipher[0] == "TLS_AES_128_GCM_SHA256"
    else:
        text = wrong(files, tls_ciphersuites="TLS_AES_128_GCM_SHA256")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        assert text.startswith(f"tls-ciphersuites: Python {version} can't select")


def test_a_certificate_is_renewed_while_the_server_runs(files: Files, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"
    shutil.copy(files.cert, cert)
    shutil.copy(files.key, key)
    config = files.config(tls_cert_file=str(cert), tls_key_file=str(key))
    context = build_context(config)
    first = shake(files, context).getpeercert(binary_form=True)
    renewed = files.authority.issue_cert("localhost")
    renewed.cert_chain_pems[0].write_to_path(str(cert))
    with pytest.raises(CommandError, match="is not the key of"):
        config.set([(b"tls-cert-file", str(cert).encode())])
    assert shake(files, context).getpeercert(binary_form=True) == first
    renewed.private_key_pem.write_to_path(str(key))
    config.set([(b"tls-cert-file", str(cert).encode()), (b"tls-key-file", str(key).encode())])
    assert shake(files, context).getpeercert(binary_form=True) not in (None, first)


def test_missing_directives(files: Files) -> None:
    assert wrong(files, tls_cert_file="").startswith("tls-cert-file: TLS needs")
    assert wrong(files, tls_key_file="").startswith("tls-key-file: TLS needs")
    assert wrong(files, tls_auth_clients="yes").startswith("tls-auth-clients: yes needs tls-ca-cert-file or")


@pytest.mark.parametrize("name", ["tls-cert-file", "tls-key-file", "tls-ca-cert-file", "tls-dh-params-file"])
def test_errors_name_directive_and_file(files: Files, name: str) -> None:
    attr = name.replace("-", "_")
    mode = "yes" if name == "tls-ca-cert-file" else "no"
    gone = str(files.dir / "gone.pem")
    text = wrong(files, tls_auth_clients=mode, **{attr: gone})
    assert text == f"{name}: can't read {gone}: No such file or directory"
    text = wrong(files, tls_auth_clients=mode, **{attr: files.garbage})
    assert text.startswith(f"{name}: {files.garbage} contains no ")


def test_other_errors(files: Files, tmp_path: Path) -> None:
    foreign = str(tmp_path / "foreign.key")
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(foreign)
    assert wrong(files, tls_key_file=foreign) == f"tls-key-file: {foreign} is not the key of tls-cert-file {files.cert}"
    assert wrong(files, tls_key_file=files.encrypted) == (
        f"tls-key-file-pass: the password is missing: a password is needed for tls-key-file {files.encrypted}"
    )
    assert wrong(files, tls_key_file=files.encrypted, tls_key_file_pass="no") == (
        f"tls-key-file-pass: the password is wrong for tls-key-file {files.encrypted}"
    )
    assert wrong(files, tls_ciphers="NO-SUCH") == "tls-ciphers: OpenSSL knows no cipher in 'NO-SUCH'"
    assert wrong(files, tls_protocols=["SSLv3"]) == (
        "tls-protocols: 'SSLv3' is not a protocol; the protocols are TLSv1 TLSv1.1 TLSv1.2 TLSv1.3"
    )
    directory = str(tmp_path)
    assert wrong(files, tls_auth_clients="yes", tls_ca_cert_dir=directory) == (
        f"tls-ca-cert-dir: {directory} contains no certificate under a hashed name: openssl rehash {directory}"
    )
    assert "can't read /no/such" in wrong(files, tls_auth_clients="yes", tls_ca_cert_dir="/no/such")
