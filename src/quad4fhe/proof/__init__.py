"""What can be promised about inputs that nobody has seen yet, and with which confidence."""

from quad4fhe.proof.compression import determines, find_support
from quad4fhe.proof.guarantee import by_class, compression_bound, fixed_sequence, lost_share_bound, tail_bound
from quad4fhe.proof.holdout import ClassGuarantee, Guarantee, compressed, guarantee, hold_out
from quad4fhe.proof.reliable import Reliable
from quad4fhe.proof.split import Split, split_rows

__all__ = [
    "ClassGuarantee",
    "Guarantee",
    "Reliable",
    "Split",
    "by_class",
    "compressed",
    "compression_bound",
    "determines",
    "find_support",
    "fixed_sequence",
    "guarantee",
    "hold_out",
    "lost_share_bound",
    "split_rows",
    "tail_bound",
]
