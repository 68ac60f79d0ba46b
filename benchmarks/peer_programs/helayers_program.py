"""HElayers (pyhelayers): an ONNX file, its own optimiser, then model, client and server objects.

Form `one` reads our folded export and form `tutorial` the unfolded one, both optimised for one row; `many` lets the
optimiser fill the slots. The free edition is for non-commercial use.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import pyhelayers as he
from measuring import arguments, compared, cpu, lines_of, report


def prepare(path: str, batch: int) -> tuple[Any, Any]:
    """The context with its keys, and the encoded model, as the optimiser chose them."""
    parameters = he.PlainModelHyperParams()
    parameters.number_of_features = 0
    plain = he.PlainModel.create(parameters, [path])
    wanted = he.HeRunRequirements()
    wanted.set_he_context_options([he.DefaultContext()])
    wanted.optimize_for_batch_size(batch)
    wanted.set_model_encrypted(False)
    profile = he.HeModel.compile(plain, wanted)
    context = he.HeModel.create_context(profile)
    model = plain.get_empty_he_model(context)
    model.encode(plain, profile)
    return context, model


def encrypt(coder: Any, context: Any, X: Any) -> Any:
    """The request."""
    request = he.EncryptedData(context)
    coder.encode_encrypt(request, [X])
    return request


def serve(model: Any, context: Any, request: Any) -> Any:
    """The reply."""
    reply = he.EncryptedData(context)
    model.predict(reply, request)
    return reply


def main() -> None:
    """Measure one form."""
    task, form, repeats = arguments()
    stem = sys.argv[1].removesuffix(".npz")
    path = f"{stem}.onnx" if form == "tutorial" else f"{stem}_folded.onnx"
    batch = 1 if form != "many" else min(2048, len(task.X))
    keygen, (context, model) = cpu(lambda: prepare(path, batch))
    coder = model.create_model_io_encoder()
    times, found = [], []
    for start in range(repeats if form != "many" else 1):
        X = task.X[start * batch : (start + 1) * batch]
        one, request = cpu(lambda X=X: encrypt(coder, context, X))
        two, reply = cpu(lambda request=request: serve(model, context, request))
        three, logits = cpu(lambda reply=reply: coder.decrypt_decode_output(reply))
        times.append((one, two, three))
        found.append(np.asarray(logits).reshape(len(X), -1))
    best = np.min(times, axis=0)
    public = context.save_to_buffer()
    report(
        peer="HElayers",
        form=form,
        version=version("pyhelayers"),
        keygen=keygen,
        key_bytes=len(public),
        encrypt=best[0],
        server=best[1],
        decrypt=best[2],
        per_request=batch,
        upload_bytes=len(request.save_to_buffer()),
        download_bytes=len(reply.save_to_buffer()),
        ring=2 * context.slot_count(),
        modulus_bits=None,
        security=f"{context.get_security_level()} bits by {context.get_library_name()}",
        lines=lines_of(prepare, encrypt, serve) + 3,
        repeats=len(times),
        note="keygen includes the optimiser and encoding the model",
        **compared(np.concatenate(found), task.logits[: sum(map(len, found))]),
    )


if __name__ == "__main__":
    main()
