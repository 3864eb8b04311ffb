"""Programs compiled for chips that are not here: reports, errors, portability."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax import export

from transformer_jax import __main__ as package_main
from transformer_jax import compilation, hlo
from transformer_jax.compilation import CHIPS, ProgramReport, Topology
from transformer_jax.config import (
    DataConfig,
    DecodingConfig,
    ExperimentConfig,
    MeshConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer_jax.errors import UserError
from transformer_jax.models import num_parameters
from transformer_jax.sharding import make_mesh

ROOT = Path(__file__).parent.parent
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason='needs the compiler for TPUs: pip install "jax[tpu]"',
)
CONFIG = ExperimentConfig(
    model=TransformerConfig(
        vocab_size=1024,
        num_layers=1,
        d_model=128,
        d_ff=256,
        num_heads=2,
    ),
    data=DataConfig(max_length=64, row_length=64),
    training=TrainingConfig(batch_tokens=1000),
    decoding=DecodingConfig(batch_tokens=512, max_extra_length=5),
)
STATE_BYTES = 3 * 4 * num_parameters(CONFIG.model) + 4 * 4  # four counters
Reports = tuple[ProgramReport, ProgramReport]


def compile_for(topology: str, **mesh: int) -> Reports:
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(**mesh))
    return compilation.compile_programs(config, Topology.parse(topology))


@pytest.fixture(scope="module")
def data_parallel() -> Reports:
    return compile_for("v5e:2x4")


@pytest.mark.parametrize("name", CHIPS)
def test_the_example_of_each_chip_is_a_topology_of_it(name: str):
    chip = CHIPS[name]
    assert Topology.parse(chip.example).chip is chip
    assert chip.example.startswith(f"{name}:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5x:2x4", "no chip 'v5x': did you mean v5"),
        ("", "no chip ''.*expected one of v5e"),
        ("v5e", "topology v5e: expected v5e:NxN, such as v5e:2x4"),
        ("v5e:2x2x1", "expected v5e:NxN"),
        ("v5p:2x2", "expected v5p:NxNxN, such as v5p:2x2x1"),
        ("v6e:0x4", "expected v6e:NxN"),
        ("h200:2x4", "expected h200:N, such as h200:8"),
    ],
)
def test_a_bad_topology_is_named_with_what_was_expected(text: str, message: str):
    with pytest.raises(UserError, match=message):
        Topology.parse(text)


@pytest.mark.parametrize(("text", "extra"), [("v5e:2x4", "tpu"), ("h200:8", "cuda13")])
def test_a_missing_compiler_is_named_with_the_command_that_installs_it(
    text: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compilation, "_is_installed", lambda module: False)
    install = rf'pip install "jax\[{extra}\]=={jax.__version__}"'
    with pytest.raises(UserError, match=install):
        Topology.parse(text).devices()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("program", [compilation._train_step, compilation._beam_search])
def test_the_programs_export_for_other_platforms_from_here(platform: str, program):
    function, arguments = program(CONFIG, make_mesh(CONFIG.mesh))
    exported = export.export(function, platforms=[platform])(*arguments)
    assert exported.platforms == (platform,)
    assert exported.nr_devices == 8


@needs_libtpu
def test_a_topology_that_the_compiler_does_not_know_is_a_users_mistake():
    with pytest.raises(UserError, match=r"topology v5e:3x5: .*such as v5e:2x4"):
        Topology.parse("v5e:3x5").devices()


@needs_libtpu
def test_the_step_multiplies_what_the_model_does(data_parallel: Reports):
    step, _ = data_parallel
    assert step.model_flops is not None
    assert step.program_flops == pytest.approx(step.model_flops, rel=0.02)


@needs_libtpu
def test_the_whole_state_is_donated(data_parallel: Reports):
    step, _ = data_parallel
    # Small arrays are padded.
    assert STATE_BYTES <= step.aliased_bytes < 1.05 * STATE_BYTES
    assert step.output_bytes - step.aliased_bytes < 10_000  # the metrics


@needs_libtpu
def test_data_parallelism_sends_little_more_than_the_gradients(data_parallel: Reports):
    step, _ = data_parallel
    least = 2 * 4 * num_parameters(CONFIG.model) * 7 / 8
    assert step.least_sent_bytes == least
    assert least <= step.sent_bytes < 1.3 * least
    assert {x.kind for x in step.collectives} == {"all-reduce"}


@pytest.mark.slow
@needs_libtpu
def test_rematerialisation_trades_products_for_memory():
    model = dataclasses.replace(CONFIG.model, num_layers=4)
    mesh = make_mesh(CONFIG.mesh, Topology.parse("v5e:2x2").devices())
    flops, temporaries = [], []
    for remat in (False, True):
        config = dataclasses.replace(
            CONFIG,
            model=dataclasses.replace(model, remat=remat),
            training=TrainingConfig(batch_tokens=64_000),
        )
        function, arguments = compilation._train_step(config, mesh)
        compiled = function.lower(*arguments).compile()
        flops.append(hlo.product_flops(hlo.parse(compiled.as_text())))
        temporaries.append(compiled.memory_analysis().temp_size_in_bytes)
    assert temporaries[1] < 0.7 * temporaries[0]
    assert 1.1 < flops[1] / flops[0] < 1.34


@needs_libtpu
def test_the_search_runs_to_its_last_step(data_parallel: Reports):
    _, search = data_parallel
    assert search.model_flops is None
    # The logits of 4 beams and 8 rows a chip, 69 times, are part of its products.
    assert search.program_flops > 69 * 8 * 2 * 4 * 128 * 1024
    assert search.collectives == []  # no chip waits for another


@needs_libtpu
def test_fsdp_splits_the_state_and_the_report_names_its_axis():
    step, _ = compile_for("v5e:2x2", data=1, fsdp=4)
    # A quarter and padding: 32 of d_model's 128 do not fill a tile of the chip.
    assert step.argument_bytes < STATE_BYTES / 2
    assert step.least_sent_bytes == 2 * 4 * num_parameters(CONFIG.model) * 3 / 4
    text = step.lines()
    assert "mesh data=1, fsdp=4, tensor=1" in text
    assert "all-gather along fsdp: " in text
    # Parameters travel, rounded, and gradients; activations would be many times more.
    assert step.least_sent_bytes is not None
    assert step.sent_bytes < 1.8 * step.least_sent_bytes
    assert step.program_flops == pytest.approx(step.model_flops, rel=0.02)
    assert "program / model" in text


def test_the_command_compiles_for_each_topology(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[str, str, int]] = []

    def record(config: ExperimentConfig, topology: Topology) -> tuple[()]:
        seen.append((topology.name, config.model.dtype, config.model.d_model))
        return ()

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(compilation, "compile_programs", record)
    package_main.main(
        [
            "compile",
            f"--config={ROOT / 'configs/big.py'}",
            "--topology=v5e:2x4",
            "--topology=h200:8",
            "--config.model.dtype=float32",
        ]
    )
    assert seen == [("v5e:2x4", "float32", 1024), ("h200:8", "float32", 1024)]


def test_a_mistake_is_one_line_and_status_2():
    command = [sys.executable, "-m", "transformer_jax", "compile"]
    result = subprocess.run(
        [*command, "--config=configs/base.py", "--topology=v5f:2x4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: topology v5f:2x4: no chip 'v5f'")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@needs_libtpu
def test_tensor_parallelism_exchanges_along_its_own_axis():
    step, _ = compile_for("v5e:2x4", data=4, tensor=2)
    # Every activation that is summed stays among the two chips that split it.
    large = [x for x in step.collectives if x.num_bytes >= 8 * 64 * 2]
    assert {step._axes(x) for x in large} == {"data", "tensor"}
    assert step.program_flops == pytest.approx(step.model_flops, rel=0.02)


def test_a_report_says_what_fits_and_what_bounds_it():
    report = ProgramReport(
        title="step",
        chip=CHIPS["v5e"],
        mesh={"data": 2, "fsdp": 2, "tensor": 2},
        program_flops=197e12,
        model_flops=98.5e12,
        argument_bytes=10**10,
        output_bytes=10**10,
        aliased_bytes=10**10,
        temporary_bytes=10**10,
        code_bytes=0,
        traffic_bytes=2 * 819e9,
        collectives=[],
        least_sent_bytes=None,
        buffers=[],
        compile_time_s=3.0,
    )
    rows = [" ".join(line.split()) for line in report.lines().split("\n")]
    assert "program / model 2.000" in rows
    assert "memory in all 20,000.0 MB, 116%: DOES NOT FIT" in rows
    assert "estimate: matrix products 1,000.00 ms" in rows
    assert "estimate: memory 2,000.00 ms" in rows
    assert "estimate: bound by memory" in rows
