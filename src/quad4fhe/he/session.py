"""`Client` and `answer`: encrypt samples, compute on a request, read the reply.

Nothing is stored: each request has a fresh secret key, which the client forgets with the reply, and an answer depends
on the fit, the plan and the request alone. Steps that differ by layout are in `layouts`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe._threads import few_threads
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import message
from quad4fhe.he.message import Data
from quad4fhe.he.seal import SecretKey, context
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.forms import Kind
from quad4fhe.mlp import decide
from quad4fhe.planning.box import check_inside
from quad4fhe.planning.plan import Hosted, Plan, require_model
from quad4fhe.polynomial import PolynomialModel

_WARMED = 2**26  # bytes of a request; a larger one is not worth a warm-up
_PREPARED = 8  # pairs of a model and a plan that `answer` keeps ready
_OPEN = struct.Struct("<32s32sII")  # plan hash, SHA-256 of the request, samples, bytes of its key


class ReplyError(Quad4FHEError):
    """A reply is damaged, or was made for another plan, model or request; it is discarded."""


@dataclass(frozen=True)
class _Open:
    """What reads the reply to a request: its key, and how many samples it holds."""

    key: SecretKey
    count: int


class Client:
    """The side that holds the samples: encrypts them, checks replies and decrypts scores.

    Every request has a key of its own, which is forgotten once its reply is read. The client accepts a reply only if it
    names this plan and an open request, and if its values are plausible: within the plan's bound, and with the known
    sum of scores where a layout has one. Damaged bytes do not pass. A lying server can: CKKS ciphertexts can be altered
    on purpose, and nothing here detects it.


    CKKS is approximate and SEAL is IND-CPA, not IND-CPA-D: never send decrypted values back to the server.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self._layout, self._shift = plan, layout_of(plan), plan.shift
        self._open: dict[bytes, _Open] = {}

    def __repr__(self) -> str:
        return f"Client({_words(self.plan)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Client holds the secret keys of its open requests, so it is not pickled or copied; if another process "
            "has to read the replies, give it client.secret_bytes() on a way that nobody else sees"
        )

    def encrypt(self, X: ArrayLike) -> bytes:
        """Encrypt the samples X (n, d), at most `plan.per_request`, into one request.

        For a model with a feature part, X are its features: `client.encrypt(fit.mlp.inputs(raw))`.
        """
        if self.plan.feature_part is not None and getattr(X, "part", None) != self.plan.feature_part:
            raise InputError(
                "this plan encrypts the features of a feature part, and X is not marked as such; "
                "pass fit.mlp.inputs(X), which computes them from raw inputs"
            )
        checked, most = check_inside(X, self.plan), self.plan.per_request
        if not 1 <= len(checked) <= most:
            raise InputError(f"{len(checked)} samples for one request, wanted 1 to {most}; see client.requests(X)")
        return self._encrypt(checked)

    def requests(self, X: ArrayLike) -> Iterator[bytes]:
        """Encrypt any number of samples X (n, d), a request at a time; read the replies in the same order."""
        checked = check_inside(X, self.plan)
        for start in range(0, len(checked), self.plan.per_request):
            yield self._encrypt(checked[start : start + self.plan.per_request])

    def _encrypt(self, checked: Array) -> bytes:
        key = SecretKey(context(self.plan.chain))
        Z = _without_denormals(checked - self._shift, self.plan.scales.x)
        request = message.write(self.plan, Kind.request, self._layout.encrypt(key, self.plan, Z))
        self._open[message.digest(request)] = _Open(key, len(Z))
        return request

    def read(self, reply: Data, to: bytes | None = None) -> Array:
        """The scores (n, K) in the reply to an open request, which is closed; for K >= 2 without their mean.

        `to` is the SHA-256 of that request, where several are open and their order matters. Raises ReplyError if the
        reply is rejected; then the request stays open.
        """
        plan = self.plan
        try:
            arrays, answers = message.read(plan, Kind.reply, reply), message.peek(reply).answers
        except InputError as error:
            raise ReplyError(f"the reply can't be used: {error}") from None
        if to not in (None, answers):
            raise ReplyError("the reply answers another request")
        if answers not in self._open:
            raise ReplyError("the reply answers no open request of this client; each reply is read once")
        opened = self._open[answers]
        scores, plausible = self._layout.decrypt(opened.key, plan, arrays)
        if not plausible:
            raise ReplyError(
                "the reply does not decrypt to values this plan can produce: it was damaged before it was written"
            )
        del self._open[answers]
        return scores[: opened.count]

    def decide(self, reply: Data) -> IntArray:
        """The decisions (n,) in the reply to an open request."""
        return decide(self.read(reply))

    def is_reliable(self, scores: Array) -> BoolArray | None:
        """Mark the reliable decisions (n,) of decrypted scores (n, K); None if the plan has no threshold."""
        return self.plan.is_reliable(scores)

    def secret_bytes(self) -> bytes:
        """The open requests with their secret keys, for `from_secret_bytes` where the replies are read.

        Whoever has these bytes reads the requests: keep them as you keep the samples.
        """
        parts = []
        for request, opened in self._open.items():
            key = opened.key.to_bytes()
            parts += [_OPEN.pack(self.plan.sha256, request, opened.count, len(key)), key]
        return b"".join(parts)

    @classmethod
    def from_secret_bytes(cls, plan: Plan, data: bytes) -> Client:
        """A client that reads the replies to the open requests of another one."""
        client, made, start = cls(plan), context(plan.chain), 0
        try:
            while start < len(data):
                sha256, request, count, length = _OPEN.unpack_from(data, start)
                start += _OPEN.size + length
                if sha256 != plan.sha256 or start > len(data) or not 1 <= count <= plan.per_request:
                    raise ValueError("not of this plan")
                client._open[request] = _Open(SecretKey(made, data[start - length : start]), count)
        except (struct.error, ValueError, RuntimeError):
            raise InputError("these are not the secret bytes of a client with this plan; encrypt again") from None
        return client


def _without_denormals(Z: Array, log2_scale: int) -> Array:
    """Replace values below 2^-40 of a unit of the scale with 0.

    Transforms of denormal numbers take many times longer. A server that chose a tiny box could read the signs of the
    features from that time. The rounding is far below the noise, and within the slack of the error bound.
    """
    out: Array = np.where(np.abs(Z) < 2.0 ** (-40 - log2_scale), 0.0, Z)
    return out


def answer(fit: Hosted, plan: Plan, request: Data) -> bytes:
    """Compute on an encrypted request: the bytes of the reply.

    The reply follows from the arguments and fresh random numbers; nothing is stored between two calls but the prepared
    weights. Every array of the request is checked before use. Only ciphertexts are seen here.

    Parameters
    ----------
    fit
        The fit, or anything else with a polynomial `model` and its `model_id`.
    plan
        The plan that the client used, made for this fit.
    request
        What `Client.encrypt` returned.
    """
    return _server(_Same(fit), plan).answer(request)


class _Same:
    """A fit that equals every other one with the same numbers and id."""

    def __init__(self, fit: Hosted) -> None:
        self.fit, self._names = fit, (fit.model.sha256, fit.model_id)

    def __hash__(self) -> int:
        return hash(self._names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._names == other._names


@lru_cache(maxsize=_PREPARED)
def _server(same: _Same, plan: Plan) -> Server:
    return Server(same.fit, plan)


class Server:
    """One model, prepared for requests of one plan; `checked` if a server was made of both before."""

    def __init__(self, fit: Hosted, plan: Plan, *, checked: bool = False) -> None:
        require_model(plan, fit)
        if not checked:
            _require_room(plan, fit.model)
        self.plan = plan
        with few_threads():
            self._evaluator = layout_of(plan).evaluator(fit.model, plan)

    def __repr__(self) -> str:
        return f"Server({_words(self.plan)})"

    def answer(self, request: Data, *, hashed: bool = False) -> bytes:
        """The reply to a request; with `hashed` the caller checks its SHA-256 before the reply is used."""
        arrays = message.read(self.plan, Kind.request, request, hashed=hashed)
        return message.write(self.plan, Kind.reply, self._evaluator.answer(arrays), message.digest(request))

    def warm_up(self) -> None:
        """Compile kernels before the first request, by answering a request of ones."""
        form = layout_of(self.plan).form(self.plan, Kind.request)
        if form.payload > _WARMED:
            return
        ones = [np.ones(part.shape, dtype=part.dtype) for part in form.parts]
        for array in ones:
            array.setflags(write=False)  # as arrays read from a message are
        self._evaluator.answer(ones)


def _words(plan: Plan) -> str:
    return f"layout {plan.layout}, ring N = {plan.chain.ring}, model {plan.model_id[:12]}"


def _require_room(plan: Plan, model: PolynomialModel) -> None:
    """Raise InputError if the plan could overflow: overflow is silent, and only the model's owner can check."""
    shape = (model.features, model.units, model.outputs)
    if shape != (plan.shape.features, plan.shape.units, plan.shape.outputs):
        raise InputError(f"this plan is for a network of another shape than {shape}; plan again")
    needed = layout_of(plan).reply_bound(plan, model)
    # The tolerance is for processors that sum in another order; the bound's own slack is ten times larger.
    if needed > plan.domain.bound * (1 + 1e-7):
        raise InputError(
            f"this plan could overflow: logits reach {needed:.4g}, the plan says {plan.domain.bound:.4g}; plan again"
        )
