"""Client and Server: a plan carried out with real keys.

Decides what travels (a header and arrays of residues), what each side checks before use, and how a reply that does
not belong is found out. Layouts are in `batch` and `packed`; bytes on disk and on the wire are left to others.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.circuit.domain import check_inside
from quad4fhe.circuit.fold import fold
from quad4fhe.circuit.plan import Fitted, Plan, reply_bound, require_model
from quad4fhe.circuit.quantise import quantise
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import batch, packed
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.packed import EvaluationKeys
from quad4fhe.he.residues import KernelName, check_residues
from quad4fhe.he.seal import Context, SealError, SecretKey
from quad4fhe.mlp import decide
from quad4fhe.quadratic import QuadraticModel

# What the binding makes of the exceptions of C++. A MemoryError is not the client's fault and passes.
_SEAL_RAISES = (ValueError, RuntimeError, IndexError, ArithmeticError)
_LOOK = 16  # residues


class ReplyError(Quad4FHEError):
    """A reply is damaged, or was made for another plan, model, key or request; nothing of it is returned."""


@dataclass(frozen=True)
class Header:
    """What a request and its reply must share: the plan's hash, the model's, the key's name, and a nonce."""

    plan: bytes
    model: str
    key: bytes
    nonce: bytes


@dataclass(frozen=True, eq=False)
class Request:
    """Encrypted samples: chunks of residues, unsigned integers of a shape fixed by the plan.

    From `Client.stream` the chunks are made while they are read, once; from `Client.encrypt` they are a list.
    """

    header: Header
    chunks: Iterable[NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Reply:
    """Encrypted logits: residues of a shape fixed by the plan."""

    header: Header
    residues: NDArray[Any]


class Client:
    """The side that holds the key: encrypts samples, decrypts logits, and trusts no reply that does not fit.

    A reply is returned only if its header names this client's plan, model, key and an open request, and if every slot
    of it lies within the plan's bound. The second test needs no header. Under a wrong key the decrypted coefficients
    are (by RLWE) as good as uniform modulo Q, and as Q / scale >= 2 bound, all N/2 slots of one output fall within the
    bound with probability at most (2 / sqrt(N))^(N/2), by Ball's bound on sections of the cube: 2^-10240 at N = 4096.
    Damage to the residues spreads over all slots in the same way. It is no defence against a server that lies: CKKS
    ciphertexts can be altered on purpose, and no such claim is made.

    Without a stored `key` (see `keys`) the client makes one that ends with it.

    CKKS is approximate and SEAL is IND-CPA, not IND-CPA-D: what was decrypted must not be sent back to the server.
    """

    def __init__(self, plan: Plan, key: StoredKey | None = None) -> None:
        self.plan = plan
        self._secret = SecretKey(Context(plan.chain)) if key is None else key.open(plan)
        self._key_id = secrets.token_bytes(16) if key is None else key.key_id
        self._open: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"Client({_words(self.plan)}, key {self._key_id.hex()[:12]})"

    def evaluation_keys(self) -> EvaluationKeys | None:
        """What the server must be given once before the first request; None for layout batch, which needs none."""
        return None if self.plan.layout == "batch" else packed.make_keys(self._secret, self.plan.packing)

    @property
    def key_id(self) -> bytes:
        """The name of this client's key; it says nothing about the key."""
        return self._key_id

    def encrypt(self, X: ArrayLike) -> list[Request]:
        """Requests for the samples X (n, d), held in memory."""
        return [replace(request, chunks=list(request.chunks)) for request in self.stream(X)]

    def stream(self, X: ArrayLike) -> Iterator[Request]:
        """Requests for the samples X, one group at a time, encrypted feature by feature while they are read."""
        checked = check_inside(X, self.plan.domain)
        plan = self.plan
        for start in range(0, len(checked), plan.per_request):
            Z = _without_denormals(checked[start : start + plan.per_request] - plan.shift, plan.scales.x)
            header = Header(plan.sha256, plan.model_id, self._key_id, secrets.token_bytes(16))
            self._open[header.nonce] = len(Z)
            if plan.layout == "batch":
                yield Request(header, batch.encrypt(self._secret, Z, plan.scales.x, plan.reach))
            else:
                yield Request(header, packed.encrypt(self._secret, Z, plan.packing, plan.scales.x, plan.reach))

    def reopen(self, nonce: bytes, count: int) -> None:
        """Take up a request of `count` samples that an earlier client of the same key and plan made."""
        if len(nonce) != 16 or not 1 <= count <= self.plan.per_request:
            raise InputError("this is no request of this plan: its nonce or number of samples can't be right")
        self._open[nonce] = count

    def decrypt(self, replies: Reply | Iterable[Reply]) -> Array:
        """Logits (n, K) in the order of the requests; for K >= 2 without their mean over the classes.

        Each reply answers one open request and closes it. Where one of them is refused, none is closed.
        """
        listed = [replies] if isinstance(replies, Reply) else list(replies)
        found = {reply.header.nonce: self._one(reply) for reply in listed}
        if len(found) < len(listed):
            raise ReplyError("the same reply was given twice; each is read once")
        rows = [found[nonce] for nonce in self._open if nonce in found]
        for nonce in found:
            del self._open[nonce]
        return np.concatenate(rows) if rows else np.empty((0, self.plan.shape.outputs))

    def decide(self, replies: Reply | Iterable[Reply]) -> IntArray:
        """Decisions (n,) from the replies, in order."""
        return decide(self.decrypt(replies))

    def is_reliable(self, logits: Array) -> BoolArray | None:
        """Which decisions from decrypted logits (n, K) are reliable; None where the plan has no threshold."""
        return self.plan.is_reliable(logits)

    def _one(self, reply: Reply) -> Array:
        header, plan = reply.header, self.plan
        for name, got, wanted in (
            ("plan", header.plan, plan.sha256),
            ("model", header.model, plan.model_id),
            ("key", header.key, self._key_id),
        ):
            if got != wanted:
                raise ReplyError(
                    f"the reply was made for another {name}; replies are read by the client that made the request"
                )
        if header.nonce not in self._open:
            raise ReplyError("the reply answers no open request of this client; each reply is read once")
        try:
            slots, logits = self._slots(reply.residues)
        except InputError as error:
            raise ReplyError(str(error)) from None
        if not np.abs(slots).max() <= plan.domain.bound * (1 + 1e-6):
            raise ReplyError(
                "the reply does not decrypt to values this plan can produce: wrong key, or damaged on the way"
            )
        return logits[: self._open[header.nonce]]

    def _slots(self, residues: NDArray[Any]) -> tuple[Array, Array]:
        """Every slot of a reply, and the logits among them."""
        plan = self.plan
        primes, ring = plan.value_chain.primes, plan.chain.ring
        if plan.layout == "batch":
            shape = (plan.shape.outputs, 3, len(primes), ring)
            check_residues("the reply", residues, shape, plan.chain.primes, np.uint32)
            slots = batch.decrypt(self._secret, residues, plan.scales.out)
            return slots, slots
        check_residues("the reply", residues, (2, len(primes), ring), primes, np.uint64)
        slots = packed.decrypt(self._secret, residues, plan.scales)
        return slots, packed.logits_of(slots, plan.packing)


def _without_denormals(Z: Array, log2_scale: int) -> Array:
    """Z with 0 in the place of what is less than 2^-40 of a unit of its scale.

    Transforms of denormal numbers take many times as long, which would tell a server with a box of that size the signs
    of the features. What is lost is far below the noise, and within the slack of the error bound.
    """
    out: Array = np.where(np.abs(Z) < 2.0 ** (-40 - log2_scale), 0.0, Z)
    return out


class Server:
    """The side that holds the model: answers requests, sees only ciphertexts.

    Every array is checked (type, shape, each residue below its prime) before use. Evaluation keys of layout packed
    are read by SEAL's own deserialiser, once per client. Replies are not re-randomised: whoever holds the key can solve
    for the weights from enough of them, so the model is no secret to its clients.
    """

    def __init__(self, fit: Fitted, plan: Plan, kernel: KernelName = "auto") -> None:
        require_model(plan, fit.model)
        _require_room(plan, fit.model)
        self.plan = plan
        self._keys: dict[bytes, tuple[Any, Any]] = {}
        self._batch: batch.BatchEvaluator | None = None
        self._packed: packed.PackedEvaluator | None = None
        if plan.layout == "batch":
            circuit = fold(fit.model, plan.domain.box, plan.form)
            self._batch = batch.BatchEvaluator(quantise(circuit, plan.scales), plan.chain, kernel)
        else:
            self._packed = packed.PackedEvaluator(fit.model, plan.shift, plan.chain, plan.scales, plan.packing)

    def __repr__(self) -> str:
        return f"Server({_words(self.plan)})"

    def register(self, key_id: bytes, keys: EvaluationKeys | None) -> None:
        """Take a client's evaluation keys; does nothing for layout batch."""
        if self._packed is None:
            return
        if keys is None:
            raise InputError("layout packed needs evaluation keys: pass client.evaluation_keys()")
        if key_id in self._keys:
            raise InputError("keys of this name are known already and are not replaced; forget them first")
        context, steps = self._packed.context, self.plan.packing.steps()
        try:
            relin = context.switching_words(keys.relin, [0], single=True)
            if not (_opaque(relin) and _opaque(context.switching_words(keys.galois, steps))):
                raise InputError("some of the evaluation keys are zero; make them again")
            self._keys[key_id] = (context.relin_keys(keys.relin), context.galois_keys(keys.galois))
        except (*_SEAL_RAISES, SealError) as error:
            raise InputError(f"not evaluation keys of this plan: {error}") from None

    def knows(self, key_id: bytes) -> bool:
        """Whether a request of this key can be answered now."""
        return self._packed is None or key_id in self._keys

    def forget(self, key_id: bytes) -> None:
        """Drop a client's evaluation keys; its next request needs them again."""
        self._keys.pop(key_id, None)

    def evaluate(self, request: Request) -> Reply:
        """The reply to one request."""
        header = request.header
        if header.plan != self.plan.sha256 or header.model != self.plan.model_id:
            raise InputError("the request was made for another plan or model; plan and encrypt again")
        if self._batch is not None:
            return Reply(header, self._batch.evaluate(map(_encrypted, request.chunks)))
        assert self._packed is not None
        keys = self._keys.get(header.key)
        if keys is None:
            raise InputError("no evaluation keys of this client: call server.register(client.key_id, keys) first")
        chunks = list(request.chunks)
        if not chunks or len({(chunk.shape, chunk.dtype) for chunk in chunks}) > 1:
            raise InputError("the request has no ciphertexts, or some of another size; encrypt again")
        for chunk in chunks:
            _encrypted(chunk[None])
        try:
            return Reply(header, self._packed.evaluate(np.stack(chunks), keys))
        except InputError:
            raise
        except _SEAL_RAISES as error:
            # Also where an intermediate result is transparent: ciphertexts or keys can be made such that it is.
            raise InputError(
                f"SEAL refuses this request with this client's evaluation keys ({error}); make both again"
            ) from None


def _encrypted(chunk: NDArray[Any]) -> NDArray[Any]:
    """Residues (rows, 2, primes, N) as they are; refuses transparent ones, which anybody could read."""
    if chunk.ndim == 4 and chunk.shape[1] == 2 and not _opaque(chunk):
        raise InputError("the request has a ciphertext that encrypts nothing: its second polynomial is zero")
    return chunk


def _opaque(residues: NDArray[Any]) -> bool:
    """Whether the second polynomial of every ciphertext (..., 2, primes, N) has a residue that is not zero."""
    second = residues[..., 1, :, :]
    honest = second[..., 0, :_LOOK].any(axis=-1)  # practically always, and read without the rest
    return bool(second[~honest].any(axis=(-1, -2)).all())


def _words(plan: Plan) -> str:
    return f"layout {plan.layout}, ring N = {plan.chain.ring}, model {plan.model_id[:12]}"


def _require_room(plan: Plan, model: QuadraticModel) -> None:
    """Overflow is silent, and only the model's holder can tell whether a plan's bound is true: so the server does."""
    shape = (model.features, model.units, model.outputs)
    if shape != (plan.shape.features, plan.shape.units, plan.shape.outputs):
        raise InputError(f"this plan is for a network of another shape than {shape}; plan again")
    needed = reply_bound(plan, model)
    # Another processor sums in another order; the bound itself has ten times as much to spare.
    if needed > plan.domain.bound * (1 + 1e-7):
        raise InputError(
            f"this plan could overflow: logits reach {needed:.4g}, it says {plan.domain.bound:.4g}; plan again"
        )


def connect(fit: Fitted, plan: Plan, kernel: KernelName = "auto") -> tuple[Client, Server]:
    """A client and a server in one process that know each other's keys."""
    client, server = Client(plan), Server(fit, plan, kernel)
    server.register(client.key_id, client.evaluation_keys())
    return client, server
