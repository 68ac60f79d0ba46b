"""The client of a server: encrypts samples, sends ciphertexts and decrypts replies.

The server is not trusted. Connections, messages, their sizes, order and times must not depend on samples or on
decrypted replies. So the client sends every request and receives every reply, closes the connection, and only then
decrypts. If the server chose the input box, the client sends the same requests wherever the samples lie.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, IntArray, samples, tensor
from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError
from quad4fhe.feature_part import LARGEST, FeaturePart
from quad4fhe.he import message
from quad4fhe.he.canaries import Known, Mixture
from quad4fhe.he.session import Client
from quad4fhe.io.files import one_line
from quad4fhe.layouts import LAYOUTS
from quad4fhe.layouts.forms import Kind
from quad4fhe.mlp import decide
from quad4fhe.planning.box import check_inside, moved
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.directory import find, is_id, read_list
from quad4fhe.serve.exchange import IN_MEMORY, Exchange
from quad4fhe.serve.http import HttpClient, ServiceError, UnknownPlanError
from quad4fhe.serve.unfit import unknown_plan

__all__ = ["Answers", "Remote", "ServiceError"]

_PLAN_BYTES = 2**24
_PAUSE_BYTES = 2**15  # that a connection could carry in the time between two requests


@dataclass(frozen=True, eq=False)
class Answers:
    """Decisions (n,) and logits (n, K) from a server, and their cost. For K >= 2 the logits have mean zero.

    `clipped` counts the samples that were moved to the edge of the box, `canaries` the canaries in each request.
    `reliable` (n,) marks the decisions with the margin that the plan calls reliable; None if the plan has no such
    margin.
    """

    decisions: IntArray
    logits: Array
    requests: int
    upload_bytes: int
    download_bytes: int
    clipped: int
    canaries: int
    seconds: float
    reliable: BoolArray | None = None


class Remote:
    """One model of one server, with a pinned `plan` or the plan of the server.

    With a pinned plan, the client never asks the server for one. Otherwise the plan and its input box come from the
    server, and a sample outside the box is reported only after everything was sent: a server that could see whether a
    sample lies in a box of its choice could find each feature by bisection.

    Parameters
    ----------
    url
        The server's address, as https://host:port.
    plan
        The plan to use.
    model
        The model's name or id, or the first digits of its id, for a server that offers several.
    layout
        The layout; by default the one that sends the fewest bytes for the rows of each call. A model that is asked for
        by its whole id has the server's first layout.
    token
        The server's API token.
    verify
        True, or an `ssl.SSLContext`, as in httpx.
    patience
        The limit in seconds for one message, with all retries and pauses.
    features
        The model's feature part, if it has one; by default it is fetched from the server. The plan names its hash.
    trust
        Run a feature part although the server chose it: the plan is not pinned, and `features` is not given.
    """

    def __init__(
        self,
        url: str,
        *,
        plan: Plan | None = None,
        model: str | None = None,
        layout: str | None = None,
        token: str | None = None,
        verify: Any = True,
        patience: float = 120.0,
        features: FeaturePart | None = None,
        trust: bool = False,
    ) -> None:
        self._url = url
        pinned = _pinned(plan, model, layout)
        self.pinned = pinned is not None
        self._http = HttpClient(url, token, verify, patience)
        try:
            self._offered = self._fetch_plans(model, layout) if pinned is None else [pinned]
            self.plan = cheapest(self._offered, 1)
            self._asks_first = not (self.pinned or trust or features is not None)
            self._part = None if self._asks_first else self._fetch_part(features)
        except BaseException:
            self._http.close()
            raise

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    @property
    def feature_part(self) -> FeaturePart | None:
        """The model's feature part, if it has one; InputError if only the server vouches for it."""
        if self._asks_first and self.plan.feature_part is not None:
            raise InputError(
                "the model has a feature part: a graph that this server chose and that would read your raw inputs "
                "here. It reaches neither files nor the network, but whether and when a request follows can tell the "
                "server about an input. Pin the plan, and compare its hash with the one of the model's owner: "
                f"quad4fhe models {quote(self._url)} --save-plan plan.json, then add --plan plan.json; or add "
                "--trust (trust=True)"
            )
        return self._part

    def predict(
        self,
        X: ArrayLike,
        *,
        clip: bool = False,
        known: Known | None = None,
        canaries: int = 0,
        concurrency: int = 2,
        progress: Progress = silent,
    ) -> Answers:
        """Encrypt X (n, d), let the server evaluate it, and decrypt the replies.

        Up to `concurrency` requests are in flight. With two, the client encrypts and sends the next request while the
        server evaluates the previous one. More help only if the server has idle workers; each takes memory or disk
        space. Replies are stored, on disk if they are large, until all have arrived.

        Parameters
        ----------
        X
            Samples; if one is outside the box of a pinned plan, nothing is sent. Raw inputs for a model with a feature
            part, which runs here: only its features are encrypted and sent.
        clip
            Move samples outside the box to its edge, and count them.
        known
            Samples whose logits are known, for canaries.
        canaries
            The number of known samples that every request carries at secret places; a wrong reply to one is an error.
        concurrency
            Requests in flight at once.
        progress
            Progress callback.
        """
        if concurrency < 1:
            raise InputError(f"concurrency is {concurrency}, wanted 1 or more")
        started = time.monotonic()
        taken = X if self.feature_part is None else self.feature_part(X)
        checked = samples("X", tensor("X", taken, 2), self.plan.shape.features)
        self.plan = plan = cheapest(self._offered, len(checked))
        clip = clip or plan.clip
        if self.pinned and not clip:
            check_inside(checked, plan)
        inside = np.clip(checked, *plan.domain.box)
        mixture = self._mixture(inside, known, canaries)
        client = Client(plan)
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as kept:
            total = -(-len(inside) // plan.per_request) if mixture is None else mixture.requests
            blocks = _blocks(inside, plan.per_request) if mixture is None else mixture.blocks()
            exchange = Exchange(client, self._ask, kept)
            try:
                exchange.run(blocks, concurrency, lambda done: progress("encrypted inference", done, total))
            except UnknownPlanError:
                raise unknown_plan(self._http, self._url, plan) from None
            # From here on, the server can see neither results nor timing.
            self._http.reconnect()
            if not (self.pinned or clip):
                _check_late(checked, plan, self._url)
            logits = exchange.read(progress)
        if mixture is not None:
            logits = mixture.read(logits)
        return Answers(
            decisions=decide(logits),
            logits=logits,
            requests=total,
            upload_bytes=exchange.upload_bytes,
            download_bytes=exchange.download_bytes,
            clipped=moved(checked, inside),
            canaries=canaries,
            seconds=time.monotonic() - started,
            reliable=plan.is_reliable(logits, checked),
        )

    def _mixture(self, inside: Array, known: Known | None, canaries: int) -> Mixture | None:
        if (known is None) != (canaries == 0):
            raise InputError("canaries need both: how many of them a request carries, and samples with known logits")
        if known is None:
            return None
        if not self.pinned:
            # The tolerance comes from the plan, and a lying server would choose a large one.
            raise InputError(
                "canaries are judged by the plan's error bound, so pin the plan: give it as `plan` (--plan)"
            )
        return Mixture(self.plan, inside, known, canaries)

    def _fetch_plans(self, model: str | None, layout: str | None) -> list[Plan]:
        """Return the plan of the layout, or of every layout; a name or a short id is looked up in the server's list."""
        if model is not None and is_id(model):
            return [self._fetch_plan(model, layout)]
        entry = find(read_list(self._http), model)
        known = [name for name in entry.layouts if name in LAYOUTS.names()]
        plans = [self._fetch_plan(entry.id, each) for each in ([layout] if layout else dict.fromkeys(known) or [None])]
        if any(_kind(one) != _kind(plans[0]) for one in plans):
            raise ServiceError("the server's plans are for different models: not trusted")
        return plans

    def _fetch_plan(self, model: str, layout: str | None) -> Plan:
        try:
            fields = msgspec.json.decode(self._get(f"/models/{model}/plan" + (f"?layout={layout}" if layout else "")))
        except (msgspec.DecodeError, RecursionError):
            raise ServiceError("the server does not speak this protocol: its plan is not JSON") from None
        try:
            plan = Plan.from_dict(fields)  # checks security, overflow and all sizes
        except InputError as error:
            raise InputError(f"the server's plan can't be used: {one_line(error)}") from None
        if plan.model_id != model or layout not in (None, plan.layout):
            raise ServiceError(f"the server's plan is for model {plan.model_id[:12]}, wanted {model[:12]}: not trusted")
        return plan

    def _fetch_part(self, given: FeaturePart | None) -> FeaturePart | None:
        """The feature part with the hash that the plan names; checked before any raw input is read."""
        wanted = self.plan.feature_part
        if wanted is None:
            if given is not None:
                raise InputError("the model has no feature part: its samples are encrypted as they are; leave it out")
            return None
        part = given
        if part is None:
            part = FeaturePart(self._http.ask("GET", f"/models/{self.plan.model_id}/features", None, 0, LARGEST))
        if part.sha256 != wanted:
            came = "the server's feature part" if given is None else "the given feature part"
            raise InputError(f"{came} has SHA-256 {part.sha256[:16]}..., but the plan names {wanted[:16]}...: not used")
        return part

    def _get(self, path: str) -> bytes:
        return self._http.ask("GET", path, None, 0, _PLAN_BYTES)

    def _ask(self, request: bytes) -> bytes:
        exact = message.size(self.plan, Kind.reply)
        path = f"/models/{self.plan.model_id}/evaluate"
        return self._http.ask("POST", path, io.BytesIO(request), len(request), exact)


def cheapest(plans: Sequence[Plan], rows: int) -> Plan:
    """The plan that sends the fewest bytes for so many rows; the server learns about their number from any of them."""

    def cost(plan: Plan) -> int:
        each = message.size(plan, Kind.request) + message.size(plan, Kind.reply) + _PAUSE_BYTES
        return -(-rows // plan.per_request) * each

    return min(plans, key=cost)


def _kind(plan: Plan) -> tuple[object, ...]:
    """What a client needs to know before it chooses a plan."""
    return plan.shape, plan.names, plan.feature_part, plan.clip


def _pinned(plan: Plan | None, model: str | None, layout: str | None) -> Plan | None:
    """Return the pinned plan, if any; raises InputError if the other arguments contradict it."""
    if plan is not None:
        for name, wanted, found in (("model", model, plan.model_id), ("layout", layout, plan.layout)):
            if wanted is not None and not (found == wanted or (name == "model" and found.startswith(wanted))):
                raise InputError(
                    f"the pinned plan has {name} {found[:12]}, not {wanted[:80]!r}; leave --{name} out, or pin a plan "
                    "that has it"
                )
    return plan


def _check_late(X: Array, plan: Plan, url: str) -> None:
    try:
        check_inside(X, plan)
    except InputError as error:
        raise InputError(
            f"{error}. This plan came from the server, so everything was sent first, to hide this from it. Before you "
            "ask again, pin a plan whose hash you have from the model's owner: quad4fhe models "
            f"{quote(url)} --save-plan plan.json --model {plan.model_id[:12]}, then add --plan plan.json --clip to the "
            "query"
        ) from None


def _blocks(X: Array, size: int) -> Iterator[Array]:
    return (X[start : start + size] for start in range(0, len(X), size))
