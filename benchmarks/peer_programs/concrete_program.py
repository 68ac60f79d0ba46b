"""Concrete ML: the trained ReLU network itself, quantised after training, ReLU by table look-up.

No polynomial is needed, which is Concrete ML's strength. Decisions are compared with the ReLU network's own, on a few
encrypted rows and, by its simulator, on many. Form `one` rounds to 6 bits; form `few` to 3, with its approximate
rounding and a larger probability of error, the settings that it offers where time matters.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from concrete.ml.torch.compile import compile_torch_model
from measuring import Task, arguments, cpu, decisions, lines_of, report

SIMULATED = 200  # rows
BITS = {"one": 6, "few": 3}


def network(task: Task) -> Any:
    """The trained network."""
    units, features = task.W1.shape
    net = torch.nn.Sequential(
        torch.nn.Linear(features, units), torch.nn.ReLU(), torch.nn.Linear(units, task.W2.shape[0])
    )
    for layer, weight, bias in ((net[0], task.W1, task.b1), (net[2], task.W2, task.b2)):
        layer.weight.data, layer.bias.data = torch.tensor(weight).float(), torch.tensor(bias).float()
    return net


def compiled(net: Any, X: Any, form: str) -> Any:
    """The quantised circuit."""
    bits, shown = BITS[form], X.astype(np.float32)
    if form == "one":
        return compile_torch_model(net, shown, n_bits=bits, rounding_threshold_bits=bits)
    rounding = {"n_bits": bits, "method": "approximate"}
    return compile_torch_model(net, shown, n_bits=bits, rounding_threshold_bits=rounding, p_error=0.01)


def main() -> None:
    """Measure one form."""
    task, form, repeats = arguments()
    compiling, module = cpu(lambda: compiled(network(task), task.X_cal, form))
    keygen, _ = cpu(lambda: module.fhe_circuit.keygen(force=True))
    circuit, times, found = module.fhe_circuit, [], []
    for row in task.X[:repeats].astype(np.float32):
        one, request = cpu(lambda row=row: circuit.encrypt(*_one(module.quantize_input(row[None]))))
        two, reply = cpu(lambda request=request: circuit.run(request))
        three, logits = cpu(lambda reply=reply: module.dequantize_output(*_one(circuit.decrypt(reply))))
        times.append((one, two, three))
        found.append(np.asarray(logits).ravel())
    best = np.min(times, axis=0)
    simulated = module.forward(task.X[:SIMULATED].astype(np.float32), fhe="simulate")
    relu = task.relu
    report(
        peer="Concrete ML",
        form=form,
        version=version("concrete-ml"),
        keygen=keygen,
        key_bytes=len(circuit.client.evaluation_keys.serialize()),
        encrypt=best[0],
        server=best[1],
        decrypt=best[2],
        per_request=1,
        upload_bytes=len(request.serialize()),
        download_bytes=len(reply.serialize()),
        ring=None,
        modulus_bits=None,
        security="128 bits (its compiler's default)",
        lines=lines_of(network, compiled) + 5,
        repeats=repeats,
        samples=repeats,
        changed=int((decisions(np.array(found)) != relu[:repeats]).sum()),
        max_error=None,
        simulated=SIMULATED,
        simulated_kept=float((decisions(np.asarray(simulated)) == relu[:SIMULATED]).mean()),
        note=f"{BITS[form]} bits; decisions against the ReLU network; compiling took {compiling:.1f} s of CPU",
    )


def _one(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


if __name__ == "__main__":
    main()
