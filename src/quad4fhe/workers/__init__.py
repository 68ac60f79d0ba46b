"""Pools of workers: processes on this machine, or actors of Ray. They can do any task that can be pickled."""

from quad4fhe.workers.registry import choose

__all__ = ["choose"]
