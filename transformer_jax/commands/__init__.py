"""The commands of `python -m transformer_jax`, one file each."""
