"""Orion 1 (orion-fhe): a torch network with Orion's layers, compiled and evaluated in one process.

Form `one` is the folded network with three levels on the smallest ring that holds them; form `tutorial` has the ring
and primes of Orion's own MLP example, which are over the 128-bit limit of N = 8192.

Orion 1 sends nothing, and writes only its rotation keys. Bytes are those of one rotation key as it writes it, times the
number of keys, with the relinearisation key, which is as long; and eight per residue of a ciphertext.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import orion
import orion.nn as on
import torch
from measuring import Task, arguments, compared, cpu, lines_of, report
from orion.core.orion import scheme

RINGS = {
    "one": {"LogN": 13, "LogQ": [46, 36, 36, 36], "LogP": [46], "LogScale": 36, "H": 8192, "RingType": "Standard"},
    "tutorial": {
        "LogN": 13,
        "LogQ": [29, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26],
        "LogP": [29, 29, 29, 29, 29, 29],
        "LogScale": 26,
        "H": 8192,
        "RingType": "Standard",
    },
}
OTHERS = {"margin": 2, "embedding_method": "hybrid", "backend": "lattigo", "fuse_modules": True, "debug": False}
OTHERS |= {"diags_path": "", "keys_path": "", "io_mode": "none"}


class Net(on.Module):
    """Affine, square, affine."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        units, features = task.W.shape
        self.fc1, self.act, self.fc2 = on.Linear(features, units), on.Quad(), on.Linear(units, len(task.k))
        for layer, weight, bias in ((self.fc1, task.W, task.b), (self.fc2, task.V, task.k)):
            layer.weight.data, layer.bias.data = torch.tensor(weight).float(), torch.tensor(bias).float()

    def forward(self, x: Any) -> Any:
        """Logits."""
        return self.fc2(self.act(self.fc1(x)))


def prepare(task: Task, form: str) -> tuple[Any, int]:
    """The compiled network and the level of its inputs; makes all keys."""
    orion.init_scheme({"ckks_params": RINGS[form], "orion": OTHERS})
    net = Net(task)
    net.eval()
    orion.fit(net, torch.tensor(task.X_cal[:1]).float())
    level = orion.compile(net)
    net.he()
    return net, level


def encrypt(row: Any, level: int) -> Any:
    """One question."""
    return orion.encrypt(orion.encode(torch.tensor(row[None]).float(), level))


def decrypt(reply: Any) -> Any:
    """Its logits."""
    return reply.decrypt().decode()


def key_bytes(log_ring: int) -> int:
    """Bytes of the relinearisation key and of all rotation keys: those of the layers, and by powers of two."""
    turns = {pow(5, 1 << k, 2 << log_ring) for k in range(log_ring - 1)}
    needed = set(scheme.lt_evaluator.saved_rotation_keys) | turns
    one, memory = scheme.backend.GenerateAndSerializeRotationKey(next(iter(needed)))
    each = len(one)
    scheme.backend.FreeCArray(memory)
    return (len(needed) + 1) * each


def sent_bytes(tensor: Any, ring: int) -> int:
    """Bytes of the ciphertexts of a tensor."""
    backend = scheme.backend
    polynomials = [(backend.GetCiphertextDegree(i) + 1) * (backend.GetCiphertextLevel(i) + 1) for i in tensor.ids]
    return 8 * ring * sum(polynomials)


def main() -> None:
    """Measure one form."""
    task, form, repeats = arguments()
    keygen, (net, level) = cpu(lambda: prepare(task, form))
    times, found = [], []
    for row in task.X[:repeats]:
        one, request = cpu(lambda row=row: encrypt(row, level))
        two, reply = cpu(lambda request=request: net(request))
        three, logits = cpu(lambda reply=reply: decrypt(reply))
        times.append((one, two, three))
        found.append(np.asarray(logits).ravel()[: len(task.k)])
    best = np.min(times, axis=0)
    ring = RINGS[form]
    report(
        peer="Orion 1",
        form=form,
        version=version("orion-fhe"),
        keygen=keygen,
        key_bytes=key_bytes(ring["LogN"]),
        encrypt=best[0],
        server=best[1],
        decrypt=best[2],
        per_request=1,
        upload_bytes=sent_bytes(request, 2 ** ring["LogN"]),
        download_bytes=sent_bytes(reply, 2 ** ring["LogN"]),
        ring=2 ** ring["LogN"],
        modulus_bits=sum(ring["LogQ"]) + sum(ring["LogP"]),
        security="within the 128-bit limit; not checked by Orion" if form == "one" else "above the 128-bit limit (218)",
        lines=lines_of(Net, prepare, encrypt, decrypt) + 3,
        repeats=repeats,
        note="keygen includes compilation; one process, so nothing is sent: bytes are counted",
        **compared(np.array(found), task.logits[:repeats]),
    )


if __name__ == "__main__":
    main()
