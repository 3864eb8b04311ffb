"""Runs or resumes the experiments of a table, one after another, and scores them."""

import dataclasses
import datetime
import functools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax

from transformer_jax.benchmark import matmul_rate
from transformer_jax.config import ExperimentConfig, freeze
from transformer_jax.cost import paper_flops, run_flops
from transformer_jax.data.sources import load_split
from transformer_jax.files import write_whole
from transformer_jax.models import num_parameters
from transformer_jax.reproduce.results import AnyResult, Results
from transformer_jax.training.loop import train
from transformer_jax.training.progress import say
from transformer_jax.training.workdir import check_workdir
from transformer_jax.translation import Translator

_RESULT = "result.json"  # in the folder of a run


def run_rows(
    experiments: Mapping[str, ExperimentConfig],
    folder: Path,
    *,
    kind: type[AnyResult],
    rows: Collection[str],
    split: str,
    num_seeds: int,
    report: Callable[[Results[AnyResult]], None],
) -> Results[AnyResult]:
    """Trains and scores rows with each seed; what is finished already is read.

    Args:
      experiments: of all rows of the table, at the scale to run.
      folder: each run gets a folder ROW-SEED in it.
      kind: of result, which says how a trained model is scored.
      rows: to run; of the others, only what was finished before is read.
      split: to score, "validation" or "test".
      num_seeds: seeds are 0, 1, ...; a round of all rows for each.
      report: called with the results so far, at first and after each run.

    Raises:
      UserError: before any run, if the text of one is missing or its folder is that of
        another config.
    """
    results: Results[AnyResult] = {row: [] for row in experiments}
    waiting = []
    for seed in range(num_seeds):
        for row, experiment in experiments.items():
            config = dataclasses.replace(experiment, seed=seed)
            workdir = folder / f"{row}-{seed}"
            known = _known(config, workdir, split, kind)
            if known is not None:
                results[row].append(known)
            elif row in rows:
                waiting.append((row, config, workdir))
    for _, config, workdir in waiting:
        check_workdir(config, workdir)
    for data in dict.fromkeys(config.data for _, config, _ in waiting):
        load_split(data, split)
    report(results)
    costs = [run_flops(config) for _, config, _ in waiting]
    num_all = len(rows) * num_seeds
    if waiting:
        _say_cost(len(waiting), num_all, sum(costs), waiting[0][1])
    start = time.perf_counter()
    for number, (row, config, workdir) in enumerate(waiting):
        done, left = sum(costs[:number]), sum(costs[number:])
        passed = time.perf_counter() - start
        ahead = f", about {passed / done * left / 60:.0f} min left" if done else ""
        place = num_all - len(waiting) + number + 1
        say(
            f"== run {place} of {num_all}: row {row}, seed {config.seed}; "
            f"{passed / 60:.1f} min so far{ahead}"
        )
        result = _run(config, workdir, split, kind)
        say(f"row {row}, seed {config.seed}: {result.in_words()}")
        results[row].append(result)
        results[row].sort(key=lambda result: result.seed)
        report(results)
        jax.clear_caches()  # the next row's programs are others
    return results


def _say_cost(
    num_waiting: int, num_all: int, flops: float, config: ExperimentConfig
) -> None:
    rate = _machine_rate(config)
    hours = flops / rate / 3600
    say(
        f"{num_waiting} of {num_all} runs to do: {flops:.2e} model FLOPs in all, "
        f"{hours:,.2f} hours at the {rate:.2e} FLOP/s at which this machine multiplies "
        "matrices, which training stays below. Ctrl-C stops; the same command goes on."
    )


def _known(
    config: ExperimentConfig, workdir: Path, split: str, kind: type[AnyResult]
) -> AnyResult | None:
    """The result of an earlier run of just this, if there is one."""
    path = workdir / _RESULT
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        result = kind(**stored["result"])
        # Keys that the config did not have then had the values that are now default.
        before = freeze(stored["config"])
    except (ValueError, TypeError, KeyError):
        # Damaged, or by another version of this file: scored again, not trained again.
        return None
    is_of_this = _identity(before) == _identity(config) and result.split == split
    return result if is_of_this else None


def _identity(config: ExperimentConfig) -> dict[str, Any]:
    values = config.to_dict()
    del values["data"]["dir"]  # which may move
    return values


def _run(
    config: ExperimentConfig, workdir: Path, split: str, kind: type[AnyResult]
) -> AnyResult:
    train(config, workdir)
    # Of as many checkpoints as the row says: one in Table 3.
    translator = Translator.from_workdir(workdir, "average")
    scores, outputs = kind.scored(translator, config, split)
    text = "".join(f"{output}\n" for output in outputs)
    write_whole(workdir / f"{split}.{kind.suffix}", text.encode())
    training_s = _step_time(workdir) * translator.steps[-1]
    rate = _machine_rate(config)
    result = kind(
        seed=config.seed,
        split=split,
        steps=translator.steps[-1],
        averaged_checkpoints=len(translator.steps),
        parameters=num_parameters(config.model),
        training_s=training_s,
        matmul_rate=rate,
        time_flops=paper_flops(training_s / 3600, num_chips=1, tflops=rate / 1e12),
        model_flops=run_flops(config),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=_machine(),
        **scores,
    )
    stored = {"config": _identity(config), "result": dataclasses.asdict(result)}
    write_whole(workdir / _RESULT, f"{json.dumps(stored, indent=2)}\n".encode())
    return result


def _step_time(workdir: Path) -> float:
    """Seconds of a step: the median of what the run has reported."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return statistics.median(
        record["train/step_time_s"]
        for record in records
        if "train/step_time_s" in record
    )


def _machine_rate(config: ExperimentConfig) -> float:
    """FLOP/s at which this machine multiplies matrices of the run's kind."""
    kind = config.model.on_platform(jax.default_backend()).matmul_dtype
    # The simulated devices of a CPU share its cores.
    num_devices = 1 if jax.default_backend() == "cpu" else jax.device_count()
    return num_devices * _rate(kind)


@functools.cache
def _rate(kind: str) -> float:
    return matmul_rate(kind)


@functools.cache
def _machine() -> str:
    kind = jax.devices()[0].device_kind
    if kind == "cpu":
        shown = f"{os.cpu_count()} cores of {_cpu_name()}"
    else:
        shown = f"{jax.device_count()} x {kind}"
    return f"{shown}, JAX {jax.__version__}, Python {platform.python_version()}"


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()
