"""One query with TenSEAL's own vector-matrix calls, as its tutorials write it; a process of its own, JSON on stdout.

The bias of the first layer enters as a feature that is always 1. Its tutorials add it to the result of `mm` instead,
which is silently wrong once that sum is multiplied again (OpenMined/TenSEAL#462). `peers.py` has TenSEAL's best form.

TenSEAL brings its own SEAL, so it is kept apart from the library under test. Reads the network from the .npz file named
on the command line (W1 b1 W2 b2 x alpha beta eta).
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import tenseal as ts


def main(path: str) -> None:
    """Time encrypt, evaluate and decrypt; best of three."""
    with np.load(path) as z:
        W1, b1, W2, b2, x = (z[name] for name in ("W1", "b1", "W2", "b2", "x"))
        alpha, beta, eta = (float(z[name]) for name in ("alpha", "beta", "eta"))
    chain = [60, 40, 40, 40, 40, 60]
    context = ts.context(ts.SCHEME_TYPE.CKKS, 2**14, coeff_mod_bit_sizes=chain, n_threads=1)
    context.global_scale = 2**40
    context.generate_galois_keys()
    columns1, columns2 = np.column_stack([W1, b1]).T.tolist(), W2.T.tolist()
    best, error = float("inf"), 0.0
    wanted = W2 @ (alpha * (W1 @ x + b1) ** 2 + beta * (W1 @ x + b1) + eta) + b2
    for _ in range(3):
        start = time.process_time()
        encrypted = ts.ckks_vector(context, [*x.tolist(), 1.0])
        active = encrypted.mm(columns1).polyval([eta, beta, alpha])
        logits = np.array((active.mm(columns2) + b2.tolist()).decrypt())
        best = min(best, time.process_time() - start)
        error = float(np.abs(logits - wanted).max())
    print(json.dumps({"cpu_seconds": best, "max_error": error, "tenseal": ts.__version__, "chain": chain}))


if __name__ == "__main__":
    main(sys.argv[1])
