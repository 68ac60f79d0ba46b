"""Layout lift against layout packed: one question, its bytes, its decisions, and what replies give away.

    python benchmarks/lift.py DATA [--rounds 15] [--strict SAMPLES] [--privacy REPLIES] [--batches ROUNDS] [--planner]
                                   [--http QUESTIONS] [--prepared ROUNDS] [--models NAME ...] [--replies KIND ...]
                                   [--calibration-box] [-o FILE]

CPU time of one thread; every ratio compares runs of the same process, in alternating order. Medians and minima are both
printed, since machines are shared. Each row names its commit; a run replaces the rows of FILE that it made again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import quad4fhe
from compact import write
from machine import describe
from quad4fhe import MLP, Plan, PolynomialModel
from quad4fhe.he import container
from quad4fhe.he.container import Kind
from quad4fhe.he.prepared import PreparedMemory
from quad4fhe.he.session import Client, Server, connect
from quad4fhe.layouts import bits
from quad4fhe.layouts.lift.arithmetic import switched
from quad4fhe.layouts.lift.layout import setting_of
from quad4fhe.layouts.masks import as_bytes, expand
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide

Floats = NDArray[np.float64]
MODELS = ("breast_cancer", "shuttle", "otto", "sst5")
EVERY = ("breast_cancer", "diabetes", "shuttle", "otto", "sst5")
RANDOM = "256-256-10"


class StandIn:
    """A random quadratic network with its calibration samples."""

    def __init__(self, d: int, m: int, K: int, n: int = 500, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        W1 = rng.normal(size=(m, d)) * 2.0 / np.sqrt(d)
        W2 = rng.normal(size=(K, m)) / np.sqrt(m)
        self.model = PolynomialModel.quadratic(
            W1, rng.normal(size=m) * 0.5, 0.08 * W2, 0.5 * W2, rng.normal(size=K) * 0.3
        )
        self.model_id = self.model.sha256
        self.X = np.clip(rng.normal(size=(n, d)), -3.0, 3.0)
        self.box = np.stack([self.X.min(axis=0), self.X.max(axis=0)])
        ordered = np.sort(self.model.logits(self.X), axis=1)
        self.margins = np.abs(ordered[:, 0]) if K == 1 else ordered[:, -1] - ordered[:, -2]


def trained(data: Path, name: str) -> tuple[Any, Floats, Floats]:
    """A fit, its calibration samples, and its test samples moved into the box."""
    z = np.load(data / "models" / f"{name}.npz")
    X = z["X_cal"].astype(np.float64)
    fit = quad4fhe.fit(MLP(z["W1"], z["b1"], z["W2"], z["b2"]), X, family="shared")
    return fit, X, np.clip(z["X_test"].astype(np.float64), *fit.box)


class Asked:
    """One question at a time through a client and a server, with CPU times of each step."""

    def __init__(self, fit: Any, made: Plan) -> None:
        self.plan = made
        self.client, self.server = connect(fit, made)
        self.times: list[tuple[float, ...]] = []

    def fill(self, count: int) -> None:
        """Encryptions of zero for the next questions, outside the times, as an idle worker makes them."""
        for _ in range(count * 128):
            if not self.server.work_ahead():
                return

    def ask(self, X: Floats) -> Floats:
        """The logits of samples, one question each; times are those of one question.

        Several together, since reading the clock takes as long as a question on some machines.
        """
        self.fill(len(X))
        start = time.process_time()
        requests = [self.client.encrypt(x[None])[0] for x in X]
        sent = time.process_time()
        replies = [self.server.evaluate(request) for request in requests]
        answered = time.process_time()
        logits = [self.client.decrypt(reply) for reply in replies]
        end = time.process_time()
        self.times.append(tuple(step / len(X) for step in (sent - start, answered - sent, end - answered)))
        return np.concatenate(logits)

    def ask_together(self, X: Floats) -> Floats:
        """The logits of samples that share a request."""
        start = time.process_time()
        (request,) = self.client.encrypt(X)
        sent = time.process_time()
        reply = self.server.evaluate(request)
        answered = time.process_time()
        logits = self.client.decrypt(reply)
        self.times.append((sent - start, answered - sent, time.process_time() - answered))
        return logits

    def summary(self, how: Callable[..., Any]) -> list[float]:
        """Milliseconds: encrypt, server, decrypt."""
        found: list[float] = (1e3 * how(np.array(self.times[1:]), axis=0)).tolist()
        return found


class Prepared(Asked):
    """The same, with both sides' parts made ahead, outside the times; each is used once."""

    def __init__(self, fit: Any, made: Plan) -> None:
        self.plan, self.parts = made, PreparedMemory()
        self.client, self.server = Client(made, None, self.parts), Server(fit, made)
        self.server.register(self.client.key_id, self.client.evaluation_keys())
        self.times, self.ahead = [], list[float]()

    def fill(self, count: int) -> None:
        """Prepare the next questions."""
        super().fill(count)
        start = time.process_time()
        self.client.prepare(count, self.parts, self.server.prepare)
        self.ahead.append((time.process_time() - start) / count)


def prepared(data: Path, rounds: int, widen: float | None) -> list[dict[str, Any]]:
    """One question on Otto with all that does not depend on it made ahead, against one without."""
    fit, X, test = trained(data, "otto")
    out = []
    for replies in ("plain", "private"):
        made = plan(fit, samples=1, layout="lift", replies=replies, X=X, widen=widen)
        asked = {"whole": Asked(fit, made), "prepared": Prepared(fit, made)}
        changed = 0
        for i in range(rounds + 1):
            for one in asked.values():
                found = one.ask(test[16 * i : 16 * i + 16])
                changed += int(np.count_nonzero(decide(found) != fit.model.decide(test[16 * i : 16 * i + 16])))
        kinds = (Kind.request, Kind.reply, Kind.prepared, Kind.answers)
        row: dict[str, Any] = {"model": "otto", "replies": replies, "commit": describe()["commit"], "changed": changed}
        row["primes"] = [q.bit_length() for q in made.chain.primes]
        row |= {"samples": 16 * (rounds + 1), "payload_bytes": {k.name: container.form(made, k).payload for k in kinds}}
        row["container_bytes"] = {kind.name: container.size(made, kind) for kind in kinds}
        for name, one in asked.items():
            row[name] = {"median_ms": one.summary(np.median), "min_ms": one.summary(np.min)}
        row["ahead_median_ms"] = 1e3 * float(np.median(asked["prepared"].ahead[1:]))  # type: ignore[attr-defined]  # of the class that prepares
        out.append(row)
        online, whole = row["prepared"], row["whole"]
        print(
            f"otto {replies}: client, server, client {np.round(online['median_ms'], 3)} ms, together "
            f"{sum(online['median_ms']):.3f} (by minima {sum(online['min_ms']):.3f}); not prepared "
            f"{sum(whole['median_ms']):.2f}; ahead {row['ahead_median_ms']:.2f}; bytes {row['payload_bytes']}; "
            f"{changed} of {2 * row['samples']} changed",
            flush=True,
        )
    return out


def questions(data: Path, rounds: int, models: list[str], widen: float | None) -> list[dict[str, Any]]:
    """One question in layouts packed and lift, plain and private."""
    out = []
    for name in models:
        if name in MODELS:
            fit, X, test = trained(data, name)
        else:
            fit = StandIn(256, 256, 10)
            X = test = fit.X
        asked = {
            "packed": Asked(fit, plan(fit, samples=1, layout="packed", X=X, widen=widen)),
            "plain": Asked(fit, plan(fit, samples=1, layout="lift", replies="plain", X=X, widen=widen)),
            "private": Asked(fit, plan(fit, samples=1, layout="lift", X=X, widen=widen)),
        }
        for i in range(rounds + 1):
            for kind, one in asked.items():
                one.ask(test[i % 50 : i % 50 + (2 if kind == "packed" else 16)])
        row: dict[str, Any] = {"model": name, "commit": describe()["commit"]}
        for kind, one in asked.items():
            made = one.plan
            row[kind] = {
                "ring": made.chain.ring,
                "primes": [q.bit_length() for q in made.chain.primes],
                "replies": made.settings.get("replies", "plain"),
                "lambda": made.settings.get("security"),
                "median_ms": one.summary(np.median),
                "min_ms": one.summary(np.min),
                "bytes": [made.forecast.upload_bytes, made.forecast.download_bytes, made.forecast.key_bytes],
                "kept": made.kept,
            }
        for kind in ("plain", "private"):
            for how in ("median_ms", "min_ms"):
                row[f"{kind}_ratio_{how[:-3]}"] = sum(row["packed"][how]) / sum(row[kind][how])
            row[f"{kind}_server_ratio"] = row["packed"]["median_ms"][1] / row[kind]["median_ms"][1]
        out.append(row)
        packed, plain, private = (sum(row[kind]["median_ms"]) for kind in ("packed", "plain", "private"))
        print(
            f"{name:14s} packed {packed:7.2f} ms; plain {plain:6.2f} ms ({row['plain_ratio_median']:.1f}x, by minima "
            f"{row['plain_ratio_min']:.1f}x, server {row['plain_server_ratio']:.0f}x); private {private:6.2f} ms "
            f"({row['private_ratio_median']:.1f}x, by minima {row['private_ratio_min']:.1f}x, lambda "
            f"{row['private']['lambda']:.0f}); bytes up, down, key: {row['plain']['bytes']}, {row['private']['bytes']}",
            flush=True,
        )
    return out


def batches(data: Path, rounds: int) -> dict[str, Any]:
    """Layout batch on Otto, strict, full requests: seeded uploads against whole ones, private replies against plain.

    A whole upload is both halves of every ciphertext as SEAL makes them.
    """
    fit, X, test = trained(data, "otto")
    found = {
        kind: Asked(fit, plan(fit, samples=4096, layout="batch", replies=kind, X=X)) for kind in ("plain", "private")
    }
    whole: list[float] = []
    changed = dict.fromkeys(found, 0)
    made = found["plain"].plan
    for _ in range(rounds + 1):
        for kind, asked in found.items():
            logits = asked.ask_together(test[: made.per_request])
            changed[kind] += int(np.count_nonzero(decide(logits) != fit.model.decide(test[: made.per_request])))
        key, Z = found["plain"].client._secret, test[: made.per_request] - made.shift
        start = time.process_time()
        for i in range(0, Z.shape[1], 8):
            slots = np.zeros((min(8, Z.shape[1] - i), made.chain.slots))
            slots[:, : len(Z)] = Z[:, i : i + 8].T
            for plain in key.context.dithered(slots, 2.0**made.scales.x, reach=made.reach):
                key.encrypt_plain(plain).astype(np.uint32)
        whole.append(1e3 * (time.process_time() - start))
    ms = {kind: asked.summary(np.median) for kind, asked in found.items()}
    before = 2 * 4 * made.shape.features * len(made.chain.primes) * made.chain.ring
    own = float(np.median(whole[1:]))
    out = {
        "ring": made.chain.ring,
        "primes": [q.bit_length() for q in made.chain.primes],
        "private_primes": [q.bit_length() for q in found["private"].plan.chain.primes],
        "lambda": found["private"].plan.settings["security"],
        "ms": ms,
        "whole_encrypt_ms": own,
        "upload_bytes": [made.forecast.upload_bytes, before],
        "upload_share": made.forecast.upload_bytes / before,
        "client_share": (ms["plain"][0] + ms["plain"][2]) / (own + ms["plain"][2]),
        "private_share": sum(ms["private"]) / sum(ms["plain"]),
        "changed": changed,
    }
    print(json.dumps(out), flush=True)
    return out


def strict(data: Path, limit: int, models: list[str], kinds: list[str]) -> list[dict[str, Any]]:
    """Test samples of trained models, one question at a time: changed decisions."""
    out, commit = [], describe()["commit"]
    for name in models:
        fit, X, test = trained(data, name)
        for replies in kinds:
            asked = Asked(fit, plan(fit, samples=1, layout="lift", replies=replies, X=X))
            found = np.concatenate(
                [asked.ask(test[i : min(i + 16, limit)]) for i in range(0, min(limit, len(test)), 16)]
            )
            changed = int(np.count_nonzero(decide(found) != fit.model.decide(test[:limit])))
            out.append({"model": name, "replies": replies, "samples": len(found), "changed": changed, "commit": commit})
            print(f"{name:14s} {replies:8s} {changed} of {len(found)} changed", flush=True)
    return out


def privacy(count: int, seed: int = 5) -> dict[str, Any]:
    """Two models with equal answers at a crafted ciphertext: how often a distinguisher names the right one.

    The client knows both models, its key, and its request, whose decryption is zero where the weights differ. On plain
    replies it compares the mask with what each model predicts. On private ones it is given half of the replies with
    their answers to learn from: the mask minus each prediction, sizes, products with the secret, and the answers.
    """
    out: dict[str, Any] = {"seed": seed, "commit": describe()["commit"]}
    fit = StandIn(4, 8, 2, 200)
    for replies, rounds in (("plain", 200), ("private", count)):
        made = plan(fit, samples=1, layout="lift", replies=replies)
        setting = setting_of(made)
        client, server = connect(fit, made)
        inner = server._evaluator._server  # type: ignore[attr-defined]  # an attack looks inside
        maps = [inner._linear, _other(inner, setting)]
        request, masks = _crafted(client, setting)
        predicted = [switched(one.masks(masks), setting.chain, setting.scales.bits)[0] for one in maps]
        pool = server._keys.get(made.sha256, client.key_id)
        truth = np.random.default_rng(seed).integers(0, 2, rounds)
        features = []
        for which in truth:
            inner._linear = maps[which]
            features.append(_features(setting, inner.evaluate(request, pool), predicted, client._secret.ternary))
        F = np.array(features)
        if replies == "plain":
            guesses = (F[:, 0] > F[:, 1]).astype(int)
            right, tried = int(np.count_nonzero(guesses == truth)), rounds
        else:
            half = rounds // 2
            mean, spread = F[:half].mean(axis=0), F[:half].std(axis=0) + 1e-30
            F = np.concatenate([(F - mean) / spread, np.ones((rounds, 1))], axis=1)
            learned, *_ = np.linalg.lstsq(F[:half], 2.0 * truth[:half] - 1, rcond=None)
            guesses = (F[half:] @ learned > 0).astype(int)
            right, tried = int(np.count_nonzero(guesses == truth[half:])), rounds - half
        sigmas = (right - tried / 2) / math.sqrt(tried / 4)
        out[replies] = {"replies": rounds, "judged": tried, "right": right, "sigmas": sigmas}
        print(f"{replies:8s} {right} of {tried} replies assigned to the right model ({sigmas:+.1f} sigma)", flush=True)
    return out


def _other(inner: Any, setting: Any) -> Any:
    """The map of another model: one weight differs, by about the size of the weights."""
    unit = np.ones((1, len(setting.chain.primes), setting.chain.ring), dtype=np.uint64)
    q = setting.chain.primes[0]
    whole = inner._linear.masks(unit)[:, 0].astype(np.int64)
    whole = np.where(whole > q // 2, whole - q, whole)[:, None]
    whole[0, 0, setting.chain.ring - 3] += int(setting.scales.weights)
    return inner.arithmetic.linear(whole, setting.place)


def _crafted(client: Client, setting: Any) -> tuple[Any, Any]:
    """A request that decrypts to 2^20 at the first monomial and to zero elsewhere, without noise; and its masks."""
    key, chain = client._secret, setting.chain
    exact, seed = key.context.exact(), bytes(32)
    masks = expand(seed, "request", 1, chain.primes, chain.ring)
    zero = np.zeros((1, 2, len(chain.primes), chain.ring), dtype=np.uint64)
    first = exact.from_ntt(exact.rebased(zero, masks, key._values))[0]
    for row, q in zip(first, chain.primes, strict=True):
        row[0] = (int(row[0]) + 2**20) % q
    return as_bytes(seed, setting.place.cut(first[:, None, :]), chain.primes), masks


def _features(setting: Any, reply: Any, predicted: list[Any], secret: Any) -> list[float]:
    place, width = setting.place, setting.scales.bits
    words = bits.unpack(reply.tobytes(), width, place.reads + place.replies * place.ring)
    first, second = words[: place.reads], words[place.reads :]
    up = np.uint64(64 - width)
    out = []
    apart = [((second - each) << up).view(np.int64).astype(np.float64) / 2.0**63 for each in predicted]
    out += [float(np.abs(d).mean()) for d in apart]
    out += [float((d * secret).sum()) for d in apart] + [float((d**2).mean()) for d in apart]
    for d in apart:
        out += d[:40].tolist() + np.abs(d[-40:]).tolist()
    out += ((first << up).view(np.int64).astype(np.float64) / 2.0**63).tolist()
    out += (words[:40] & np.uint64(255)).astype(np.float64).tolist()
    return out


def planner(samples: int, rounds: int) -> list[dict[str, Any]]:
    """The forecast's choice between lift and packed against measured times, over widths and classes."""
    out = []
    for K in (2, 10, 100):
        for d in (4, 16, 64, 128, 256, 512, 1024):
            fit = StandIn(d, 64, K, 200)
            found: dict[str, float] = {}
            forecast: dict[str, float] = {}
            for layout in ("lift", "packed"):
                try:
                    made = plan(fit, samples=samples, layout=layout, X=fit.X)
                except quad4fhe.InputError:
                    continue
                asked = Asked(fit, made)
                for i in range(rounds + 1):
                    asked.ask(fit.X[i : i + 2])
                found[layout], forecast[layout] = sum(asked.summary(np.min)), 1e3 * made.forecast.seconds
            chosen = min(forecast, key=forecast.__getitem__)
            best = min(found.values())
            row = {"d": d, "K": K, "measured_ms": found, "forecast_ms": forecast, "chosen": chosen}
            out.append({**row, "over_best": found[chosen] / best})
            print(
                f"d {d:5d} K {K:4d} {found} forecast {forecast} chosen {chosen} {found[chosen] / best:.2f}", flush=True
            )
    return out


def over_http(data: Path, count: int) -> dict[str, Any]:
    """Questions one after the other over the loopback, one worker: latency, and questions a second."""
    import subprocess
    import sys
    import tempfile

    from quad4fhe.serve.client import Remote

    fit, X, test = trained(data, "otto")
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        fit.save(f"{folder}/fit.safetensors")
        words = ["serve", f"{folder}/fit.safetensors", "--port", "0", "--workers", "1", "--json"]
        for layout in ("lift", "packed"):
            plan(fit, samples=1, layout=layout, X=X).save(f"{folder}/{layout}.json")
            words += ["--plan", f"{folder}/{layout}.json"]
        program = [sys.executable, "-c", "from quad4fhe.cli import entry_point; entry_point()", *words]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            remotes = {layout: Remote(url, layout=layout) for layout in ("packed", "lift")}
            times: dict[str, list[float]] = {layout: [] for layout in remotes}
            for i in range(count + 3):
                for layout, remote in remotes.items():
                    start = time.perf_counter()
                    remote.predict(test[i : i + 1])
                    times[layout].append(time.perf_counter() - start)
            for layout, remote in remotes.items():
                remote.close()
                own = 1e3 * np.array(times[layout][3:])
                p50, p99 = np.quantile(own, [0.5, 0.99]).tolist()
                out[layout] = {"p50_ms": p50, "p99_ms": p99, "per_second": 1e3 / own.mean()}
                print(f"{layout:7s} p50 {p50:.1f} ms, p99 {p99:.1f} ms, {1e3 / own.mean():.1f} a second", flush=True)
            server.terminate()
    return out


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--strict", type=int, default=0, metavar="SAMPLES")
    parser.add_argument("--privacy", type=int, default=0, metavar="REPLIES")
    parser.add_argument("--batches", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--planner", action="store_true")
    parser.add_argument("--http", type=int, default=0, metavar="QUESTIONS")
    parser.add_argument("--prepared", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--models", nargs="+", choices=(*EVERY, RANDOM), help="of --rounds and --strict")
    parser.add_argument("--replies", nargs="+", choices=("plain", "private"), default=["plain", "private"])
    parser.add_argument("--calibration-box", action="store_true", help="--rounds, --prepared with a box without room")
    parser.add_argument("--seed", type=int, default=5, help="of --privacy: which model answers")
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": describe("seal-python", "numba")}
    if given.rounds:
        models = [name for name in given.models or (*MODELS, RANDOM) if name != "diabetes"]
        box = ("questions_calibration_box", 0.0) if given.calibration_box else ("questions", None)
        found[box[0]] = questions(given.data, given.rounds, models, box[1])
    if given.strict:
        models = [name for name in given.models or EVERY if name != RANDOM]
        found["strict"] = strict(given.data, given.strict, models, given.replies)
    if given.privacy:
        found["privacy"] = [privacy(given.privacy, given.seed)]
    if given.batches:
        found["batch"] = batches(given.data, given.batches)
    if given.planner:
        found["planner"] = planner(1, 3)
    if given.prepared:
        name = "prepared_calibration_box" if given.calibration_box else "prepared"
        found[name] = prepared(given.data, given.prepared, 0.0 if given.calibration_box else None)
    if given.http:
        found["http"] = over_http(given.data, given.http)
    if given.out is not None:
        before = json.loads(given.out.read_text()) if given.out.exists() else {}
        for name, rows in found.items():
            before[name] = rows if isinstance(rows, dict) or name == "planner" else merged(before.get(name, []), rows)
        write(given.out, before)


def merged(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of earlier runs, but for those that were made again."""

    def name(row: dict[str, Any]) -> tuple[Any, ...]:
        return row.get("model"), row.get("replies"), row.get("seed")

    new = {name(row): row for row in rows}
    return [new.pop(name(row), row) for row in before] + list(new.values())


if __name__ == "__main__":
    main()
