"""The peers of a decoding benchmark: CTranslate2, Marian and Hugging Face generate.

Each translates the sentences of a `Job` with the weights of our model, on CPU in
float32. They are optional extras, imported where they are needed:

pip install torch transformers ctranslate2 pymarian

Models are built from the parameters each time, outside the time that is measured;
each system is warmed up before. Where a system has settings that matter, the fastest is
the one that counts.
"""

import importlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import TransformerConfig
from transformer_jax.data.tokenizer import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from transformer_jax.errors import UserError
from transformer_jax.models.layers import LayerNorm, sinusoidal_positions

Outputs = list[list[int]]

_MAX_EXTRA_LENGTH = 50  # tokens of an output beyond those of its source
_WARM_UP_SENTENCES = 32
_NEVER = -1e6  # what Marian adds to the logit of the end token, to forbid it


@dataclass(frozen=True)
class Job:
    """What to translate, with which weights and which search."""

    params: Any  # as `Transformer.init` makes them, numpy float32
    config: TransformerConfig
    sources: list[list[int]]  # token ids, without the end token
    beam_size: int
    length_penalty: float  # alpha; each system has its own formula, see there
    output_length: int  # of every output; 0 = as the model has it, source + 50 at most
    num_threads: int  # of the CPU


@dataclass(frozen=True)
class Run:
    """What a system made of a job."""

    name: str  # system and setting
    seconds: float
    num_tokens: int  # of the best hypotheses, without end tokens
    outputs: Outputs  # token ids, without start and end


def run_ctranslate2(job: Job) -> list[Run]:
    """CTranslate2 with its threads side by side and together, the best batch of each.

    The model is exactly ours: positions are given as a matrix and there are no biases
    in attention. Its hypotheses are ordered by log_prob / n^alpha, where n leaves out
    the end token, not by our log_prob / ((5 + n) / 6)^alpha; a sentence is done as soon
    as `beam_size` hypotheses have finished, or with alpha = 0 the best candidate; and
    only the best `beam_size` candidates of a step may finish, where ours may be among
    twice as many. The longest source sets the limit of all outputs.
    """
    ctranslate2 = _import("ctranslate2", "ctranslate2")
    sources = [[f"w{i}" for i in source] for source in job.sources]
    limit = _output_limit(job.sources, job.output_length)
    threads = {(job.num_threads, 1), (1, job.num_threads)}
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        _write_ctranslate2_model(ctranslate2, job, folder)
        for inter, intra in sorted(threads, reverse=True):
            translator = ctranslate2.Translator(
                folder,
                device="cpu",
                compute_type="float32",
                inter_threads=inter,
                intra_threads=intra,
            )

            def translate(
                sources: list[list[str]],
                max_batch_size: int,
                translator: Any = translator,
            ) -> Outputs:
                results = translator.translate_batch(
                    sources,
                    beam_size=job.beam_size,
                    length_penalty=job.length_penalty,
                    min_decoding_length=job.output_length,
                    max_decoding_length=limit,
                    max_input_length=0,
                    max_batch_size=max_batch_size,
                    batch_type="tokens",
                )
                return [_ids(result.hypotheses[0]) for result in results]

            translate(sources[:_WARM_UP_SENTENCES], 128)  # batches for every thread
            tried = []
            for size in (256, 512, 1024, 2048, 4096):
                name = f"CTranslate2 inter={inter} intra={intra} batch={size} tokens"
                tried.append(_timed(name, lambda size=size: translate(sources, size)))
            runs.append(_fastest(tried))
    return runs


def run_marian(job: Job) -> list[Run]:
    """Marian, one thread of work a CPU, the best of a few mini-batches.

    The weights are ours with d_model permuted, as Marian's sinusoidal positions have
    all sines first. What it cannot be told: the period of its wave number i of n is
    2 pi 10000^(i/(n-1)), where ours and the paper's is 2 pi 10000^(i/n). So some
    outputs differ; the work is the same. Its hypotheses are ordered by
    log_prob / n^alpha, n with the end token, and a sentence is done when `beam_size` of
    them have finished, which each makes the beam narrower.

    Outputs have a forced length by a bias that forbids the end token, and a limit. The
    limit is a factor of the source's length, so there is a call for each such length.
    With outputs of their own length, the limit is Marian's default of 3 times the
    source.
    """
    pymarian = _import("pymarian", "pymarian")
    forced = job.output_length > 0
    lines = [" ".join(f"w{i}" for i in source) for source in job.sources]
    by_length: dict[int, list[int]] = {}
    for number, source in enumerate(job.sources):
        by_length.setdefault(len(source) if forced else 0, []).append(number)
    tried = []
    with tempfile.TemporaryDirectory() as folder:
        model, vocabulary = _write_marian_model(job, Path(folder))
        for size in (8, 16, 32, 64):
            translator = pymarian.Translator(
                f"--models {model} --vocabs {vocabulary} {vocabulary} "
                f"--beam-size {job.beam_size} --normalize {job.length_penalty} "
                f"--cpu-threads {job.num_threads} --mini-batch {size} "
                "--maxi-batch 1000 --maxi-batch-sort src --max-length 1000 "
                "--allow-unk --workspace 256 --quiet-translation --log-level error"
            )

            def translate(
                numbers_by_length: dict[int, list[int]], translator: Any = translator
            ) -> Outputs:
                outputs: dict[int, list[int]] = {}
                for length, numbers in numbers_by_length.items():
                    options: dict[str, Any] = {}
                    if forced:  # it stops where factor * (length + 1) is reached
                        factor = (job.output_length - 0.5) / (length + 1)
                        options = {"max-length-factor": factor}
                    found = translator.translate([lines[i] for i in numbers], **options)
                    words = [line.split() for line in found]
                    outputs.update(zip(numbers, map(_ids, words), strict=True))
                return [outputs[i] for i in sorted(outputs)]

            name = f"Marian mini-batch={size} x {job.num_threads} threads"
            name += ", length by limit" if forced else ""
            length, numbers = next(iter(by_length.items()))
            translate({length: numbers[:_WARM_UP_SENTENCES]})
            tried.append(_timed(name, lambda run=translate: run(by_length)))
    return [_fastest(tried)]


def run_hugging_face(job: Job, most: int = 64) -> list[Run]:
    """`generate` of Hugging Face transformers, in batches of 32 of like length.

    The model is a `MarianMTModel` and exactly ours: its biases in attention are zero
    and its matrix of positions is replaced. Hypotheses are ordered by
    log_prob / n^alpha, and the search goes on until none can be better
    (`early_stopping=False`).

    Args:
      job: what to do.
      most: how many of its sentences are translated, the first ones.
    """
    torch = _import("torch", "torch")
    transformers = _import("transformers", "transformers")
    torch.set_num_threads(job.num_threads)
    model = _hugging_face_model(torch, transformers, job)
    sources = job.sources[:most]

    def translate(sources: list[list[int]]) -> Outputs:
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        outputs: Outputs = [[] for _ in sources]
        for first in range(0, len(order), 32):
            numbers = order[first : first + 32]
            found = _generate(torch, model, job, [sources[i] for i in numbers])
            for number, output in zip(numbers, found, strict=True):
                outputs[number] = output
        return outputs

    translate(sources[:_WARM_UP_SENTENCES])
    return [_timed("Hugging Face generate batch=32", lambda: translate(sources))]


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"cannot import {module} ({error}): pip install {package}"
        ) from error


def _timed(name: str, translate: Callable[[], Outputs]) -> Run:
    start = time.perf_counter()
    outputs = translate()
    seconds = time.perf_counter() - start
    return Run(name, seconds, sum(map(len, outputs)), outputs)


def _fastest(runs: Sequence[Run]) -> Run:
    return min(runs, key=lambda run: run.seconds)


def _ids(words: Sequence[str]) -> list[int]:
    """Ids of words such as "w12", and of Marian's unknown word."""
    return [UNKNOWN_ID if word == "<unk>" else int(word[1:]) for word in words]


def _output_limit(sources: list[list[int]], output_length: int) -> int:
    return output_length or max(map(len, sources)) + _MAX_EXTRA_LENGTH


def _require_plain(config: TransformerConfig) -> None:
    """All peers have the paper's model; not all have what departs from it."""
    width = config.d_model // config.num_heads
    if (
        config.norm != "post"
        or config.positions != "sinusoidal"
        or not config.share_embeddings
        or (config.d_k, config.d_v) != (width, width)
    ):
        raise UserError(
            "the peers are given the paper's model only: norm=post, "
            "positions=sinusoidal, share_embeddings=True, d_k = d_v = d_model / "
            f"num_heads; got {config}"
        )


def _projections(attention: Any) -> dict[str, np.ndarray]:
    """The matrices "q", "k", "v" and "o", [in, out], heads side by side."""
    d_model = len(attention["w_query"])
    return {
        "q": attention["w_query"].reshape(d_model, -1),
        "k": attention["w_key"].reshape(d_model, -1),
        "v": attention["w_value"].reshape(d_model, -1),
        "o": attention["w_output"].reshape(-1, d_model),
    }


def _write_ctranslate2_model(ctranslate2: Any, job: Job, folder: str) -> None:
    _require_plain(job.config)
    params, config = job.params, job.config
    spec = ctranslate2.specs.TransformerSpec.from_config(
        config.num_layers,
        config.num_heads,
        pre_norm=False,
        activation=ctranslate2.specs.Activation.RELU,
    )
    longest = max(max(map(len, job.sources)) + 1, _output_limit(job.sources, 0))
    positions = sinusoidal_positions(max(longest, job.output_length), config.d_model)
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = positions
    spec.encoder.embeddings[0].weight = params["embedding"]
    spec.decoder.embeddings.weight = params["embedding"]
    spec.decoder.projection.weight = params["embedding"]

    def fill_attention(layer: Any, ours: Any, name: str, *, parts: list[str]) -> None:
        matrices = _projections(ours[name])
        for linear, part in zip(layer.linear, parts, strict=True):
            joined = np.concatenate([matrices[letter] for letter in part], axis=1)
            linear.weight = np.ascontiguousarray(joined.T)
        fill_norm(layer.layer_norm, ours[f"{name}_residual"]["layer_norm"])

    def fill_norm(layer: Any, ours: Any) -> None:
        layer.gamma, layer.beta = ours["gain"], ours["bias"]

    def fill_layer(layer: Any, ours: Any) -> None:
        fill_attention(layer.self_attention, ours, "self_attention", parts=["qkv", "o"])
        if "cross_attention" in ours:
            parts = ["q", "kv", "o"]
            fill_attention(layer.attention, ours, "cross_attention", parts=parts)
        for linear, number in ((layer.ffn.linear_0, 1), (layer.ffn.linear_1, 2)):
            weight = ours["feed_forward"][f"w{number}"]
            linear.weight = np.ascontiguousarray(weight.T)
            linear.bias = ours["feed_forward"][f"b{number}"]
        fill_norm(layer.ffn.layer_norm, ours["feed_forward_residual"]["layer_norm"])

    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for i, layer in enumerate(stack.layer):
            fill_layer(layer, params[f"{name}_{i}"])
    words = [f"w{i}" for i in range(config.vocab_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = words[START_ID]
    spec.config.decoder_start_token = words[START_ID]
    spec.config.eos_token = words[END_ID]
    spec.config.unk_token = words[UNKNOWN_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = LayerNorm.epsilon
    spec.validate()
    spec.optimize()
    spec.save(folder)


def _write_marian_model(job: Job, folder: Path) -> tuple[Path, Path]:
    """The paths of the model and of its vocabulary."""
    _require_plain(job.config)
    config = job.config
    weights: dict[str, Any] = {
        name: np.ascontiguousarray(weight) for name, weight in _marian_weights(job)
    }
    settings = {
        "type": "transformer",
        "version": "v1.12.0",
        "dim-emb": config.d_model,
        "dim-vocabs": [config.vocab_size, config.vocab_size],
        "enc-depth": config.num_layers,
        "dec-depth": config.num_layers,
        "transformer-heads": config.num_heads,
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": '""',
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
    }
    text = "".join(f"{key}: {value}\n" for key, value in settings.items()) + "\0"
    weights["special:model.yml"] = np.frombuffer(text.encode(), np.int8)
    np.savez(folder / "model.npz", **weights)
    names = {END_ID: "</s>", UNKNOWN_ID: "<unk>"}
    words = [names.get(i, f"w{i}") for i in range(config.vocab_size)]
    lines = [f'"{word}": {i}\n' for i, word in enumerate(words)]
    (folder / "vocabulary.yml").write_text("".join(lines), encoding="utf-8")
    return folder / "model.npz", folder / "vocabulary.yml"


def _marian_weights(job: Job) -> Iterator[tuple[str, np.ndarray]]:
    """The weights by Marian's names, [in, out], vectors as rows, sines first.

    Marian's decoder starts with zeros, not with an embedding. So the start token's is
    taken off those of all target tokens, and the biases of the decoder's first
    attention put it back: on queries, keys and values times their matrix, on the output
    as it is, for the residual sum.
    """
    d_model = job.config.d_model
    order = np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])
    embedding = job.params["embedding"][:, order]
    start = embedding[START_ID]
    yield "encoder_Wemb", embedding
    yield "decoder_Wemb", embedding - start
    yield "decoder_ff_logit_out_W", embedding.T
    bias = np.zeros((1, job.config.vocab_size), np.float32)
    bias[0, END_ID] = _NEVER if job.output_length else 0.0
    yield "decoder_ff_logit_out_b", bias

    def attention(
        prefix: str, ours: Any, name: str, lacks: np.ndarray | float = 0.0
    ) -> Iterator[tuple[str, np.ndarray]]:
        lacked = np.broadcast_to(lacks, (1, d_model)).astype(np.float32)
        for letter, matrix in _projections(ours[name]).items():
            is_output = letter == "o"
            permuted = matrix[:, order] if is_output else matrix[order]
            yield f"{prefix}_W{letter}", permuted
            yield f"{prefix}_b{letter}", lacked if is_output else lacked @ permuted
        yield from norm(f"{prefix}_Wo", ours[f"{name}_residual"])

    def norm(prefix: str, residual: Any) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{prefix}_ln_scale", residual["layer_norm"]["gain"][None, order]
        yield f"{prefix}_ln_bias", residual["layer_norm"]["bias"][None, order]

    for stack in ("encoder", "decoder"):
        for i in range(job.config.num_layers):
            ours, prefix = job.params[f"{stack}_{i}"], f"{stack}_l{i + 1}"
            is_first_target = stack == "decoder" and i == 0
            lacks = start * d_model**0.5 if is_first_target else 0.0
            yield from attention(f"{prefix}_self", ours, "self_attention", lacks)
            if stack == "decoder":
                yield from attention(f"{prefix}_context", ours, "cross_attention")
            feed_forward = ours["feed_forward"]
            yield f"{prefix}_ffn_W1", feed_forward["w1"][order]
            yield f"{prefix}_ffn_b1", feed_forward["b1"][None]
            yield f"{prefix}_ffn_W2", feed_forward["w2"][:, order]
            yield f"{prefix}_ffn_b2", feed_forward["b2"][None, order]
            yield from norm(f"{prefix}_ffn_ffn", ours["feed_forward_residual"])


def _hugging_face_model(torch: Any, transformers: Any, job: Job) -> Any:
    _require_plain(job.config)
    ours, limit = job.config, _output_limit(job.sources, job.output_length)
    num_positions = max(limit, *(len(source) + 1 for source in job.sources)) + 1
    config = transformers.MarianConfig(
        vocab_size=ours.vocab_size,
        d_model=ours.d_model,
        encoder_layers=ours.num_layers,
        decoder_layers=ours.num_layers,
        encoder_ffn_dim=ours.d_ff,
        decoder_ffn_dim=ours.d_ff,
        encoder_attention_heads=ours.num_heads,
        decoder_attention_heads=ours.num_heads,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=num_positions,
        pad_token_id=PAD_ID,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
        decoder_start_token_id=START_ID,
        forced_eos_token_id=None,
    )
    model = transformers.MarianMTModel(config).eval()
    weights = model.state_dict()
    with torch.no_grad():
        for name, value in _hugging_face_weights(job, num_positions):
            weights.pop(name).copy_(torch.from_numpy(np.array(value)))
        tied = {"model.encoder.embed_tokens.weight", "lm_head.weight"}
        tied.add("model.decoder.embed_tokens.weight")
        for name in weights.keys() - tied:  # the biases that we do not have
            if not name.endswith("bias"):
                raise RuntimeError(f"no weights for {name} of MarianMTModel")
            weights[name].zero_()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = LayerNorm.epsilon
    return model


def _hugging_face_weights(
    job: Job, num_positions: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Our weights by the names of a MarianMTModel, matrices [out, in]."""
    yield "model.shared.weight", job.params["embedding"]
    attentions = {
        "self_attention": ("self_attn", "self_attn_layer_norm"),
        "cross_attention": ("encoder_attn", "encoder_attn_layer_norm"),
    }
    letters = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}

    def norm(prefix: str, residual: Any) -> Iterator[Any]:
        yield f"{prefix}.weight", residual["layer_norm"]["gain"]
        yield f"{prefix}.bias", residual["layer_norm"]["bias"]

    for stack in ("encoder", "decoder"):
        positions = sinusoidal_positions(num_positions, job.config.d_model)
        yield f"model.{stack}.embed_positions.weight", positions
        for i in range(job.config.num_layers):
            ours, prefix = job.params[f"{stack}_{i}"], f"model.{stack}.layers.{i}"
            for name in attentions.keys() & ours.keys():
                attention, attention_norm = attentions[name]
                for letter, matrix in _projections(ours[name]).items():
                    yield f"{prefix}.{attention}.{letters[letter]}.weight", matrix.T
                yield from norm(f"{prefix}.{attention_norm}", ours[f"{name}_residual"])
            for number in (1, 2):
                feed_forward = ours["feed_forward"]
                yield f"{prefix}.fc{number}.weight", feed_forward[f"w{number}"].T
                yield f"{prefix}.fc{number}.bias", feed_forward[f"b{number}"]
            yield from norm(f"{prefix}.final_layer_norm", ours["feed_forward_residual"])


def _generate(torch: Any, model: Any, job: Job, sources: list[list[int]]) -> Outputs:
    """The outputs of one batch."""
    length = max(map(len, sources)) + 1
    ids = np.full((len(sources), length), PAD_ID)
    for row, source in enumerate(sources):
        ids[row, : len(source) + 1] = [*source, END_ID]
    is_real = np.arange(length)[None] <= np.array([len(s) for s in sources])[:, None]
    search: dict[str, Any] = {"num_beams": job.beam_size}
    if job.beam_size > 1:
        search.update(length_penalty=job.length_penalty, early_stopping=False)
    with torch.inference_mode():
        found = model.generate(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(is_real.astype(np.int64)),
            min_new_tokens=job.output_length or None,
            max_new_tokens=_output_limit(sources, job.output_length),
            do_sample=False,
            **search,
        )
    outputs = []
    for row in found[:, 1:].tolist():  # without the start token
        row = row[: job.output_length] if job.output_length else row
        outputs.append(row[: row.index(END_ID)] if END_ID in row else row)
    return outputs
