"""The demo: train, fit, verify, plan, encrypt, predict and report on a dataset of scikit-learn.

It calls the functions that users call, and prints nothing itself.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.fitting import Fit, fit
from quad4fhe.he.predict import Prediction, predict_encrypted
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import MLP
from quad4fhe.names import names_of
from quad4fhe.planning.plan import Plan
from quad4fhe.proof.verification import Verified, verify
from quad4fhe.report.document import report, require_extra
from quad4fhe.report.findings import Options, Source


@dataclass(frozen=True)
class Demo:
    """The results: fit, verification, plan, encrypted prediction, accuracies on the test part, and the files."""

    fit: Fit
    verified: Verified
    plan: Plan
    prediction: Prediction
    relu_accuracy: float
    encrypted_accuracy: float
    files: dict[str, Path]


def run_demo(folder: Path, progress: Progress = silent) -> Demo:
    """Train a small classifier on the breast-cancer data, replace its ReLU, verify, classify the test part encrypted.

    The report is written last.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"can't make the folder {folder}: {error.strerror or error}; choose another with --folder"
        ) from None
    files = {"fit": folder / "fit.safetensors", "calibration": folder / "calib.npz", "test": folder / "test.npz"}
    files |= {"model": folder / "model.npz", "report": folder / "report.html"}
    marker = folder / ".quad4fhe-demo"
    if not marker.exists() and any(path.exists() for path in files.values()):
        raise InputError(f"{folder} holds files that the demo would overwrite; choose another with --folder")
    require_extra()
    progress("train", 0, 0)
    model, X_cal, X_test, y_test, classes, columns = _train()
    mlp = MLP.from_sklearn(model).named(names_of(columns, classes))
    fitted = fit(mlp, X_cal, X_test=X_test, progress=progress)
    try:
        marker.touch()
        np.savez(files["calibration"], X=X_cal, classes=classes, features=columns)
        np.savez(files["test"], X=X_test, y=y_test, classes=classes, features=columns)
        np.savez(files["model"], W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    except OSError as error:
        raise InputError(f"can't write to {folder}: {error.strerror or error}; choose another with --folder") from None
    fitted.save(files["fit"])
    verified = verify(Fit.load(files["fit"]), mlp, X_cal, progress)
    progress("plan", 0, 0)
    made = plan(fitted, samples=len(X_test), X=X_cal)
    prediction = predict_encrypted(fitted, made, X_test, progress=progress)
    report(
        fitted,
        X_cal,
        X_test,
        y_test,
        classes=classes.tolist(),
        options=Options(samples=len(X_test), bill=prediction.bill),
        source=Source("Breast cancer", str(files["fit"]), str(files["calibration"]), str(files["test"])),
        progress=progress,
    ).save(files["report"])
    return Demo(
        fit=fitted,
        verified=verified,
        plan=made,
        prediction=prediction,
        relu_accuracy=float(np.mean(mlp.decide(X_test) == y_test)),
        encrypted_accuracy=float(np.mean(prediction.decisions == y_test)),
        files=files,
    )


def _train() -> tuple[Any, Any, Any, Any, Any, Any]:
    """A fitted pipeline, its calibration rows, test rows with their labels, and the names of classes and features."""
    try:
        from sklearn.datasets import load_breast_cancer
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.model_selection import train_test_split
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise MissingExtraError("scikit-learn", "demo", "the demo") from None
    loaded = load_breast_cancer()
    X, y = loaded.data, loaded.target
    X_cal, X_test, y_cal, y_test = train_test_split(X, y, test_size=0.2, stratify=y, random_state=2026)
    model = make_pipeline(StandardScaler(), MLPClassifier((64,), max_iter=60, random_state=2026))
    with warnings.catch_warnings():
        # Sixty epochs are enough for this data; scikit-learn warns that the loss still changes.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X_cal, y_cal)
    return model, X_cal, X_test, y_test, loaded.target_names, loaded.feature_names
