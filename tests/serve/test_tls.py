"""TLS by the standard options, with a certificate made for the test."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from quad4fhe.serve.client import Remote, ServiceError
from serving import RunningServer, small_fit


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


def test_tls_serves_who_trusts_the_certificate_and_nobody_else(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    fit = small_fit(2, 4, 2, seed=3)
    fit.save(tmp_path / "fit.safetensors")
    words = ("--layout", "batch", "--precision", "fast", "--workers", "1", "--tls-cert", certificate, "--tls-key", key)
    X = np.random.default_rng(0).uniform(*fit.box, size=(3, 2))
    with RunningServer(tmp_path / "fit.safetensors", *words) as running:
        assert running.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(certificate))
        with Remote(running.url, model=fit.model.sha256, verify=trust) as remote:
            assert (remote.predict(X).decisions == fit.model.decide(X)).all()
        with pytest.raises(ServiceError, match="certificate is not trusted"):
            Remote(running.url, model=fit.model.sha256)
        headers = {"content-type": "application/octet-stream", "content-length": str(2**28)}
        path = f"{running.url}/models/{fit.model.sha256}/evaluate"
        refused = httpx.post(path, content=iter([bytes(2**20)] * 2**8), headers=headers, verify=trust, timeout=30)
        assert refused.status_code == 413  # seen although the body was not read to its end
