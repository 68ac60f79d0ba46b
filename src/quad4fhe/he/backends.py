"""The libraries that compute on ciphertexts, by name.

Other packages add one by the entry-point group `quad4fhe.backends`; see docs/backend.md. Clients always use SEAL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe._registry import Registry

if TYPE_CHECKING:
    from quad4fhe.layouts.backend import Backend

DEFAULT = "seal"

BACKENDS: Registry[Backend] = Registry("backend", {DEFAULT: "quad4fhe.he.seal:BACKEND"}, group="quad4fhe.backends")


def chosen(backend: str | Backend) -> Backend:
    """The backend of this name, or the backend itself."""
    return BACKENDS.get(backend) if isinstance(backend, str) else backend
