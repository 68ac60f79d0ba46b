"""Layouts use nothing of a library but what `layouts.backend` names."""

from __future__ import annotations

from typing import Any

import numpy as np

from quad4fhe import plan
from quad4fhe.he.seal import BACKEND, Context, SecretKey
from quad4fhe.layouts import LAYOUTS
from quad4fhe.layouts import backend as seam
from quad4fhe.layouts.forms import Kind
from support.standins import random_model, random_samples, stand_in


class Only:
    """An object of which only the names of a protocol can be used."""

    def __init__(self, inner: Any, protocol: type, **instead: Any) -> None:
        names = {name for name in vars(protocol) if not name.startswith("_")}
        self.__dict__ |= {name: getattr(inner, name) for name in names if name not in instead} | instead


def narrow(context: Context) -> Any:
    return Only(context, seam.Context)


def test_every_layout_answers_through_the_seam_alone() -> None:
    X = random_samples(200, 5)
    fit = stand_in(random_model(5, 16, 3), X)
    backend: Any = Only(BACKEND, seam.Backend, context=lambda chain: narrow(BACKEND.context(chain)))
    for name in LAYOUTS.names():
        made, layout = plan(fit, samples=2, layout=name, X=X), LAYOUTS.get(name)
        inner = SecretKey(Context(made.chain))
        key: Any = Only(inner, seam.Key, context=narrow(inner.context))
        evaluator = layout.evaluator(fit.model, made, backend, "auto")
        keys = evaluator.prepare(layout.make_keys(key, made)) if layout.has_keys(made) else None
        form = layout.form(made, Kind.request)
        assert form is not None
        chunks = form.checked("the request", layout.encrypt(key, made, X[:2] - made.shift))
        logits, plausible = layout.decrypt(key, made, evaluator.evaluate(chunks, keys))
        wanted = fit.model.logits(X[:2])
        assert plausible
        assert np.abs(logits[:2] - (wanted - wanted.mean(axis=1, keepdims=True))).max() <= made.error.bound
