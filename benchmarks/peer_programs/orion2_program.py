"""Orion 2 (orion-v2-compiler, -evaluator, -lattigo): compile a torch network, then separate client and server objects.

Form `one` is the folded network, which Orion's own `Quad` layer fits; form `tutorial` has the parameters of Orion's MLP
example in its own ring type, on the same network.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import orion_compiler.nn as on
import torch
from lattigo.ckks import Encoder, Parameters
from lattigo.rlwe import Ciphertext, Decryptor, Encryptor, KeyGenerator, MemEvaluationKeySet
from measuring import Task, arguments, compared, cpu, lines_of, report
from orion_compiler import CKKSParams, Compiler
from orion_evaluator import Evaluator, Model

# Three levels, one special prime: 200 bits are within the 128-bit limit of N = 8192 (218). A secret with as many
# non-zero coefficients as the ring is dense, as the table of the limits assumes; Orion's default is sparse (192).
SMALL = CKKSParams(logn=13, logq=[46, 36, 36, 36], logp=[46], log_default_scale=36, h=8192, ring_type="standard")
TUTORIAL = CKKSParams(logn=13, logq=[29, 26, 26, 26, 26], logp=[29, 29], log_default_scale=26, h=8192)


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


def compiled(task: Task, parameters: Any) -> bytes:
    """The model as the server loads it."""
    compiler = Compiler(Net(task).eval(), parameters)
    compiler.fit(torch.tensor(task.X_cal[:1]).float())
    return compiler.compile().to_bytes()


def keys(params_dict: dict, manifest: dict) -> tuple:
    """The client's objects, and the bytes of its evaluation keys."""
    params = Parameters.from_dict(params_dict)
    generator = KeyGenerator(params)
    secret = generator.gen_secret_key()
    public = generator.gen_public_key(secret)
    relin = generator.gen_relin_key(secret) if manifest["needs_rlk"] else None
    galois = [generator.gen_galois_key(secret, int(element)) for element in manifest["galois_elements"]]
    evaluation = MemEvaluationKeySet(rlk=relin, galois_keys=galois).marshal_binary()
    return params, Encoder(params), Encryptor(params, public), Decryptor(params, secret), evaluation


def encrypt(row: Any, level: int, params: Any, encoder: Any, encryptor: Any) -> bytes:
    """One question."""
    padded = np.zeros(params.max_slots())
    padded[: len(row)] = row
    return encryptor.encrypt_new(encoder.encode(padded.tolist(), level, params.default_scale())).marshal_binary()


def decrypt(reply: bytes, outputs: int, params: Any, encoder: Any, decryptor: Any) -> Any:
    """Its logits."""
    return encoder.decode(decryptor.decrypt_new(Ciphertext.unmarshal_binary(reply)), params.max_slots())[:outputs]


def main() -> None:
    """Measure one form."""
    task, form, repeats = arguments()
    chosen = SMALL if form == "one" else TUTORIAL
    model_bytes = compiled(task, chosen)
    model = Model.load(model_bytes)
    params_dict, manifest, level = model.client_params()
    keygen, (params, encoder, encryptor, decryptor, evaluation) = cpu(lambda: keys(params_dict, manifest))
    evaluator = Evaluator(params_dict, evaluation)
    times, found = [], []
    for row in task.X[:repeats]:
        one, request = cpu(lambda row=row: encrypt(row, level, params, encoder, encryptor))
        two, reply = cpu(lambda request=request: evaluator.forward(model, [request])[0])
        three, logits = cpu(lambda reply=reply: decrypt(reply, len(task.k), params, encoder, decryptor))
        times.append((one, two, three))
        found.append(logits)
    best = np.min(times, axis=0)
    report(
        peer="Orion 2",
        form=form,
        version=version("orion-v2-compiler"),
        keygen=keygen,
        key_bytes=len(evaluation),
        encrypt=best[0],
        server=best[1],
        decrypt=best[2],
        per_request=1,
        upload_bytes=len(request),
        download_bytes=len(reply),
        ring=chosen.ring_degree,
        modulus_bits=sum(chosen.logq) + sum(chosen.logp),
        security="within the 128-bit limit; not checked by Orion" if form == "one" else "not checked by Orion",
        lines=lines_of(Net, compiled, keys, encrypt, decrypt) + 6,
        repeats=repeats,
        **compared(np.array(found), task.logits[:repeats]),
    )


if __name__ == "__main__":
    main()
