"""The Transformer as pure functions of parameters and arrays (Section 3)."""

from transformer_jax.models.attention import (
    MultiHeadAttention,
    causal_mask,
    restricted_attention,
    scaled_dot_product_attention,
    segment_mask,
    self_attention_mask,
)
from transformer_jax.models.layers import FeedForward, Residual, sinusoidal_positions
from transformer_jax.models.precision import Precision
from transformer_jax.models.transformer import (
    Cache,
    Memory,
    Transformer,
    TransformerConfig,
    num_parameters,
    parameter_shapes,
    precision_of,
)

__all__ = [
    "Cache",
    "FeedForward",
    "Memory",
    "MultiHeadAttention",
    "Precision",
    "Residual",
    "Transformer",
    "TransformerConfig",
    "causal_mask",
    "num_parameters",
    "parameter_shapes",
    "precision_of",
    "restricted_attention",
    "scaled_dot_product_attention",
    "segment_mask",
    "self_attention_mask",
    "sinusoidal_positions",
]
