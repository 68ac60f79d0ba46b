"""Known-answer vectors in plain Python integers; the rules are in README.md. Nothing of quad4fhe is imported."""

from __future__ import annotations

import cmath
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

HERE = Path(__file__).parent
RING = 2048
MODEL_ID = hashlib.sha256(b"a model that does not exist").hexdigest()
SEED = bytes(range(32, 64))

BATCH_PRIMES = (249857, 188417)
BATCH_SETTINGS = {"form": "square", "products": [1.0, 1.0, 0.0]}


def plan(
    layout: str, settings: dict[str, Any], chain: dict[str, Any], scales: dict[str, int], per_request: int
) -> dict[str, Any]:
    """A small plan: 2 features, 4 units, 2 outputs."""
    return {
        "version": 2,
        "layout": layout,
        "precision": "fast",
        "samples": 4,
        "shape": {"features": 2, "units": 4, "outputs": 2},
        "chain": chain,
        "scales": scales,
        "per_request": per_request,
        "settings": settings,
        "domain": {
            "low": [-1.5, -0.1],
            "high": [1.0, 2.0],
            "bound": 1.25,
            "logit": 1.0,
            "method": "interval",
            "interval": 1.0,
            "ellipsoid": 1.0,
            "outlier_bits": None,
        },
        "error": {
            "typical": 0.01,
            "bound": 0.1,
            "logit": 0.05,
            "changes": 0.0,
            "close": [],
            "source": "box",
            "failure": 2.0**-40,
        },
        "calibration": 10,
        "smallest_margin": 0.5,
        "forecast": {
            "upload_bytes": 1,
            "download_bytes": 1,
            "client_seconds": 1.0,
            "server_seconds": 1.0,
        },
        "model_id": MODEL_ID,
        "promise": {
            "samples": 8,
            "lost": 1,
            "agreement": 0.5,
            "inputs": "inside",
            "confidence": 0.5,
            "outside": 2,
            "error": 0.25,
            "by_class": [],
            "reliable": {"level": 0.5, "power": 0.5, "threshold": 0.25, "accepted": 4, "lost": 1},
        },
        "room": None,
        "clip": False,
        "feature_names": None,
        "class_names": None,
        "feature_part": None,
    }


def plans() -> dict[str, Any]:
    """A plan of layout batch, with its hash."""
    batch = {"ring": RING, "primes": list(BATCH_PRIMES)}
    settings = {"form": "square", "products": [1.0, 1.0, 0.0]}
    fields = plan("batch", settings, batch, {"x": 8, "w": 4, "v": 4}, RING // 2)
    return {"batch": {"plan": fields, "sha256": plan_hash(fields)}}


def plan_hash(fields: dict[str, Any]) -> str:
    """The hash that client and server compare."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"quad4fhe-plan-2" + text.encode()).hexdigest()


def synthetic(shape: tuple[int, ...], primes: tuple[int, ...]) -> list[int]:
    """Residues of an array whose last axes are prime and N, in C order."""
    rows, polynomials, count, ring = shape
    return [(2654435761 * i + 12345) % primes[i // ring % count] for i in range(rows * polynomials * count * ring)]


# Kind and shape of each message of layout batch; the reply is one to the request.
KINDS = {"request": (1, (2, 1, 2, RING)), "reply": (2, (2, 3, 2, RING))}


def message(name: str) -> bytes:
    """The bytes of one message."""
    kind, shape = KINDS[name]
    numbers = synthetic(shape, BATCH_PRIMES)
    payload = (SEED if kind == 1 else b"") + struct.pack(f"<{len(numbers)}I", *numbers)
    answers = bytes(32) if kind == 1 else message("request")[-32:]
    head = b"Q4FHE\r\n\x1a" + struct.pack("<HBB", 2, kind, 0) + bytes.fromhex(plans()["batch"]["sha256"]) + answers
    return head + payload + hashlib.sha256(head + payload).digest()


def messages() -> list[dict[str, Any]]:
    """What identifies each message."""
    out = []
    for name, (kind, shape) in KINDS.items():
        data = message(name)
        facts = {"header": data[:76].hex(), "bytes": len(data), "sha256": data[-32:].hex()}
        out.append({"name": name, "layout": "batch", "kind": kind, "shape": list(shape), **facts})
    return out


def in_short(values: list[int]) -> dict[str, Any]:
    """A long array of residues."""
    digest = hashlib.sha256(struct.pack(f"<{len(values)}I", *values)).hexdigest()
    return {"count": len(values), "first": values[:8], "last": values[-8:], "sha256": digest}


# Real slots mean a polynomial with a(N - k) = -a(k).
TERMS = {0: 5, 1: 1000, 7: -321, 500: 77, RING - 500: -77, RING - 7: 321, RING - 1: -1000}
SCALE = 1024


def smallest_root(q: int) -> int:
    """The smallest primitive 2N-th root of unity modulo q."""
    found = next(r for r in (pow(x, (q - 1) // (2 * RING), q) for x in range(2, q)) if pow(r, RING, q) == q - 1)
    return min(pow(found, k, q) for k in range(1, 2 * RING, 2))


def transformed(q: int) -> list[int]:
    """The polynomial of TERMS at every odd power of the root, in bit-reversed order."""
    psi, bits = smallest_root(q), RING.bit_length() - 1
    out = []
    for i in range(RING):
        z = pow(psi, 2 * int(format(i, f"0{bits}b")[::-1], 2) + 1, q)
        out.append(sum(a * pow(z, k, q) for k, a in TERMS.items()) % q)
    return out


def slots() -> list[float]:
    """The real CKKS slots of the polynomial of TERMS."""
    out = []
    for j in range(RING // 2):
        angle = cmath.pi * pow(3, j, 2 * RING) / RING
        out.append(sum(a * cmath.exp(1j * angle * k) for k, a in TERMS.items()).real / SCALE)
    return out


def ntt() -> dict[str, Any]:
    """The polynomial, its residues and its slots."""
    return {
        "ring": RING,
        "scale": SCALE,
        "terms": sorted(TERMS.items()),
        "residues": {str(q): in_short(transformed(q)) for q in BATCH_PRIMES},
        "slots": {"first": [round(s, 9) for s in slots()[:8]], "last": [round(s, 9) for s in slots()[-8:]]},
    }


CIRCUIT: dict[str, Any] = {
    "W": [[3, -5], [1, 200], [-77, 4], [0, -1]],
    "t": [1, -2, 2**70 + 3, 4],
    "V": [[2, -3, 1, 50], [-9, 0, 60, 7]],
    "U": [[5, -(2**65)], [1, 1]],
    "c": [2**66 + 1, -7],
}


def mask(number: int, place: int, q: int) -> list[int]:
    """The second half of ciphertext `number` modulo the prime q of this place: N numbers below q."""
    width = -(-q.bit_length() // 8)
    start = b"".join(each.to_bytes(4, "big") for each in (0, number, place, 0))
    stream = Cipher(algorithms.AES(SEED), modes.CTR(start)).encryptor().update(bytes(4 * width * RING))
    words = (int.from_bytes(stream[i : i + width], "little") for i in range(0, len(stream), width))
    return [w for w in (word % (1 << q.bit_length()) for word in words) if w < q][:RING]


def circuit_reply(q: int, place: int, skip: bool) -> list[list[list[int]]]:
    """The reply modulo one prime: (outputs, 3, N) for the synthetic request of layout batch."""
    numbers, places = synthetic((2, 1, 2, RING), BATCH_PRIMES), range(RING)
    x = [[[numbers[(f * 2 + place) * RING + i] for i in places], mask(f, place, q)] for f in range(2)]
    W, t, V, U, c = (CIRCUIT[name] for name in ("W", "t", "V", "U", "c"))
    out: list[list[list[int]]] = [[[0] * RING for _ in range(3)] for _ in V]
    for i in places:
        y0 = [sum(w * x[f][0][i] for f, w in enumerate(row)) + bias for row, bias in zip(W, t, strict=True)]
        y1 = [sum(w * x[f][1][i] for f, w in enumerate(row)) for row in W]
        for k, row in enumerate(V):
            extra = [sum(u * x[f][p][i] for f, u in enumerate(U[k])) if skip else 0 for p in range(2)]
            out[k][0][i] = (sum(v * a * a for v, a in zip(row, y0, strict=True)) + extra[0] + c[k]) % q
            out[k][1][i] = (sum(2 * v * a * b for v, a, b in zip(row, y0, y1, strict=True)) + extra[1]) % q
            out[k][2][i] = sum(v * b * b for v, b in zip(row, y1, strict=True)) % q
    return out


def reply() -> dict[str, Any]:
    """Replies of the circuit with and without the skip, as the array (outputs, 3, primes, N)."""
    out: dict[str, Any] = {"primes": list(BATCH_PRIMES), "ring": RING, "circuit": CIRCUIT}
    for name, skip in (("with_skip", True), ("without_skip", False)):
        parts = [circuit_reply(q, place, skip) for place, q in enumerate(BATCH_PRIMES)]
        flat = [n for k in range(2) for p in range(3) for part in parts for n in part[k][p]]
        out[name] = in_short(flat)
    return out


def files() -> dict[str, str]:
    """Every file by its name."""
    made = {"plans": plans(), "messages": messages(), "ntt": ntt(), "reply": reply()}
    return {f"{name}.json": json.dumps(value, indent=1) + "\n" for name, value in made.items()}


if __name__ == "__main__":
    for name, text in files().items():
        (HERE / name).write_text(text, encoding="utf-8")
