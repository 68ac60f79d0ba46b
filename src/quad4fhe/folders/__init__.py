"""Scoring folders of requests: a client writes requests, workers answer them, the client reads the replies."""

from quad4fhe.folders.batches import Batch, Written, read_replies, write_requests
from quad4fhe.folders.run import Problem, Score, score

__all__ = ["Batch", "Problem", "Score", "Written", "read_replies", "score", "write_requests"]
