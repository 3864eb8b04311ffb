"""Table 1, computed and measured: what a layer costs as its input grows (Section 4)."""

from transformer_jax.complexity.measurement import Table1, measure
from transformer_jax.complexity.report import markdown, plot, reproduce

__all__ = ["Table1", "markdown", "measure", "plot", "reproduce"]
