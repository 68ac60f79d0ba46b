"""TenSEAL: vectors with `mm` for one question, a batched tensor for many.

Form `tutorial` follows TenSEAL's own examples, except that the bias enters as a feature that is always 1: adding it to
the result of `mm` and multiplying again is silently wrong (OpenMined/TenSEAL#462). Form `one` is the best we found: the
folded network on the smallest ring that holds it. Form `wrong` adds the bias as the tutorial does, to show the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tenseal as ts
from measuring import Task, arguments, compared, cpu, lines_of, report

SMALL = {"ring": 8192, "chain": [54, 36, 36, 36, 54], "scale": 36}
TUTORIAL = {"ring": 16384, "chain": [60, 40, 40, 40, 40, 60], "scale": 40}


def keys(ring: int, chain: list[int], scale: int, *, rotations: bool = True) -> Any:
    """A context with its keys."""
    context = ts.context(ts.SCHEME_TYPE.CKKS, ring, coeff_mod_bit_sizes=chain, n_threads=1)
    context.global_scale = 2**scale
    if rotations:
        context.generate_galois_keys()
    return context


def folded(x: Any, first: list[list[float]], second: list[list[float]], last: list[float]) -> Any:
    """Affine, square, affine; the vector x ends with a 1."""
    return x.mm(first).square().mm(second) + last


def unfolded(x: Any, first: list[list[float]], three: list[float], second: list[list[float]], last: list[float]) -> Any:
    """The network as it is written: affine, polynomial, affine."""
    return x.mm(first).polyval(three).mm(second) + last


def wrong(x: Any, task: Task) -> Any:
    """As the tutorial adds a bias."""
    hidden = x.mm(task.W1.T.tolist()) + task.b1.tolist()
    return (
        hidden.polyval([float(task.eta), float(task.beta), float(task.alpha)]).mm(task.W2.T.tolist()) + task.b2.tolist()
    )


def many(x: Any, task: Task) -> Any:
    """A batched tensor (1, d), one sample in every slot."""
    hidden = x.mm(ts.plain_tensor(task.W.T.tolist())) + ts.plain_tensor(task.b[None].tolist())
    return hidden.square().mm(ts.plain_tensor(task.V.T.tolist())) + ts.plain_tensor(task.k[None].tolist())


def circuit(task: Task, form: str) -> Callable[[Any], Any]:
    """The server's function, with the weights as lists."""
    if form == "one":
        first = np.column_stack([task.W, task.b]).T.tolist()
        return lambda x: folded(x, first, task.V.T.tolist(), task.k.tolist())
    if form == "tutorial":
        first = np.column_stack([task.W1, task.b1]).T.tolist()
        three = [float(task.eta), float(task.beta), float(task.alpha)]
        return lambda x: unfolded(x, first, three, task.W2.T.tolist(), task.b2.tolist())
    return lambda x: wrong(x, task)


def questions(task: Task, form: str, repeats: int) -> None:
    """One question at a time."""
    parameters = SMALL if form == "one" else TUTORIAL
    keygen, context = cpu(lambda: keys(**parameters))
    serve = circuit(task, form)
    times, found = [], []
    for row in task.X[:repeats]:
        shown = row.tolist() if form == "wrong" else [*row.tolist(), 1.0]
        encrypt, x = cpu(lambda shown=shown: ts.ckks_vector(context, shown))
        server, reply = cpu(lambda x=x: serve(x))
        decrypt, logits = cpu(reply.decrypt)
        times.append((encrypt, server, decrypt))
        found.append(logits)
    _finish(task, times, np.array(found), keygen, _public_bytes(context), x, reply, parameters, 1, form)


def batch(task: Task, repeats: int) -> None:
    """All slots at once, one sample each."""
    keygen, context = cpu(lambda: keys(**SMALL, rotations=False))
    X = task.X[np.arange(SMALL["ring"] // 2) % len(task.X)]
    encrypt, x = cpu(lambda: ts.ckks_tensor(context, X[:, None, :].tolist(), batch=True))
    server, reply = cpu(lambda: many(x, task))
    decrypt, logits = cpu(lambda: np.array(reply.decrypt().tolist())[:, 0, :])
    wanted = task.logits[np.arange(len(X)) % len(task.X)]
    task.arrays["logits"] = wanted
    _finish(task, [(encrypt, server, decrypt)], logits, keygen, _public_bytes(context), x, reply, SMALL, len(X), "many")


def _public_bytes(context: Any) -> int:
    """Bytes of what the server needs: parameters, public, relinearisation and rotation keys."""
    public = context.copy()
    public.make_context_public()
    return len(public.serialize())


def _finish(
    task: Task,
    times: list,
    found: Any,
    keygen: float,
    key_bytes: int,
    x: Any,
    reply: Any,
    parameters: dict,
    per_request: int,
    form: str,
) -> None:
    encrypt, server, decrypt = np.min(times, axis=0)
    body = {"one": folded, "tutorial": unfolded, "wrong": wrong, "many": many}[form]
    report(
        peer="TenSEAL",
        form=form,
        version=ts.__version__,
        keygen=keygen,
        key_bytes=key_bytes,
        encrypt=float(encrypt),
        server=float(server),
        decrypt=float(decrypt),
        per_request=per_request,
        upload_bytes=len(x.serialize()),
        download_bytes=len(reply.serialize()),
        ring=parameters["ring"],
        modulus_bits=sum(parameters["chain"]),
        security="128 bits (SEAL checks)",
        lines=lines_of(keys, body) + 3,
        repeats=len(times),
        **compared(found, task.logits[: len(found)]),
    )


if __name__ == "__main__":
    given, asked, count = arguments()
    batch(given, count) if asked == "many" else questions(given, asked, count)
