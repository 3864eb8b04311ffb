"""Text, corpora, special ids, batches; never imports jax."""
