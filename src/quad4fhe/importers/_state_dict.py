"""Rebuild a model from torch-style names alone (`0.weight`, `bn.running_mean`).

Names and shapes give the layers, but not always their order; an ambiguous order is rejected, never guessed. A state
dict records neither the activation nor the epsilon of a BatchNorm: the activation must be given, and torch's default
epsilon is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from quad4fhe.activations import RELU, Activation
from quad4fhe.errors import InputError
from quad4fhe.importers._chain import Chain
from quad4fhe.mlp import MLP

_EPS = 1e-5  # torch.nn.BatchNorm1d's default
_PARTS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_WAY_OUT = "pass the Sequential itself to from_torch, or export the model to ONNX"


@dataclass(frozen=True)
class _Layer:
    """The entries under one prefix: a Linear (a matrix) or a BatchNorm (running statistics)."""

    name: str
    parts: Mapping[str, NDArray[Any]]

    @property
    def linear(self) -> bool:
        return "weight" in self.parts and self.parts["weight"].ndim == 2

    @property
    def label(self) -> str:
        return f"layer {self.name!r} ({'Linear' if self.linear else 'BatchNorm1d'})"

    @property
    def width(self) -> int:
        """The features of a BatchNorm."""
        return int(self.parts["running_mean"].size)

    def onto(self, chain: Chain) -> Chain:
        parts = self.parts
        if self.linear:
            return chain.linear(self.label, parts["weight"], parts.get("bias"))
        gamma, beta = parts.get("weight", 1.0), parts.get("bias", 0.0)
        return chain.batch_norm(self.label, parts["running_mean"], parts["running_var"], _EPS, gamma, beta)


_UNNAMED = (
    "a state dict does not record its activation; add the one that the network was trained with, such as "
    "activation='relu'"
)


def from_state_dict(entries: Mapping[str, NDArray[Any]], activation: Activation | str | None = None) -> MLP:
    """Build the model from its layers' names and arrays; a state dict does not record its activation."""
    chosen = Activation.parse(activation) if isinstance(activation, str) else activation
    slopes, others = _slopes(entries)
    if slopes:
        if chosen is not None and set(slopes.values()) != {chosen}:
            raise InputError(
                f"the activation given is {chosen}, but the state dict has the slopes of a PReLU; leave it out"
            )
        return _assembled(others, slopes)
    made = _assembled(others, chosen or RELU)
    if chosen is None:  # said last: names that can't be read at all are the larger problem
        raise InputError(_UNNAMED)
    return made


def _slopes(entries: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Activation], Mapping[str, NDArray[Any]]]:
    """The slopes of PReLUs by name, and the other entries; only a PReLU has a weight vector and nothing else."""
    prefixes: dict[str, list[str]] = {}
    for key in entries:
        prefixes.setdefault(key.rpartition(".")[0], []).append(key)
    own = [keys[0] for keys in prefixes.values() if len(keys) == 1 and keys[0].endswith("weight")]
    alone = [key for key in own if entries[key].ndim == 1]
    slopes = {key.rpartition(".")[0]: Activation("leaky_relu", (tuple(entries[key].tolist()),)) for key in alone}
    return slopes, {key: value for key, value in entries.items() if key not in alone}


def _between(groups: Sequence[list[_Layer]], slopes: Mapping[str, Activation]) -> list[Activation]:
    """The PReLU between each pair of groups; raises InputError if the numbers in the names do not give one each."""
    if len(groups) == 2 and len(slopes) == 1:
        return list(slopes.values())
    at = {_number(name): slope for name, slope in slopes.items()}
    found = []
    for before, after in pairwise(groups):
        low, high = max(_number(each.name) for each in before), min(_number(each.name) for each in after)
        found += [at[number] for number in at if low < number < high]
    if not len(found) == len(at) == len(slopes) == len(groups) - 1:
        raise InputError(
            f"the state dict has {len(slopes)} PReLU layers for {len(groups) - 1} hidden layers, or its names do not "
            f"tell which belongs to which; {_WAY_OUT}"
        )
    return found


def _number(name: str) -> int:
    """The last number in a name, -1 without one."""
    return int(found[-1]) if (found := re.findall(r"\d+", name)) else -1


def _assembled(entries: Mapping[str, NDArray[Any]], activation: Activation | Mapping[str, Activation]) -> MLP:
    layers = _layers(entries)
    linears = [layer for layer in layers if layer.linear]
    if len(linears) < 2:
        names = ", ".join(repr(layer.name) for layer in linears) or "none"
        raise InputError(f"found {len(linears)} Linear layers ({names}), wanted two or more; {_WAY_OUT}")
    groups = _deeper_groups(layers) if len(linears) > 2 else _by_index(layers) or _by_shape(layers)
    several = [activation] * (len(groups) - 1) if isinstance(activation, Activation) else _between(groups, activation)
    chain = Chain()
    for number, group in enumerate(groups):
        chain = chain.activate("the activation", several[number - 1]) if number else chain
        for layer in group:
            chain = layer.onto(chain)
    return chain.mlp()


def _deeper_groups(layers: Sequence[_Layer]) -> list[list[_Layer]]:
    """The layers between the activations of a deeper network, in the order of the numbers in their names."""
    stems = {re.sub(r"\d+", "#", layer.name) for layer in layers if layer.linear}
    numbers = [_number(layer.name) for layer in layers]
    whole = {layer.name.rpartition(".")[0] for layer in layers}
    if len(stems) > 1 or len(set(numbers)) < len(numbers) or (len(whole) > 1 and not all(x.linear for x in layers)):
        raise InputError(f"the names of the layers do not tell their order; {_WAY_OUT}")
    groups: list[list[_Layer]] = [[]]
    for number, layer in sorted(zip(numbers, layers, strict=True), key=lambda each: each[0]):
        used = any(each.linear for each in groups[-1])
        if layer.linear and used:
            groups.append([])
        elif used and number - 1 not in numbers:  # the module in the gap may be the activation
            raise _undecided(layer)
        groups[-1].append(layer)
    return groups


def _layers(entries: Mapping[str, NDArray[Any]]) -> list[_Layer]:
    groups: dict[str, dict[str, NDArray[Any]]] = {}
    for key, array in entries.items():
        prefix, _, part = key.rpartition(".")
        if part not in _PARTS:
            raise InputError(f"entry {key!r} belongs to no Linear or BatchNorm1d layer; {_WAY_OUT}")
        groups.setdefault(prefix, {})[part] = array
    layers = [_Layer(name, parts) for name, parts in groups.items()]
    for layer in layers:
        if not layer.linear and not {"running_mean", "running_var"} <= layer.parts.keys():
            shape = layer.parts["weight"].shape if "weight" in layer.parts else "no"
            raise InputError(
                f"layer {layer.name!r} has {shape} weight and no running_mean and running_var; "
                "supported: Linear, and BatchNorm1d with running statistics"
            )
    return layers


def _by_index(layers: Sequence[_Layer]) -> tuple[list[_Layer], list[_Layer]] | None:
    """Layers before and after the activation if all are numbered members of one Sequential, else None.

    A module without parameters leaves a gap in the numbers. The activation is in one of the gaps between both Linears,
    which decides the side of a BatchNorm as long as all gaps are on one side of it.
    """
    split = [layer.name.rpartition(".") for layer in layers]
    if len({stem for stem, _, _ in split}) > 1 or not all(index.isdecimal() for _, _, index in split):
        return None
    at = dict(sorted((int(index), layer) for (_, _, index), layer in zip(split, layers, strict=True)))
    first, second = (index for index, layer in at.items() if layer.linear)
    gaps = [index for index in range(first + 1, second) if index not in at]
    before, after = [], []
    for index, layer in at.items():
        if index <= first or (index < second and gaps and index < gaps[0]):
            before.append(layer)
        elif index >= second or (gaps and index > gaps[-1]):
            after.append(layer)
        else:
            raise _undecided(layer)
    return before, after


def _by_shape(layers: Sequence[_Layer]) -> tuple[list[_Layer], list[_Layer]]:
    """Layers before and after the activation if only the shapes tell which comes first."""
    first, second = _linear_order([layer for layer in layers if layer.linear])
    units, features = first.parts["weight"].shape
    outputs = second.parts["weight"].shape[0]
    before, after = [first], [second]
    for layer in layers:
        if layer.linear:
            continue
        places = [
            place for place, width in (("in", features), ("mid", units), ("out", outputs)) if width == layer.width
        ]
        if not places:
            raise InputError(
                f"{layer.label} has {layer.width} features, but the model has {features}, {units} and {outputs}; "
                "check the file"
            )
        if places == ["in"] and before == [first]:
            before.insert(0, layer)
        elif places == ["out"] and after == [second]:
            after.append(layer)
        else:
            raise _undecided(layer)
    return before, after


def _linear_order(pair: Sequence[_Layer]) -> Sequence[_Layer]:
    def feeds(first: _Layer, second: _Layer) -> bool:
        return bool(first.parts["weight"].shape[0] == second.parts["weight"].shape[1])

    one, two = pair
    if feeds(one, two) and not feeds(two, one):
        return one, two
    if feeds(two, one) and not feeds(one, two):
        return two, one
    shapes = " and ".join(f"{layer.label} {layer.parts['weight'].shape}" for layer in pair)
    if not feeds(one, two):
        raise InputError(f"{shapes} fit in neither order; wanted (units, features) and (classes, units)")
    # There are as many classes as features, so only numbers in the names (fc1, fc2) tell the order.
    numbers = [[int(digits) for digits in re.findall(r"\d+", layer.name)] for layer in pair]
    stems = {re.sub(r"\d+", "#", layer.name) for layer in pair}
    if len(stems) == 1 and numbers[0] != numbers[1]:
        return sorted(pair, key=lambda layer: numbers[pair.index(layer)])
    raise InputError(f"{shapes} fit in either order; save them as W1, b1, W2, b2 with numpy.savez")


def _undecided(layer: _Layer) -> InputError:
    return InputError(f"{layer.label} may come before or after the activation, its name does not tell; {_WAY_OUT}")
