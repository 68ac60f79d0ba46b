"""Scoring folders of encrypted batches: a client fills a folder, workers answer it, the client reads the answers."""

from quad4fhe.scoring.batches import Batch, Written, read_replies, write_requests
from quad4fhe.scoring.run import Problem, Score, score

__all__ = ["Batch", "Problem", "Score", "Written", "read_replies", "score", "write_requests"]
