"""Train a recipe's network in torch and bring it home as an MLP.

Decides the training loop: shuffled batches, Adam, early stopping on the validation loss, best weights kept. Folding
BatchNorm is left to the importer. One thread, one seed: the same recipe gives the same numbers on the same machine.
"""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import numpy as np

from quad4fhe.mlp import MLP
from quad4fhe_reproduce import missing
from quad4fhe_reproduce.prepare import Parts
from quad4fhe_reproduce.recipes import Training


def train(parts: Parts, training: Training, width: int, seed: int) -> tuple[MLP, int]:
    """Train one hidden layer of `width` units on the training part; returns the model and its epochs."""
    torch = _torch()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    outputs = 1 if parts.classes == 2 else parts.classes
    layers = [torch.nn.Linear(parts.X_train.shape[1], width)]
    if training.batchnorm:
        layers.append(torch.nn.BatchNorm1d(width))
    net = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(width, outputs))
    X, y = _tensors(torch, parts.X_train, parts.y_train, outputs)
    X_val, y_val = _tensors(torch, parts.X_val, parts.y_val, outputs)
    loss = torch.nn.BCEWithLogitsLoss() if outputs == 1 else torch.nn.CrossEntropyLoss()
    adam = torch.optim.Adam(net.parameters(), lr=training.rate, weight_decay=training.decay)
    best, weights, waited, epochs = float("inf"), copy.deepcopy(net.state_dict()), 0, 0
    while epochs < training.epochs and waited < training.patience:
        epochs += 1
        net.train()
        for rows in _batches(torch, len(X), training):
            adam.zero_grad()
            loss(net(X[rows]), y[rows]).backward()
            adam.step()
        net.eval()
        with torch.no_grad():
            reached = float(loss(net(X_val), y_val))
        if reached < best - training.delta:
            best, weights, waited = reached, copy.deepcopy(net.state_dict()), 0
        else:
            waited += 1
    net.load_state_dict(weights)
    net.eval()
    return MLP.from_torch(net), epochs


def _tensors(torch: Any, X: Any, y: Any, outputs: int) -> tuple[Any, Any]:
    target = torch.from_numpy(np.ascontiguousarray(y))
    return torch.from_numpy(np.ascontiguousarray(X)), target.float()[:, None] if outputs == 1 else target


def _batches(torch: Any, n: int, training: Training) -> list[Any]:
    if training.batch == 0:
        return [slice(None)]
    batches = list(torch.randperm(n).split(training.batch))
    # BatchNorm has no variance of a single row.
    return batches[:-1] if training.batchnorm and len(batches) > 1 and len(batches[-1]) == 1 else batches


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise missing("torch", "training the paper's models") from None
    return torch


def require_packages() -> None:
    """Raise MissingExtraError, before any work is begun, where a package the experiments need is not installed."""
    _torch()
    if importlib.util.find_spec("sklearn") is None:
        raise missing("scikit-learn", "splitting the paper's data")
