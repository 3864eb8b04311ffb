"""python -m benchmarks.decode: how fast we translate, beside other systems.

Every system runs the same weights on the same sentences with the same beam, on CPU in
float32, one after the other, each in a process of its own: ours, and of CTranslate2,
Marian and Hugging Face generate those that are installed (`pip install -e ".[peers]"`).

A size, "tiny" or "base", has random weights and random tokens in the numbers of words
of the sentences, and every output is forced to one length. A folder, of a run or of an
exported model, translates the sentences as they are.

  python -m benchmarks.decode --model=tiny --sentences=test_2016_flickr.en.gz
  python -m benchmarks.decode --model=runs/multi30k --sentences=test_2016_flickr.en.gz
"""

import collections
import dataclasses
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.command_line import Parser, prepare_to_translate, run
from transformer_jax.config import DecodingConfig, TransformerConfig
from transformer_jax.data.text_files import read_lines
from transformer_jax.errors import UserError

_SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "vocab_size": 10_000,
        "num_layers": 4,
        "d_model": 128,
        "d_ff": 256,
        "num_heads": 4,
    },
    "base": {"vocab_size": 37_000},
}
_SYSTEMS = ("ours", "ctranslate2", "marian", "hugging_face")
# What a part of a step is known by in the names of its operations; the first counts.
_PARTS = {
    "output projection": r"Transformer\.logits",
    "cache writes": r"attention_residual/scatter",
    "attention over the target": r"self_attention\.attend_blockwise/b[hk]",
    "attention over the source": r"cross_attention\.attend_blockwise/bh",
    "projections of attention": r"attention",
    "feed-forward": r"feed_forward",
    "choice of tokens": r"while/body",
}


def main(arguments: Sequence[str]) -> None:
    """Runs each system in a process of its own and prints what they did."""
    parser = Parser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("--model", required=True, help="tiny, base, or a folder")
    parser.add_argument("--sentences", required=True, help="text, plain or .gz")
    parser.add_argument("--most", type=int, default=1000, help="sentences at most")
    parser.add_argument("--beam_size", type=int, default=4)
    parser.add_argument("--output_length", type=int, default=16, help="of a size")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3, help="of ours; best counts")
    parser.add_argument("--systems", default=",".join(_SYSTEMS))
    parser.add_argument("--profile", action="store_true", help="where our time goes")
    parser.add_argument(
        "--lengths", help="instead: ours for outputs of, say, 25,50,100"
    )
    parser.add_argument("--report", help=f"internal: one of {_SYSTEMS}'s, as JSON")
    flags, _ = parser.parse(arguments)
    if flags.report:
        _report(flags)
        return
    systems = flags.systems.split(",")
    if unknown := set(systems) - set(_SYSTEMS):
        raise UserError(f"no system {unknown.pop()}, expected {', '.join(_SYSTEMS)}")
    if flags.lengths:
        for length in flags.lengths.split(","):
            (ours,) = _in_process("ours", [*arguments, f"--output_length={length}"])
            per_token = 1e3 * ours["seconds"] / max(ours["num_tokens"], 1)
            print(f"{length:>5} tokens  {per_token:8.3f} ms a token", flush=True)
        return
    reports: list[dict[str, Any]] = []
    for system in systems:
        reports.extend(_in_process(system, arguments))
        print(f"{system} done", file=sys.stderr)
    best = max((r["rate"] for r in reports if r["system"] == "ours"), default=0.0)
    for report in reports:
        print(
            f"{report['name']:50} {report['rate']:8.1f} sentences/s "
            f"{report['num_tokens'] / report['seconds']:8.0f} tokens/s   "
            f"ours is {best / report['rate']:.2f} times as fast"
        )


def _in_process(system: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The runs of a system, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "benchmarks.decode", *arguments]
        done = subprocess.run([*command, f"--report={system}:{path}"], check=False)
        if done.returncode or not path.exists():
            print(f"{system}: failed or not installed, left out", file=sys.stderr)
            return []
        return json.loads(path.read_text())


def _report(flags: Any) -> None:
    system, _, path = flags.report.partition(":")
    job = _job(flags)
    if system == "ours":
        runs = _run_ours(job, repeats=flags.repeats, profile=flags.profile)
    else:
        from benchmarks import peers

        runs = getattr(peers, f"run_{system}")(job)
    report = [
        {
            "system": system,
            "name": run.name,
            "seconds": run.seconds,
            "rate": len(run.outputs) / run.seconds,
            "num_tokens": run.num_tokens,
        }
        for run in runs
    ]
    Path(path).write_text(json.dumps(report))


def _job(flags: Any) -> Any:
    import jax
    import jax.numpy as jnp

    from benchmarks.peers import Job
    from transformer_jax.models import Transformer
    from transformer_jax.trained_model import TrainedModel

    lines = read_lines(Path(flags.sentences))[: flags.most]
    float32: Any = {"dtype": "float32", "matmul_dtype": "float32"}
    if flags.model in _SIZES:
        config = TransformerConfig(**_SIZES[flags.model], **float32)
        token = jnp.ones((1, 1), jnp.int32)
        init = jax.jit(Transformer(config).init)
        params = jax.device_get(init(jax.random.key(0), token, token)["params"])
        rng = np.random.default_rng(0)
        words = [len(re.findall(r"\w+|[^\w\s]", line)) for line in lines]
        sources = [rng.integers(4, config.vocab_size, n).tolist() for n in words]
        length = flags.output_length
    else:
        trained = TrainedModel.load(flags.model)
        config, params = dataclasses.replace(trained.config, **float32), trained.params
        sources, length = trained.vocabularies.source.encode_batch(lines), 0
    return Job(params, config, sources, flags.beam_size, 0.6, length, flags.threads)


def _run_ours(job: Any, *, repeats: int, profile: bool) -> list[Any]:
    import jax

    from benchmarks.peers import Run
    from transformer_jax import inference, plans
    from transformer_jax.config import MeshConfig
    from transformer_jax.models import Transformer
    from transformer_jax.sharding import make_mesh, replicated, to_global

    mesh = make_mesh(MeshConfig())
    params = to_global(job.params, replicated(mesh))
    searcher = inference.Searcher([Transformer(job.config)], [params], mesh)
    jobs = [plans.Job(source) for source in job.sources]
    options = DecodingConfig(beam_size=job.beam_size, length_penalty=job.length_penalty)
    if job.output_length:
        options = dataclasses.replace(
            options,
            max_length_factor=0.0,
            max_extra_length=job.output_length,
            min_length=job.output_length - 1,
        )
    for _ in searcher.search(jobs, options):
        pass  # compiles
    seconds, outputs = float("inf"), []
    for _ in range(repeats):
        start = time.perf_counter()
        found = sorted(searcher.search(jobs, options))
        seconds = min(seconds, time.perf_counter() - start)
        outputs = [result.tokens[0] for _, result in found]
    if profile:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                start = time.perf_counter()
                list(searcher.search(jobs, options))
                wall = time.perf_counter() - start
            plan = searcher.plan(options, 32)
            lowered = jax.jit(plan.advance).lower(*searcher.advance_arguments(plan))
            _print_parts(folder, lowered.compile().as_text() or "", wall * mesh.size)
    name = f"ours, {mesh.size} CPU devices"
    return [Run(name, seconds, sum(map(len, outputs)), outputs)]


def _print_parts(folder: str, program: str, wall: float) -> None:
    """Prints the share of each part of a step in the devices' time."""
    parts = {}
    for line in program.splitlines():
        name = re.match(r"\s*(?:ROOT )?%([\w.\-]+) = ", line)
        source = re.search(r'op_name="([^"]*)"', line)
        if name and source and " while(" not in line and " conditional(" not in line:
            found = (p for p, known in _PARTS.items() if re.search(known, source[1]))
            parts[name[1]] = next(found, "other operations")
    (path,) = Path(folder).rglob("*.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    spent: collections.defaultdict[str, float] = collections.defaultdict(float)
    for event in events:
        if event.get("ph") == "X" and event["name"] in parts:
            spent[parts[event["name"]]] += event["dur"] * 1e-6
    spent["encoder, refilling, host, waiting"] = max(wall - sum(spent.values()), 0.0)
    for part, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{part:36} {100 * seconds / wall:5.1f}%", file=sys.stderr)


if __name__ == "__main__":
    if any(argument.startswith("--report=ours") for argument in sys.argv):
        prepare_to_translate()
    run(main)
