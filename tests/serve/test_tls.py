"""TLS by the standard options, with a certificate made for the test."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import numpy as np
import pytest

from certificates import self_signed
from quad4fhe.serve.client import Remote, ServiceError
from serving import RunningServer, small_fit


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
