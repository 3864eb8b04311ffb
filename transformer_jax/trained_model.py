"""A trained model and all that translating needs, of a run or of an exported folder.

An exported folder holds `model.safetensors`, the parameters by path; `config.json`,
what the model is, the search, languages and limits; and the vocabulary. Neither Orbax
nor the config of the training is needed to load it.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax.checkpointing import load_checkpoint
from transformer_jax.config import (
    DecodingConfig,
    ExperimentConfig,
    TransformerConfig,
    freeze,
    freeze_group,
)
from transformer_jax.data.tokenizer import Vocabularies
from transformer_jax.errors import UserError
from transformer_jax.files import write_whole
from transformer_jax.models import parameter_shapes

_PARAMETERS = "model.safetensors"
_CONFIG = "config.json"
_FORMAT = "transformer_jax model 1"
_KINDS = {  # of the values in an exported config.json
    "model": dict,
    "decoding": dict,
    "source_language": str,
    "target_language": str,
    "max_length": int,
    "steps": list,
    "shared_vocabulary": bool,
}


def load_config(workdir: Path) -> ExperimentConfig:
    """The config that a run was started with."""
    path = workdir / _CONFIG
    try:
        return freeze(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(
            f"no {path}: expected the folder of a run; train with --workdir={workdir} "
            "first"
        ) from None
    except ValueError as error:  # UserError, or not JSON, or not UTF-8
        raise UserError(f"{path} is not the config of a run ({error})") from None


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """Parameters as numpy arrays, and what they mean."""

    config: TransformerConfig
    params: Any
    vocabularies: Vocabularies
    decoding: DecodingConfig
    source_language: str
    target_language: str
    max_length: int  # longest sentence trained on, in tokens, end included
    steps: tuple[int, ...]  # of the checkpoints that the parameters are the average of

    @classmethod
    def load(cls, folder: str | Path, checkpoint: str | None = None) -> "TrainedModel":
        """Of the folder of a run, or of an exported model.

        Args:
          folder: which of the two it is, shows itself.
          checkpoint: of a run: "latest" (the default), "best", "average" or a step.

        Raises:
          UserError: the folder holds neither, or not that checkpoint, or is damaged.
        """
        folder = Path(folder)
        if not (folder / _PARAMETERS).exists():
            return cls._of_run(folder, checkpoint or "latest")
        if checkpoint is not None:
            raise UserError(
                f"{folder} is an exported model, which has one set of parameters: drop "
                f"--checkpoint={checkpoint}"
            )
        return cls._of_export(folder)

    @classmethod
    def _of_run(cls, workdir: Path, checkpoint: str) -> "TrainedModel":
        config = load_config(workdir)
        params, steps = load_checkpoint(
            workdir, checkpoint, average_last=config.checkpoint.average_last
        )
        return cls(
            config.model,
            params,
            Vocabularies.load(workdir, shared=config.tokenizer.shared),
            config.decoding,
            config.data.source_language,
            config.data.target_language,
            config.data.max_length,
            tuple(steps),
        )

    @classmethod
    def _of_export(cls, folder: Path) -> "TrainedModel":
        path = folder / _CONFIG
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict) or values.pop("format", "") != _FORMAT:
                raise ValueError(f'expected "format": "{_FORMAT}"')
            for name, kind in _KINDS.items():
                if type(values[name]) is not kind:
                    raise ValueError(f"{name} is {values[name]!r}")
            shared = values.pop("shared_vocabulary")
            config = freeze_group(TransformerConfig, values.pop("model"), "model")
            decoding = freeze_group(DecodingConfig, values.pop("decoding"), "decoding")
            values["steps"] = tuple(map(int, values["steps"]))
            arrays = safetensors.numpy.load_file(folder / _PARAMETERS)
            _require_parameters_of(config, arrays)
            return cls(
                config=config,
                decoding=decoding,
                params=unflatten_dict(arrays, sep="/"),
                vocabularies=Vocabularies.load(folder, shared=shared),
                **values,
            )
        except FileNotFoundError as error:
            raise UserError(
                f"no {error.filename}: the exported model {folder} is not whole; "
                "export it again"
            ) from None
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            raise UserError(
                f"{folder} is not an exported model, or damaged ({error}): export it "
                "again"
            ) from None

    def export(self, folder: Path) -> None:
        """Writes an exported model, whole or not at all.

        Raises:
          UserError: there is something else at `folder`.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists already, expected a new folder")
        values = dataclasses.asdict(self)
        for name in ("params", "vocabularies", "config"):
            del values[name]
        values |= {
            "format": _FORMAT,
            "model": dataclasses.asdict(self.config),
            "shared_vocabulary": self.vocabularies.source is self.vocabularies.target,
        }
        flat = flatten_dict(self.params, sep="/")
        arrays = {path: np.ascontiguousarray(x) for path, x in flat.items()}
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self.vocabularies.save(partial)
            text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
            write_whole(partial / _CONFIG, text.encode())
            write_whole(partial / _PARAMETERS, safetensors.numpy.save(arrays))
            partial.replace(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _require_parameters_of(
    config: TransformerConfig, arrays: Mapping[str, np.ndarray]
) -> None:
    expected: Any = flatten_dict(parameter_shapes(config), sep="/")
    for path in sorted(expected.keys() | arrays.keys()):
        given, wanted = (
            tree[path].shape if path in tree else "none" for tree in (arrays, expected)
        )
        if given != wanted:
            raise ValueError(f"parameter {path} is {given}, expected {wanted}")
