"""Raw MNIST images through a convolutional backbone at the client, over HTTP, to a head that sees only ciphertexts.

Trains a small network (two convolutions, then 256-64-10) in torch, exports it to ONNX, fits the head that quad4fhe
splits off, verifies the certificate, and starts `quad4fhe serve`. All 10,000 test images are decided over HTTP as raw
images. Every byte goes through a relay, which counts them and keeps those of a first question of four images; their
pixels and features are then looked for in these bytes. The baseline of accuracy and agreement is the network itself,
and that of changed decisions the fit in the clear. Needs torch, onnx and onnxruntime:

    python benchmarks/backbone.py --out benchmarks/backbone.json
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import nn

from compact import write
from machine import describe
from quad4fhe import MLP, Remote, fit, verify

DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
PROGRAM = "from quad4fhe.cli import entry_point; entry_point()"
BATCH, RATE, EPOCHS, SEED = 128, 2e-3, 5, 2026
CALIBRATION = 20_000  # of the 60,000 training images
CAPTURED = 4  # images whose values are looked for in what was sent


def load() -> tuple[Any, ...]:
    """Images (n, 1, 28, 28) in float32 between 0 and 1, and labels, for training and test."""
    with np.load(DATA / "mnist.npz") as z:
        X, y, split = z["X"].reshape(-1, 1, 28, 28).astype(np.float32) / 255, z["y"].astype(np.int64), z["split"]
    return X[split == 0], y[split == 0], X[split == 1], y[split == 1]


def train(X: Any, y: Any) -> Any:
    """Two convolutions and a head with one hidden layer, trained with Adam and a cosine schedule."""
    torch.manual_seed(SEED)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(12, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    images, labels = torch.tensor(X), torch.tensor(y)
    adam = torch.optim.Adam(net.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, EPOCHS * (len(X) // BATCH))
    for _ in range(EPOCHS):
        order = torch.randperm(len(X))
        for start in range(0, len(X) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            adam.zero_grad()
            nn.functional.cross_entropy(net(images[chosen]), labels[chosen]).backward()
            adam.step()
            schedule.step()
    return net.eval()


def decided(net: Any, X: Any) -> Any:
    """The network's own decisions, in torch."""
    with torch.no_grad():
        return np.concatenate([net(torch.tensor(X[at : at + 500])).argmax(1).numpy() for at in range(0, len(X), 500)])


class Relay:
    """Passes a connection on to the server, counts the bytes of both directions, and keeps those that are sent."""

    def __init__(self, url: str) -> None:
        self.sent, self.received, self.kept, self.keeps = 0, 0, bytearray(), False
        self._server = (str(urlsplit(url).hostname), int(urlsplit(url).port or 80))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._socket.accept()
            server = socket.create_connection(self._server)
            for pair in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        try:
            while data := source.recv(2**16):
                if is_request:
                    self.sent += len(data)
                    self.kept += data if self.keeps else b""
                else:
                    self.received += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # one of the two has hung up
            target.close()


def patterns(values: Any) -> list[bytes]:
    """How values could stand in a message: eight bytes or more of float64, float32 or uint8, or as text.

    Shorter patterns stand in random bytes by chance, and runs of background pixels are no evidence.
    """
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    real = flat[(flat != 0) & (flat != 1)]
    out = [each.tobytes() for each in real] + [repr(float(each)).encode() for each in real]
    out += [pair.tobytes() for pair in real.astype(np.float32)[: len(real) // 2 * 2].reshape(-1, 2)]
    if flat.min() >= 0 and flat.max() <= 1:
        pixels = np.rint(255 * flat).astype(np.uint8)
        runs = [pixels[at : at + 8] for at in range(len(pixels) - 7)]
        out += [run.tobytes() for run in runs if np.count_nonzero(run) == 8]
    return [each for each in out if len(each) >= 8]


def found_in(looked_for: list[bytes], data: bytes) -> int:
    """How many of the patterns the data hold."""
    return sum(pattern in data for pattern in looked_for)


def over_http(fit_file: Path, made: Any, X: Any) -> dict[str, Any]:
    """All images decided by a server in a process of its own; what travels is counted and searched."""
    words = [
        "serve",
        str(fit_file),
        "--layout",
        "batch",
        "--samples",
        "4096",
        "--port",
        "0",
        "--workers",
        "1",
        "--json",
    ]
    server = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        relay = Relay(json.loads(server.stdout.readline())["url"])
        with Remote(relay.url, trust=True) as remote:
            pinned = remote.plan
        handed_out = relay.received
        with Remote(relay.url, plan=pinned) as remote:
            relay.keeps = True
            few = remote.predict(X[:CAPTURED], clip=True)
            relay.keeps = False
            sent, received, started = relay.sent, relay.received, time.perf_counter()
            answers = remote.predict(X, clip=True)
            seconds = time.perf_counter() - started
        plan = remote.plan
    finally:
        server.terminate()
        server.wait(60)
    features = made.mlp.inputs(X[:CAPTURED])
    pixels, hidden = patterns(X[:CAPTURED]), patterns(features)
    clear = X[:CAPTURED].astype(np.float64).tobytes() + np.asarray(features).tobytes()
    own = made.predict(X)
    assert (few.decisions == own[:CAPTURED]).all()
    return {
        "samples": len(X),
        "changed": int(np.count_nonzero(answers.decisions != own)),
        "clipped": int(answers.clipped),
        "ring": plan.chain.ring,
        "bits": plan.chain.bits,
        "upload_bytes": relay.sent - sent,
        "download_bytes": relay.received - received,
        "plan_and_feature_part_bytes": handed_out,
        "seconds": seconds,
        "capture": {
            "images": CAPTURED,
            "bytes": len(relay.kept),
            "pixel_patterns": len(pixels),
            "feature_patterns": len(hidden),
            "found": found_in(pixels + hidden, bytes(relay.kept)),
            "found_in_the_clear": found_in(pixels + hidden, clear),
        },
    }


def main() -> None:
    """Train, export, fit, serve and ask; write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    X, y, X_test, y_test = load()
    used = time.process_time()
    net = train(X, y)
    document: dict[str, Any] = {"machine": describe("torch", "onnxruntime", "seal-python")}
    document["training_cpu_seconds"] = time.process_time() - used
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "backbone.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter that needs no further package
            axes = {"X": {0: "n"}, "logits": {0: "n"}}
            names = {"input_names": ["X"], "output_names": ["logits"]}
            torch.onnx.export(net, (torch.tensor(X[:2]),), path, dynamo=False, dynamic_axes=axes, **names)
        mlp = MLP.load(path)
        used = time.process_time()
        made = fit(mlp, X[:CALIBRATION], family="head")
        document["fit_cpu_seconds"] = time.process_time() - used
        verified = verify(made, mlp, X[:CALIBRATION])
        agreement, relu = made.agreement(X_test), decided(net, X_test)
        assert mlp.feature_part is not None
        document["result"] = {
            "network": repr(mlp),
            "feature_part_bytes": len(mlp.feature_part.graph),
            "split_changes": int(np.count_nonzero(mlp.decide(mlp.inputs(X_test)) != relu)),
            "family": made.family,
            "calibration_rows": verified.samples,
            "calibration": verified.agreement,
            "statement": verified.statement,
            "test": float(agreement),
            "lost": agreement.mismatches,
            "accuracy": float(np.mean(made.predict(X_test) == y_test)),
            "network_accuracy": float(np.mean(relu == y_test)),
        }
        print(document["result"], flush=True)
        made.save(Path(folder) / "fit.safetensors")
        document["http"] = over_http(Path(folder) / "fit.safetensors", made, X_test)
    print(document["http"], flush=True)
    write(options.out, document)


if __name__ == "__main__":
    main()
