"""The paper's circuit in plain SEAL calls, with its own keys: the baseline of every speed ratio.

It follows Section VII: interleaved packing, a baby-step giant-step product over chunks of features, the activation in
powers with one product per coefficient, and a rotate-and-sum for each class. Scales are exact, to add no error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import seal

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP
from quad4fhe_reproduce.baselines.polynomial import Polynomial


@dataclass(frozen=True)
class Activation:
    """A polynomial that replaces the ReLU: monomial coefficients, constant first."""

    name: str
    coefficients: tuple[float, ...]

    @property
    def degree(self) -> int:
        """The degree, at most 7."""
        return len(self.coefficients) - 1

    @property
    def depth(self) -> int:
        """The multiplicative depth of the whole circuit: 3 for a bare square, 4 up to degree 3, 5 up to degree 7."""
        if self.degree > 7 or self.degree < 2:
            raise InputError(f"{self.name} has degree {self.degree}, the circuit takes 2 to 7")
        if self.coefficients == (0.0, 0.0, 1.0):
            return 3
        return 4 if self.degree <= 3 else 5

    def __call__(self, u: Array) -> Array:
        """Evaluate the polynomial in plaintext."""
        out: Array = np.polynomial.polynomial.polyval(u, np.array(self.coefficients))
        return out


def monomials(polynomial: Polynomial) -> Activation:
    """Convert a single-stage replacement to monomials, which this circuit computes."""
    if polynomial.gate is not None:
        raise InputError(f"{polynomial.name} is a composition, which the paper's circuit does not evaluate")
    series = polynomial.stages[0]
    powers = np.polynomial.Chebyshev(series.coefficients, domain=[series.lo, series.hi]).convert(
        kind=np.polynomial.Polynomial
    )
    return Activation(polynomial.name, tuple(float(c) for c in powers.coef))


SQUARE = Activation("Square", (0.0, 0.0, 1.0))


def quad(alpha: float, beta: float, eta: float) -> Activation:
    """The paper's quadratic."""
    return Activation("Quad", (eta, beta, alpha))


@dataclass
class Counts:
    """Operations on ciphertexts for one batch; `depth` counts multiplications in a row."""

    encryptions: int = 0
    ct_ct: int = 0
    ct_pt: int = 0
    rotations: int = 0
    relinearisations: int = 0
    rescales: int = 0
    depth: int = 0

    def to_dict(self) -> dict[str, int]:
        """Plain literals."""
        return asdict(self)


def seal_context(ring: int, bits: Sequence[int]) -> Any:
    """A SEAL context with the largest primes of these sizes; the last is the special prime of its evaluation keys."""
    if sum(bits) > seal.CoeffModulus.MaxBitCount(ring):
        raise InputError(
            f"a modulus of {sum(bits)} bits is not 128-bit secure at ring {ring}: at most "
            f"{seal.CoeffModulus.MaxBitCount(ring)} bits; take a larger ring or fewer bits"
        )
    parameters = seal.EncryptionParameters(seal.scheme_type.ckks)
    parameters.set_poly_modulus_degree(ring)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(ring, list(bits)))
    context = seal.SEALContext(parameters, True, seal.sec_level_type.tc128)
    if not context.parameters_set():
        raise InputError(f"SEAL refuses ring {ring} with primes of {bits} bits: {context.parameter_error_message()}")
    return context


class PaperCircuit:
    """An MLP with a polynomial activation on the chain {60, scale x depth, 60}; client and server in one object.

    Rings that are too small for first and special primes of 60 bits take fewer (`ends`). `seconds` holds the CPU time
    of the last evaluation by part: product, activation, output.
    """

    def __init__(
        self,
        mlp: MLP,
        activation: Activation,
        *,
        ring: int = 2**14,
        depth: int = 4,
        log2_scale: int = 40,
        ends: int = 60,
    ) -> None:
        if activation.depth > depth:
            raise InputError(f"{activation.name} needs depth {activation.depth}, this chain has {depth}")
        mlp.require_one_hidden("the paper's circuit")
        self.mlp, self.activation = mlp, activation
        self.context = seal_context(ring, (ends, *(log2_scale,) * depth, ends))
        self.encoder = seal.CKKSEncoder(self.context)
        self.evaluator = seal.Evaluator(self.context)
        self._levels = self._levels_of(self.context)
        self.primes = [prime.value() for prime in self.context.first_context_data().parms().coeff_modulus()]
        self.scale = 2.0**log2_scale
        self.counts = Counts()
        self.seconds: dict[str, float] = {}
        slots = ring // 2
        self.width = _power_of_two(mlp.units)
        self.batch = slots // self.width
        if self.batch < 1:
            raise InputError(f"{mlp.units} units do not fit {slots} slots; take a larger ring")
        self.span = min(self.width, _power_of_two(mlp.features))
        self.chunks = -(-mlp.features // self.span)
        self._baby = math.ceil(math.sqrt(self.span))
        self._giant = -(-self.span // self._baby)
        self._diagonals = [self._chunk_diagonals(chunk) for chunk in range(self.chunks)]
        padding = (0, self.width - mlp.units)
        self._bias = self._encode(np.pad(mlp.b1, padding), self.scale, 1)
        self._output_level = depth - 1  # spare levels are dropped before the second layer
        q = self._prime(self._output_level)
        self._classes = [self._encode(np.pad(row, padding), float(q), self._output_level) for row in mlp.W2]
        self._constants = [self._encode(np.full(self.width, b), self.scale, depth) for b in mlp.b2]
        self._make_keys()

    @staticmethod
    def _levels_of(context: Any) -> list[Any]:
        """SEAL's name of each level, the full chain first."""
        data, out = context.first_context_data(), []
        while data is not None:
            out.append(data.parms_id())
            data = data.next_context_data()
        return out

    def _make_keys(self) -> None:
        """The secret key, and the evaluation keys for products and for every rotation of the circuit."""
        generator = seal.KeyGenerator(self.context)
        secret = generator.secret_key()
        self._encryptor = seal.Encryptor(self.context, secret)
        self._decryptor = seal.Decryptor(self.context, secret)
        self._relin = generator.create_relin_keys()
        self._galois = seal.GaloisKeys()
        generator.create_galois_keys(self._steps(), self._galois)
        keys, primes = 1 + len(self._steps()), len(self.primes)
        self.key_bytes = 8 * keys * primes * 2 * (primes + 1) * 2 * self.encoder.slot_count()

    def plaintext_logits(self, X: Array) -> Array:
        """The plaintext logits of the same polynomial network, (n, K)."""
        out: Array = self.activation(self.mlp.hidden(X)) @ self.mlp.W2.T + self.mlp.b2
        return out

    def encrypt(self, X: Array) -> list[Any]:
        """Encrypt at most `batch` samples, one ciphertext per chunk of features."""
        if len(X) > self.batch:
            raise InputError(f"{len(X)} samples, one batch holds {self.batch}; encrypt several batches")
        rows = np.zeros((self.batch, self.chunks * self.span))
        rows[: len(X), : X.shape[1]] = X
        self.counts = Counts(encryptions=self.chunks, depth=self.activation.depth)
        repeat = self.width // self.span
        return [
            self._encryptor.encrypt_symmetric(self.encoder.encode(slots, self.scale))
            for slots in (
                np.ascontiguousarray(np.tile(rows[:, c * self.span : (c + 1) * self.span], repeat).T.ravel())
                for c in range(self.chunks)
            )
        ]

    def decrypt(self, replies: list[Any], n: int) -> Array:
        """Decrypt one ciphertext per class to logits (n, K)."""
        return np.stack([self.encoder.decode(self._decryptor.decrypt(reply))[:n] for reply in replies], axis=1)

    def evaluate(self, inputs: list[Any]) -> list[Any]:
        """Evaluate the network; returns one ciphertext per class."""
        start = time.process_time()
        hidden = self._product(inputs)
        middle = time.process_time()
        active = self._activate(hidden)
        self.evaluator.mod_switch_to_inplace(active, self._levels[self._output_level])
        late = time.process_time()
        out = [self._output(active, k) for k in range(self.mlp.outputs)]
        self.seconds = {"product": middle - start, "activation": late - middle, "output": time.process_time() - late}
        return out

    def _product(self, inputs: list[Any]) -> Any:
        evaluator = self.evaluator
        total = None
        for diagonals, x in zip(self._diagonals, inputs, strict=True):
            turned = [x] + [self._rotate(x, r) for r in range(1, min(self._baby, self.span))]
            for g in range(self._giant):
                part = None
                for r in range(min(self._baby, self.span - g * self._baby)):
                    term = evaluator.multiply_plain(turned[r], diagonals[g * self._baby + r])
                    self.counts.ct_pt += 1
                    part = term if part is None else evaluator.add(part, term)
                part = self._rotate(part, g * self._baby) if g else part
                total = part if total is None else evaluator.add(total, part)
        self._rescale(total, self.scale)
        evaluator.add_plain_inplace(total, self._bias)
        return total

    def _activate(self, x: Any) -> Any:
        """c0 + c1 x + c2 x2 + (c3 x) x2 + x4 (c4 + c5 x + c6 x2 + (c7 x) x2), in three levels for degree 7."""
        c = (*self.activation.coefficients, *(0.0,) * 7)[:8]
        square = self._multiply(x, x)
        if self.activation == SQUARE:
            return square
        low = self._cubic(x, square, c[:4], self.scale)
        if low is None:
            raise InputError(f"a scale of 2^{math.log2(self.scale):.0f} rounds {self.activation.name} to a constant")
        if self.activation.degree <= 3:
            return low
        fourth = self._multiply(square, square)
        # Choose the scale of the upper half so that its product with x4 has the common scale.
        high = self._cubic(x, square, c[4:], self.scale * self._prime(3) / fourth.scale())
        # On a symmetric interval the odd part of a ReLU is x/2, and the upper half may be the constant c4 alone.
        top = self._scaled(fourth, c[4], self.scale, 3) if high is None else self._multiply(high, fourth)
        if top is None:
            self.evaluator.mod_switch_to_inplace(low, self._levels[4])
            return low
        self.evaluator.mod_switch_to_inplace(low, top.parms_id())
        top.scale(self.scale)
        self.evaluator.add_inplace(top, low)
        return top

    def _cubic(self, x: Any, square: Any, c: Sequence[float], scale: float) -> Any:
        """c0 + c1 x + c2 x^2 + (c3 x) x^2, two levels below x, at the given scale; None if only c0 remains."""
        evaluator, level = self.evaluator, 3
        terms = []
        left = self._scaled(x, c[3], scale * self._prime(2) / square.scale(), 1)
        if left is not None:
            terms.append(self._multiply(left, square))
        terms.append(self._scaled(square, c[2], scale, 2))
        terms.append(self._scaled(evaluator.mod_switch_to(x, self._levels[2]), c[1], scale, 2))
        terms = [term for term in terms if term is not None]
        if not terms:
            return None
        total = terms[0]
        total.scale(scale)
        for term in terms[1:]:
            term.scale(scale)
            evaluator.add_inplace(total, term)
        evaluator.add_plain_inplace(total, self._encode(np.full(self.width, c[0]), scale, level))
        return total

    def _output(self, active: Any, k: int) -> Any:
        evaluator = self.evaluator
        out = evaluator.multiply_plain(active, self._classes[k])
        self.counts.ct_pt += 1
        if self.activation == SQUARE:
            # The square still has its own scale; only the bias must match it.
            self._rescale(out, out.scale() / self._prime(self._output_level))
        else:
            self._rescale(out, self.scale)
        turn = self.width // 2
        while turn:
            evaluator.add_inplace(out, self._rotate(out, turn))
            turn //= 2
        bias = self._constants[k]
        if out.scale() != self.scale:
            bias = self._encode(np.full(self.width, self.mlp.b2[k]), out.scale(), self._output_level + 1)
        evaluator.add_plain_inplace(out, bias)
        return out

    def _multiply(self, left: Any, right: Any) -> Any:
        evaluator = self.evaluator
        out = evaluator.square(left) if left is right else evaluator.multiply(left, right)
        evaluator.relinearize_inplace(out, self._relin)
        self.counts.ct_ct += 1
        self.counts.relinearisations += 1
        evaluator.rescale_to_next_inplace(out)
        self.counts.rescales += 1
        return out

    def _scaled(self, x: Any, factor: float, scale: float, level: int) -> Any:
        """factor * x, rescaled to exactly `scale`; None if the factor rounds to zero at its scale."""
        plain_scale = scale * self._prime(level) / x.scale()
        if abs(factor) * plain_scale < 0.5:
            return None
        plain = self._encode(np.full(self.width, factor), plain_scale, level)
        out = self.evaluator.multiply_plain(x, plain)
        self.counts.ct_pt += 1
        self._rescale(out, scale)
        return out

    def _rescale(self, x: Any, scale: float) -> None:
        self.evaluator.rescale_to_next_inplace(x)
        self.counts.rescales += 1
        x.scale(scale)

    def _rotate(self, x: Any, turn: int) -> Any:
        self.counts.rotations += 1
        return self.evaluator.rotate_vector(x, turn * self.batch, self._galois)

    def _prime(self, level: int) -> int:
        """The prime that a rescale at this level drops."""
        return int(self.primes[len(self.primes) - 1 - level])

    def _steps(self) -> list[int]:
        turns = set(range(1, min(self._baby, self.span))) | {g * self._baby for g in range(1, self._giant)}
        turns |= {1 << i for i in range(self.width.bit_length() - 1)}
        return sorted(turn * self.batch for turn in turns)

    def _chunk_diagonals(self, chunk: int) -> list[Any]:
        part = np.zeros((self.width, self.span))
        block = self.mlp.W1[:, chunk * self.span : (chunk + 1) * self.span]
        part[: block.shape[0], : block.shape[1]] = block
        j = np.arange(self.width)
        out = []
        for r in range(self.span):
            weights = part[j, (j + r) % self.span]
            out.append(self._encode(np.roll(weights, r // self._baby * self._baby), float(self._prime(0)), 0))
        return out

    def _encode(self, values: Array, scale: float, level: int) -> Any:
        plain = self.encoder.encode(np.repeat(values, self.batch), scale)
        if level:  # the binding encodes only at the first level
            self.evaluator.mod_switch_to_inplace(plain, self._levels[level])
        return plain


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, (n - 1).bit_length())
