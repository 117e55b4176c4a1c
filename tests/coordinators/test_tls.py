"""etcd that speaks TLS only, and asks for a client's certificate."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pgfence import coordinators
from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Holder, Patience
from pgfence.errors import LockServiceError
from tests.coordinators.servers import Etcd


def write_certificate(folder: Path) -> None:
    """An authority's certificate that everybody uses: ca.pem, which is cert.pem, and key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pgfence tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


class TlsEtcd(Etcd):
    """Clients reach it by TLS, with a certificate."""

    def __init__(self) -> None:
        super().__init__()
        write_certificate(self.folder)
        self.cert, self.key = self.folder / "cert.pem", self.folder / "key.pem"

    def command(self, number: int) -> list[str]:
        plain = super().command(number)
        clients = ("--listen-client-urls", "--advertise-client-urls")
        return [
            *(o.replace("http:", "https:") if o.startswith(clients) else o for o in plain),
            f"--cert-file={self.cert}",
            f"--key-file={self.key}",
            f"--trusted-ca-file={self.cert}",
            "--client-cert-auth",
        ]

    def ask(self, number: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=self.cert)
        context.load_cert_chain(self.cert, self.key)
        host, port = self.addresses[number]
        try:
            with httpx.Client(verify=context) as client:
                answer: dict[str, Any] = client.post(
                    f"https://{host}:{port}/v3/{path}", json=body
                ).json()
        except (httpx.HTTPError, ValueError):
            return {}
        return answer


@pytest.fixture(scope="module")
def etcd() -> Iterator[TlsEtcd]:
    with TlsEtcd() as started:
        yield started


def test_certificate_and_authority_are_taken_from_the_url(etcd: TlsEtcd, place: str) -> None:
    ((host, port),) = etcd.addresses
    url = f"etcds://{host}:{port}?ca={etcd.cert}&cert={etcd.cert}&key={etcd.key}"
    inspector = coordinators.inspector(url)
    claim = coordinators.claimant(url).claim(place, "request root", 10, Patience(inf, monotonic))
    assert inspector.holder(place) == Holder("request root", claim.token)
    claim.release()
    assert inspector.holder(place) is None
    inspector.close()


@pytest.mark.parametrize("url", ["etcd://{0}:{1}", "etcds://{0}:{1}", "etcds://{0}:{1}?ca={2}"])
def test_without_authority_or_certificate_there_is_no_answer(
    etcd: TlsEtcd, place: str, url: str
) -> None:
    ((host, port),) = etcd.addresses
    inspector = coordinators.inspector(url.format(host, port, etcd.cert))
    with pytest.raises(LockServiceError):
        inspector.holder(place)
    inspector.close()
