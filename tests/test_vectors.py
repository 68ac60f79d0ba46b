"""The library computes what tests/vectors says, and tests/vectors says what its generator computes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe.he import message
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.layouts.batch.evaluation import BatchEvaluator
from quad4fhe.planning.integers import IntegerCircuit, Scales
from quad4fhe.planning.plan import Plan

FOLDER = Path(__file__).parent / "vectors"


def _generator() -> Any:
    # By its path: its name is too common to import by.
    spec = importlib.util.spec_from_file_location("vectors_generate", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = _generator()


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def planned(layout: str) -> Plan:
    return Plan.from_dict(read("plans")[layout]["plan"])


def in_short(values: np.ndarray) -> dict[str, Any]:
    flat = np.ascontiguousarray(values.ravel(), dtype="<u4")
    digest = hashlib.sha256(flat.tobytes()).hexdigest()
    return {"count": flat.size, "first": flat[:8].tolist(), "last": flat[-8:].tolist(), "sha256": digest}


def test_the_files_are_what_their_generator_writes() -> None:
    for name, text in generate.files().items():
        assert json.loads((FOLDER / name).read_text(encoding="utf-8")) == json.loads(text), name
        assert len(text) < 8192


def test_the_generator_uses_nothing_of_the_library() -> None:
    assert "import quad4fhe" not in (FOLDER / "generate.py").read_text(encoding="utf-8")
    assert "from quad4fhe" not in (FOLDER / "generate.py").read_text(encoding="utf-8")


def test_a_plan_has_the_hash_of_the_vectors() -> None:
    made = planned("batch")
    assert made.sha256.hex() == read("plans")["batch"]["sha256"]
    again = Plan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.sha256 == made.sha256


@pytest.mark.parametrize("facts", read("messages"), ids=lambda facts: facts["name"])
def test_messages_are_read_and_written_to_the_byte(facts: dict[str, Any]) -> None:
    made, kind = planned(facts["layout"]), message.Kind(facts["kind"])
    data = generate.message(facts["name"])
    assert (len(data), data[:76].hex(), data[-32:].hex()) == (facts["bytes"], facts["header"], facts["sha256"])
    assert message.size(made, kind) == facts["bytes"]
    head, arrays = message.peek(data), message.read(made, kind, data)
    assert (head.kind, head.plan) == (kind, made.sha256)
    assert arrays[-1].shape == tuple(facts["shape"])
    assert message.write(made, kind, arrays, head.answers) == data


def test_residues_in_seals_order_stand_for_the_slots_of_the_vectors() -> None:
    wanted, made = read("ntt"), planned("batch")
    residues = np.zeros((2, len(made.chain.primes), made.chain.ring), dtype=np.uint64)
    for place, q in enumerate(made.chain.primes):
        residues[0, place] = generate.transformed(q)
        assert in_short(residues[0, place]) == wanted["residues"][str(q)]
    context = Context(made.chain)
    # A ciphertext whose second polynomial is zero is its own plaintext under every key.
    found = SecretKey(context).decrypt(residues, float(wanted["scale"]))
    np.testing.assert_allclose(found, generate.slots(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[:8], wanted["slots"]["first"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[-8:], wanted["slots"]["last"], rtol=0, atol=1e-8)


@pytest.mark.parametrize("skip", [True, False])
def test_integer_weights_make_the_reply_of_the_vectors(skip: bool) -> None:
    wanted, made = read("reply"), planned("batch")
    numbers = {name: np.array(rows, dtype=object) for name, rows in wanted["circuit"].items()}
    circuit = IntegerCircuit(
        W=numbers["W"].astype(np.int64),
        t=numbers["t"],
        V=numbers["V"].astype(np.int64),
        U=numbers["U"] if skip else None,
        c=numbers["c"],
        shift=np.zeros(2),
        scales=Scales(8, 4, 4),
    )
    request = np.array(generate.synthetic((2, 1, 2, made.chain.ring), made.chain.primes), dtype=np.uint32)
    chunks = request.reshape(2, 1, 2, made.chain.ring)
    seed = np.frombuffer(generate.SEED, dtype=np.uint8)
    evaluator = BatchEvaluator(circuit, made.chain)
    name = "with_skip" if skip else "without_skip"
    (reply,) = evaluator.answer([seed, chunks])
    assert in_short(reply) == wanted[name]
