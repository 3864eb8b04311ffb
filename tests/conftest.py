"""Before any test: simulated devices, and every silent mistake an error.

Arrays are checked against the shapes of the package's signatures, by beartype.
"""

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# The rooms that compute with arrays. Not training.step, whose state also holds shapes
# and shardings, and not checkpointing, where beartype refuses Orbax's protocols.
_ROOMS = ("models", "decoding", "training.loss", "training.optimizer")
install_import_hook(
    [f"transformer_jax.{room}" for room in _ROOMS], "beartype.beartype"
).__enter__()
