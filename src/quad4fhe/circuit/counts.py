"""What a circuit does, counted: the operations of the paper's tables, for every layout.

Decides what is counted and how each layout's numbers follow from its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from quad4fhe.circuit.forecast import Shape
from quad4fhe.circuit.packing import Packing


@dataclass
class Counts:
    """Operations on ciphertexts for one request: encryptions, products, rotations, relinearisations, rescales.

    `ct_pt` counts products with a plaintext (in layout batch with one integer), `depth` multiplications in a row.
    """

    encryptions: int = 0
    ct_ct: int = 0
    ct_pt: int = 0
    rotations: int = 0
    relinearisations: int = 0
    rescales: int = 0
    depth: int = 0

    def to_dict(self) -> dict[str, int]:
        """Plain literals."""
        return {field.name: int(getattr(self, field.name)) for field in fields(self)}


def batch_counts(shape: Shape, *, skip: bool) -> Counts:
    """One request of layout batch: every slot a sample, no rotation, relinearisation or rescale."""
    d, m, K = shape.features, shape.units, shape.outputs
    return Counts(encryptions=d, ct_ct=m, ct_pt=m * d + K * m + (K * d if skip else 0), depth=3)


def packed_counts(packing: Packing) -> Counts:
    """One request of layout packed."""
    return Counts(
        encryptions=packing.chunks,
        ct_ct=1,
        ct_pt=packing.diagonals * packing.chunks + 2 * packing.columns + (1 if packing.columns > 1 else 0),
        rotations=sum(packing.rotations()),
        relinearisations=1,
        rescales=1,
        depth=3,
    )
