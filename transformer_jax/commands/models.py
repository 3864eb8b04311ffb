"""The translator that a command's flags name."""

import argparse
from typing import get_args

from transformer_jax.command_line import decoding_changes, require_choice
from transformer_jax.plans import Ensemble
from transformer_jax.trained_model import TrainedModel
from transformer_jax.translation import Translator


def load_translator(flags: argparse.Namespace) -> Translator:
    """Of one folder, or an ensemble of several, with the search that the flags change.

    Raises:
      UserError: a folder without a model, or options that contradict each other.
    """
    require_choice("ensemble", flags.ensemble, get_args(Ensemble))
    models = [TrainedModel.load(folder, flags.checkpoint) for folder in flags.workdir]
    translator = Translator.of(*models, ensemble=flags.ensemble)
    return translator.with_decoding(**decoding_changes(flags))
