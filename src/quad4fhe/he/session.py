"""Client and Server: run a plan with real keys.

The client checks every reply, and the server every request, before use. Steps that differ by layout are in `layouts`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe._threads import few_threads
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import backends
from quad4fhe.he.ahead import SPENT, PreparedReplies, SpentError, TakenError
from quad4fhe.he.container import EvaluationKeys, Identity, Reply, Request, form, read_keys
from quad4fhe.he.key_cache import KeyCache
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.prepared import Part, Prepared, PreparedStore, seed_name
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.backend import Backend
from quad4fhe.layouts.forms import Kind
from quad4fhe.layouts.residues import KernelName
from quad4fhe.mlp import decide
from quad4fhe.planning.box import check_inside
from quad4fhe.planning.plan import Hosted, Plan, require_model
from quad4fhe.polynomial import PolynomialModel

_WARMED = 2**26  # bytes of a request; a larger one is not worth a warm-up


class ReplyError(Quad4FHEError):
    """A reply is damaged, or was made for another plan, model, key or request; it is discarded."""


@dataclass(frozen=True)
class _Open:
    """A request without a reply: its number of samples, and the products of a reply that was prepared."""

    count: int
    products: bytes | None = None


class Client:
    """The side that holds the key: encrypts samples, checks replies and decrypts logits.

    The client accepts a reply only if it names this client's plan, model and key and an open request, and if its values
    are plausible: in layouts with slots, every slot must lie within the plan's bound. A wrong key or damaged bytes do
    not pass this check. A lying server can: CKKS ciphertexts can be altered on purpose, and nothing here detects it.

    Without a stored `key` (see `keys`) the client makes a temporary one. `prepared` holds what `prepare` made ahead
    with the same key and plan; a request takes from it what it can. If the server has lost its part of that, it raises
    SpentError: encrypt the samples again, with `prepared=False`.

    CKKS is approximate and SEAL is IND-CPA, not IND-CPA-D: never send decrypted values back to the server.
    """

    def __init__(self, plan: Plan, key: StoredKey | None = None, prepared: Prepared | None = None) -> None:
        self.plan, self._layout, self._shift = plan, layout_of(plan), plan.shift
        self._secret = SecretKey(Context(plan.chain)) if key is None else key.open(plan)
        self._key_id = secrets.token_bytes(16) if key is None else key.key_id
        self._open: dict[bytes, _Open] = {}
        self._prepared = prepared

    def __repr__(self) -> str:
        return f"Client({_words(self.plan)}, key {self._key_id.hex()[:12]})"

    def evaluation_keys(self) -> EvaluationKeys | None:
        """The keys that the server needs once, before the first request; None if the layout needs none."""
        if not self._layout.has_keys(self.plan):
            return None
        return EvaluationKeys(self._layout.make_keys(self._secret, self.plan))

    @property
    def key_id(self) -> bytes:
        """The id of this client's key; it reveals nothing about the key."""
        return self._key_id

    def encrypt(self, X: ArrayLike, *, prepared: bool = True) -> list[Request]:
        """Encrypt the samples X (n, d) into requests, held in memory; afresh if `prepared` is False.

        For a model with a feature part, X are its features: `client.encrypt(fit.mlp.inputs(raw))`.
        """
        if self.plan.feature_part is not None and getattr(X, "part", None) != self.plan.feature_part:
            raise InputError(
                "this plan encrypts the features of a feature part, and X is not marked as such; "
                "pass fit.mlp.inputs(X), which computes them from raw inputs"
            )
        made = self.stream(X, prepared=prepared)
        return [Request(request.identity, list(request.chunks), request.kind) for request in made]

    def stream(self, X: ArrayLike, *, prepared: bool = True) -> Iterator[Request]:
        """Yield requests for the samples X; each is encrypted in chunks while it is read."""
        checked = check_inside(X, self.plan)
        plan = self.plan
        for start in range(0, len(checked), plan.per_request):
            Z = _without_denormals(checked[start : start + plan.per_request] - self._shift, plan.scales.x)
            part = self._prepared.take() if prepared and self._prepared is not None else None
            whole = part is None or part.products is None
            nonce = secrets.token_bytes(16) if part is None or whole else part.name
            identity = Identity.of(plan, self._key_id, nonce)
            self._open[nonce] = _Open(len(Z), None if part is None else part.products)
            if part is None:
                yield Request(identity, self._layout.encrypt(self._secret, plan, Z))
            else:
                chunks = self._layout.encrypt_prepared(plan, Z, part.zeros)
                yield Request(identity, chunks, Kind.request if whole else Kind.prepared)

    def prepare(self, count: int, store: PreparedStore, ask: Callable[[Request], Reply] | None = None) -> int:
        """Make ahead what `count` later requests of this key need, and return how many are in the store then.

        Only what does not depend on samples; layouts without such a part make none. Pass the store to the clients of
        these requests as `prepared`. `ask` sends a seed to the server and returns its second halves, as
        `server.prepare` does; without it only the client's half is prepared.
        """
        store.tidy()
        for _ in range(count):
            part, seed = self.make_part()
            with suppress(TakenError):  # then the part is not used
                store.put(part if ask is None else self.complete_part(part, ask(seed)))
        return len(store)

    def make_part(self) -> tuple[Part, Request]:
        """A fresh prepared part, and the message that asks the server to prepare its reply.

        If that message is sent, keep only what `complete_part` returns: after an error the part must not be used.
        """
        plan = self.plan
        part = Part(self._layout.prepare(self._secret, plan))
        seed = np.frombuffer(part.seed, dtype=np.uint8).reshape(-1, 1, 1, 1)
        return part, Request(Identity.of(plan, self._key_id, part.name), [seed], Kind.seed)

    def complete_part(self, part: Part, reply: Reply) -> Part:
        """The same part with what it needs of the second halves that the server returned for its seed."""
        if reply.identity != Identity.of(self.plan, self._key_id, part.name) or reply.kind is not Kind.halves:
            raise ReplyError("the server's reply is not for the seed that was sent; its part is discarded")
        halves = form(self.plan, Kind.halves).whole("the second halves", reply.chunks)
        return Part(part.zeros, self._layout.products(self._secret, self.plan, halves))

    def abandon(self, nonce: bytes) -> None:
        """Expect no reply to a request that the server did not answer."""
        self._open.pop(nonce, None)

    def reopen(self, nonce: bytes, count: int) -> None:
        """Expect the reply to a request of `count` samples that an earlier client with this key and plan made."""
        if len(nonce) != 16 or not 1 <= count <= self.plan.per_request:
            raise InputError("this is not a request of this plan: its nonce or its number of samples is wrong")
        self._open[nonce] = _Open(count)

    def decrypt(self, replies: Reply | Iterable[Reply]) -> Array:
        """Decrypt logits (n, K) in the order of the requests; for K >= 2, their mean over the classes is subtracted.

        Each reply closes its open request. If one reply is rejected, all requests stay open.
        """
        listed = [replies] if isinstance(replies, Reply) else list(replies)
        found = {reply.identity.nonce: self._one(reply) for reply in listed}
        if len(found) < len(listed):
            raise ReplyError("the same reply was given twice; each is read once")
        rows = [found[nonce] for nonce in self._open if nonce in found]
        for nonce in found:
            del self._open[nonce]
        return np.concatenate(rows) if rows else np.empty((0, self.plan.shape.outputs))

    def decide(self, replies: Reply | Iterable[Reply]) -> IntArray:
        """Decrypt the replies to decisions (n,), in order."""
        return decide(self.decrypt(replies))

    def is_reliable(self, logits: Array) -> BoolArray | None:
        """Mark the reliable decisions (n,) of decrypted logits (n, K); None if the plan has no threshold.

        Samples that you moved into a box that refuses them are not covered: use `Plan.is_reliable(logits, X)`.
        """
        return self.plan.is_reliable(logits)

    def _one(self, reply: Reply) -> Array:
        identity, plan = reply.identity, self.plan
        for name, got, wanted in (
            ("plan", identity.plan, plan.sha256),
            ("model", identity.model, plan.model_id),
            ("key", identity.key, self._key_id),
        ):
            if got != wanted:
                raise ReplyError(
                    f"the reply was made for another {name}; replies are read by the client that made the request"
                )
        if identity.nonce not in self._open:
            raise ReplyError("the reply answers no open request of this client; each reply is read once")
        opened = self._open[identity.nonce]
        kind = Kind.reply if opened.products is None else Kind.answers
        try:
            if reply.kind is not kind:
                raise InputError(f"the reply holds {reply.kind.name}, wanted {kind.name}")
            parts = form(plan, kind).whole("the reply", reply.chunks)
        except InputError as error:
            raise ReplyError(str(error)) from None
        if opened.products is None:
            logits, plausible = self._layout.decrypt(self._secret, plan, parts)
        else:
            logits, plausible = self._layout.read_prepared(plan, parts, opened.products)
        if not plausible:
            raise ReplyError(
                "the reply does not decrypt to values this plan can produce: wrong key, or damaged on the way"
            )
        return logits[: opened.count]


def _without_denormals(Z: Array, log2_scale: int) -> Array:
    """Replace values below 2^-40 of a unit of the scale with 0.

    Transforms of denormal numbers take many times longer. A server that chose a tiny box could read the signs of the
    features from that time. The rounding is far below the noise, and within the slack of the error bound.
    """
    out: Array = np.where(np.abs(Z) < 2.0 ** (-40 - log2_scale), 0.0, Z)
    return out


class Server:
    """The side that holds the model: answers requests and sees only ciphertexts.

    Every array is checked (type, shape, each residue below its prime) before use. Unless the layout makes them private,
    replies are not re-randomised: from enough of them a client can solve for the weights.

    Parameters
    ----------
    fit
        The fit, or anything else with a polynomial `model` and its `model_id`.
    plan
        Every encryption parameter, from `plan`.
    kernel
        How residues are multiplied; "auto" takes compiled loops where numba is installed.
    keys
        A cache of evaluation keys that several servers can share; by default each server keeps all of its own.
    backend
        The library that computes on ciphertexts, or its name.
    checked
        True if a server was made of the same plan before: then the check that no logit overflows is not repeated.
    rounding
        A secret seed of the weights' random roundings: servers with the same one can `answer` for each other.
    """

    def __init__(
        self,
        fit: Hosted,
        plan: Plan,
        kernel: KernelName = "auto",
        keys: KeyCache[Any] | None = None,
        backend: str | Backend = backends.DEFAULT,
        *,
        checked: bool = False,
        rounding: bytes | None = None,
    ) -> None:
        require_model(plan, fit)
        if not checked:
            _require_room(plan, fit.model)
        self.plan, self._layout = plan, layout_of(plan)
        self._keys: KeyCache[Any] = KeyCache() if keys is None else keys
        library = backends.chosen(backend)
        self._refused: tuple[type[Exception], ...] = (InputError, *library.errors)
        self._ahead = PreparedReplies()
        with few_threads():
            if rounding is None:
                self._evaluator = self._layout.evaluator(fit.model, plan, library, kernel)
            else:
                self._evaluator = self._layout.same_evaluator(fit.model, plan, library, kernel, rounding)

    def __repr__(self) -> str:
        return f"Server({_words(self.plan)})"

    def register(self, key_id: bytes, keys: EvaluationKeys | None) -> None:
        """Add a client's evaluation keys; does nothing if the layout has none."""
        if not self._layout.has_keys(self.plan):
            return
        if keys is None:
            raise InputError(f"layout {self.plan.layout} needs evaluation keys: pass client.evaluation_keys()")
        if self.knows(key_id):
            raise InputError("the server already has keys of this name and does not replace them; forget them first")
        try:
            wanted = form(self.plan, Kind.keys)
            prepared = self._evaluator.prepare(wanted.whole("the key set", keys.chunks))
        except self._refused as error:
            raise InputError(f"not evaluation keys of this plan: {error}") from None
        self._keys.put(self.plan.sha256, key_id, prepared, self._layout.key_memory(self.plan))

    def load_keys(self, key_id: bytes, opened: Callable[[], AbstractContextManager[Any]]) -> None:
        """Register a client's evaluation keys from the container that `opened` opens, unless the server has them."""
        if self.knows(key_id):
            return
        with opened() as file:
            named, keys = read_keys(self.plan, file)
        if named != key_id:
            raise InputError("the container holds keys of another name; send them under their own name")
        self.register(key_id, keys)

    def knows(self, key_id: bytes) -> bool:
        """Whether the server can answer requests of this key now."""
        return (self.plan.sha256, key_id) in self._keys or not self._layout.has_keys(self.plan)

    def forget(self, key_id: bytes) -> None:
        """Remove a client's evaluation keys; the client must register them again before its next request."""
        self._keys.drop(self.plan.sha256, key_id)

    def evaluate(self, request: Request) -> Reply:
        """Evaluate one request and return the reply; raises SpentError if it was prepared and that is gone."""
        if request.kind is Kind.prepared:
            self._check_plan(request)
            return self.answer(request, self._ahead.take(None, request.identity))
        chunks, keys = self._opened(request, Kind.request)
        return Reply(request.identity, self._evaluator.evaluate(chunks, keys))

    def prepare(self, request: Request) -> Reply:
        """Return the second halves for a seed, and keep what the answer to its request needs; that is used once."""
        with self._ahead.making(None, request.identity) as keep:
            reply, kept = self.prepare_reply(request)
            keep(kept)
        return reply

    def prepare_reply(self, request: Request) -> tuple[Reply, bytes]:
        """`prepare` for callers that keep the bytes themselves, secret, and give each to `answer` at most once."""
        chunks, keys = self._opened(request, Kind.seed)
        (seed,) = form(self.plan, Kind.seed).whole("the seed", chunks)
        if seed_name(seed.tobytes()) != request.identity.nonce:
            raise InputError("the seed is not the one that its message names; prepare another part")
        halves, kept = self._evaluator.prepare_reply([seed], keys)
        return Reply(request.identity, halves, Kind.halves), kept

    def answer(self, request: Request, kept: bytes) -> Reply:
        """Answer a request with what `prepare_reply` returned for its seed."""
        self._check_plan(request)
        chunks = form(self.plan, Kind.prepared).checked("the request", request.chunks)
        answers = self._evaluator.answer(chunks, kept)
        if answers is None:
            raise SpentError(SPENT)
        return Reply(request.identity, answers, Kind.answers)

    def _check_plan(self, request: Request) -> None:
        identity = request.identity
        if not identity.belongs_to(self.plan):
            raise InputError(
                f"the request was {identity.mismatch(self.plan)}; plan again, or encrypt with the wanted plan"
            )

    def _opened(self, request: Request, kind: Kind) -> tuple[Iterable[Any], Any]:
        """The checked chunks of a request of this kind, and its client's keys."""
        self._check_plan(request)
        if request.kind is not kind:
            raise InputError(f"the request holds {request.kind.name}, wanted {kind.name}")
        if not self.knows(request.identity.key):
            raise InputError("no evaluation keys of this client: call server.register(client.key_id, keys) first")
        keys = self._keys.get(self.plan.sha256, request.identity.key)
        return form(self.plan, kind).checked("the request", request.chunks), keys

    def work_ahead(self) -> bool:
        """Do a short piece of work that speeds up later requests; returns False when nothing is left to do.

        Call it when the server is idle. Layout lift makes encryptions of zero for private replies.
        """
        return any(self._evaluator.work_ahead(keys) for keys in self._keys.of_plan(self.plan.sha256))

    def warm_up(self) -> None:
        """Compile the layout's kernels, if any, before the first request, by evaluating a request of ones."""
        wanted = form(self.plan, Kind.request)
        if self._layout.has_keys(self.plan) or not self._layout.compiles or wanted.payload > _WARMED:
            return
        ones = [np.ones(part.shape, dtype=part.dtype) for part in wanted.parts]
        for array in ones:
            array.setflags(write=False)  # as arrays read from a file are
        self.evaluate(Request(Identity.of(self.plan, bytes(16)), ones))


def key_cache(plans: Sequence[Plan], clients: int) -> KeyCache[Any]:
    """Make a cache with room for the evaluation keys of `clients` clients of the largest plan."""
    return KeyCache(clients * max((layout_of(plan).key_memory(plan) for plan in plans), default=0))


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


def connect(fit: Hosted, plan: Plan, kernel: KernelName = "auto") -> tuple[Client, Server]:
    """Make a client and a server in one process, and register the client's keys."""
    client, server = Client(plan), Server(fit, plan, kernel)
    server.register(client.key_id, client.evaluation_keys())
    return client, server
