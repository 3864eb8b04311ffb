"""The Transformer of "Attention Is All You Need" in JAX and Flax."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.errors import UserError
    from transformer_jax.translation import Translator

__all__ = ["Translator", "UserError"]

_HOMES = {"Translator": "translation", "UserError": "errors"}


def __getattr__(name: str) -> Any:
    """Imports on first use: `import transformer_jax` alone is free."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
