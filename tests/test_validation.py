"""The best validation so far, and when a run gives up."""

import dataclasses

from transformer_jax.config import ExperimentConfig, TrainingConfig
from transformer_jax.training.validation import Best


def patience(validations: int) -> ExperimentConfig:
    training = TrainingConfig(early_stop_validations=validations)
    return dataclasses.replace(ExperimentConfig(), training=training)


def test_the_best_is_the_highest_and_counts_the_validations_since() -> None:
    best = Best()
    seen = []
    for score in (-3.0, -2.0, -2.5, -2.0, -1.0):
        best = best.after(score)
        seen.append((best.score, best.validations_since))
    assert seen == [(-3.0, 0), (-2.0, 0), (-2.0, 1), (-2.0, 2), (-1.0, 0)]


def test_a_run_gives_up_after_so_many_validations_and_never_by_default() -> None:
    worse = Best(3.0).after(2.0).after(1.0)
    assert not worse.is_given_up(patience(3))
    assert worse.is_given_up(patience(2))
    assert worse.is_given_up(patience(1))
    assert not worse.is_given_up(patience(0))
    assert not Best().is_given_up(patience(1))
