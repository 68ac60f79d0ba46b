"""TLS by the standard options, with a certificate made for the test."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import numpy as np
import pytest

from quad4fhe.cli import main
from quad4fhe.serve.client import Remote, ServiceError
from quad4fhe.serve.http import client_context
from support.certificates import self_signed
from support.serving import RunningServer, small_fit


def test_tls_serves_who_trusts_the_certificate_and_nobody_else(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    fit = small_fit(2, 4, 2, seed=3)
    fit.save(tmp_path / "fit.safetensors")
    words = ("--layout", "batch", "--precision", "fast", "--workers", "1", "--tls-cert", certificate, "--tls-key", key)
    X = np.random.default_rng(0).uniform(*fit.box, size=(3, 2))
    with RunningServer(tmp_path / "fit.safetensors", *words) as running:
        assert running.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(certificate))
        with Remote(running.url, model=fit.model_id, verify=trust) as remote:
            assert (remote.predict(X).decisions == fit.model.decide(X)).all()
        with pytest.raises(ServiceError, match="certificate is not trusted"):
            Remote(running.url, model=fit.model_id)
        # It does not try again until its patience ends: this test would not end.
        with pytest.raises(ServiceError, match=f"speaks TLS; try {running.url}"):
            Remote(running.url.replace("https", "http"), patience=1e6)
        headers = {"content-type": "application/octet-stream", "content-length": str(2**28)}
        path = f"{running.url}/models/{fit.model_id}/evaluate"
        refused = httpx.post(path, content=iter([bytes(2**20)] * 2**8), headers=headers, verify=trust, timeout=300)
        assert refused.status_code == 413  # seen although the body was not read to its end


def test_the_environment_does_not_make_a_client_or_server_write_down_its_tls_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = self_signed(tmp_path)
    fit = small_fit(2, 4, 2, seed=3)
    fit.save(tmp_path / "fit.safetensors")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(*fit.box, size=(3, 2)))
    words = ("--layout", "batch", "--precision", "fast", "--workers", "1", "--tls-cert", certificate, "--tls-key", key)
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keylog"))
    with RunningServer(tmp_path / "fit.safetensors", *words) as running:
        query = ["query", running.url, str(tmp_path / "x.npy")]
        assert main([*query, "--ca", str(certificate)]) == 0
        assert main([*query, "--patience", "1"]) != 0
        assert "certificate is not trusted" in capsys.readouterr().err
    assert not (tmp_path / "keylog").exists()
    assert main(["query", "https://127.0.0.1:1", str(tmp_path / "x.npy"), "--ca", str(tmp_path / "x.npy")]) == 2
    assert "give a PEM file" in capsys.readouterr().err


def test_a_client_checks_as_much_as_the_default_of_python_does() -> None:
    own, default = client_context(), ssl.create_default_context()
    for name in ("check_hostname", "verify_mode", "verify_flags", "minimum_version", "options"):
        assert getattr(own, name) == getattr(default, name), name
    assert own.cert_store_stats()["x509_ca"] > 50
