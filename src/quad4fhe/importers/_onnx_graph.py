"""An ONNX graph as a list of nodes that can be walked from any of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quad4fhe.errors import InputError
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._onnx_flow import Constants, Flow, Node
from quad4fhe.importers._onnx_nodes import apply


@dataclass(frozen=True, eq=False)
class Walk:
    """Where a walk arrived: the one chain behind the graph's outputs, and whether they are probabilities or labels."""

    chain: Chain
    is_probability: bool


class Graph:
    """The nodes and constants of an onnx.ModelProto.

    `data` holds the names of tensors that depend on an input; the constants of all others are known.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.constants = Constants(model.graph.initializer)
        self.inputs = [value for value in model.graph.input if value.name not in self.constants]
        self.nodes = [Node(proto) for proto in model.graph.node]
        self.data = {value.name for value in self.inputs}
        for node in self.nodes:
            if any(name in self.data for name in node.inputs):
                self.data.update(name for name in node.outputs if name)
            else:
                self.constants.fold(node)

    def walk(self, start: str, flow: Flow, first: int = 0) -> Walk:
        """Follow the data from the tensor `start` through the nodes from `first` on, to the graph's outputs."""
        flows: dict[str, Flow] = {start: flow}
        for node in self.nodes[first:]:
            if any(name in flows for name in node.inputs):
                # Only the first output carries the data: Dropout's mask and the like stay unknown names.
                flows[node.outputs[0]] = apply(node, flows, self.constants)
        return self._decided(flows)

    def _decided(self, flows: dict[str, Flow]) -> Walk:
        """The one chain that the graph's outputs are made from."""
        reached = [flows[value.name] for value in self.model.graph.output if value.name in flows]
        useful = [flow for flow in reached if flow.kind not in ("shape", "complement")]
        if not useful:
            raise InputError("no output of the graph is a score or label of its input; export the model again")
        chains = [_chain(flow) for flow in useful]
        whole = [chain for chain in chains if chain.complete]
        if any(chain is not whole[0] for chain in whole):
            raise InputError(
                "the outputs of the graph have different output layers; supported: one classifier per graph"
            )
        squashed = any(flow.kind in ("sigmoid", "scores", "label") for flow in useful)
        return Walk(whole[0] if whole else chains[0], squashed)


def _chain(flow: Flow) -> Chain:
    if flow.kind == "activated":  # the graph ends with its activation
        return flow.chain.activate("the last node")
    return flow.chain
