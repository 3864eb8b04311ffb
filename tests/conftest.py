"""Before any test: simulated devices, and every silent mistake an error.

Arrays are checked against the shapes of the package's signatures, by beartype.
"""

import atexit
import os
import shutil
import tempfile

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Programs compile in half the time and run half as fast: most run a few times only.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

# Many tests compile the same programs, in this process and in those that they start.
_compiled = tempfile.mkdtemp(prefix="compiled-")
atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
jax.config.update("jax_compilation_cache_dir", _compiled)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# Prepared text of the tests' own.
_text = tempfile.mkdtemp(prefix="text-")
atexit.register(shutil.rmtree, _text, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = _text

# The rooms that compute with arrays. Not training.step, whose state also holds shapes
# and shardings, and not checkpointing, where beartype refuses Orbax's protocols.
_ROOMS = ("models", "decoding", "training.loss", "training.optimizer")
install_import_hook(
    [f"transformer_jax.{room}" for room in _ROOMS], "beartype.beartype"
).__enter__()
