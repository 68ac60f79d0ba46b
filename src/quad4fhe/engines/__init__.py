"""Where work runs: a process pool on this machine, or Ray. What the work is, engines do not know."""

from quad4fhe.engines.base import Done, Engine, Team, Work, WorkerLostError, each, engine, single_workers

__all__ = ["Done", "Engine", "Team", "Work", "WorkerLostError", "each", "engine", "single_workers"]
