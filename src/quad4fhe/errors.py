"""The errors a user can meet. Each message says what came, what was wanted and how to fix it."""

from __future__ import annotations


class Quad4FHEError(Exception):
    """Base of every error raised on purpose by this library."""


class InputError(Quad4FHEError, ValueError):
    """The input can't be used as it is (exit code 2 on the command line)."""


class MissingExtraError(Quad4FHEError, ImportError):
    """An optional dependency is not installed (exit code 2 on the command line)."""

    def __init__(self, package: str, extra: str, purpose: str, of: str = "quad4fhe") -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: pip install '{of}[{extra}]'"
        )


class CertificateError(Quad4FHEError):
    """A certificate does not hold for this fit and this data (exit code 1 on the command line)."""


class FitError(Quad4FHEError):
    """The regime that was asked for has no solution on this data (exit code 1 on the command line)."""


class TargetNotReachedError(Quad4FHEError):
    """No family reaches the agreement that was asked for (exit code 1 on the command line)."""
