"""Translation and evaluation shared by devices: the same output as on one."""

import collections
import dataclasses
import itertools
import random
import re
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import (
    DataConfig,
    DecodingConfig,
    ExperimentConfig,
    MeshConfig,
    TransformerConfig,
)
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import (
    END_ID,
    START_ID,
    Vocabularies,
    train_tokenizer,
)
from transformer_jax.errors import UserError
from transformer_jax.evaluation import LossEvaluator, LossReport, evaluate
from transformer_jax.models import Transformer
from transformer_jax.sharding import make_mesh
from transformer_jax.trained_model import TrainedModel
from transformer_jax.translation import Attention, Hypothesis, Problems, Translator

PAIRS = phrase_pairs("train", num_pairs=200, seed=0)
MESHES = [MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)]


def words_of(tokenizer) -> list[str]:
    """Two words that are one piece each."""
    words = [piece[1:] for piece in tokenizer.pieces(range(400)) if len(piece) > 2]
    return [word for word in words if len(tokenizer.encode(word)) == 1][:2]


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    """A random model, of which some hypotheses end and others meet the limit."""
    tokenizer = train_tokenizer(
        [side for pair in PAIRS for side in pair], vocab_size=400
    )
    model = Transformer(
        TransformerConfig(
            vocab_size=400,
            num_layers=1,
            d_model=16,
            d_ff=24,
            num_heads=2,
            share_embeddings=False,
        )
    )
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(3), tokens, tokens)["params"]
    generator = np.random.default_rng(3)
    params = jax.tree.map(
        lambda leaf: generator.normal(0, 0.5, leaf.shape).astype(np.float32), shapes
    )
    last = params["decoder_0"]["feed_forward_residual"]["layer_norm"]
    last["gain"][:] = 1
    last["bias"] *= 0.4
    params["output_embedding"][END_ID] = 2.6 * last["bias"] / np.sum(last["bias"] ** 2)
    # Words where it would produce bytes only.
    output = params["output_embedding"]
    for word, byte in zip(words_of(tokenizer), b"BM", strict=True):
        (piece,) = tokenizer.encode(word)
        output[piece] = 1.05 * output[tokenizer._processor.piece_to_id(f"<0x{byte:X}>")]
    return TrainedModel(
        config=model.config,
        params=params,
        vocabularies=Vocabularies(tokenizer, tokenizer),
        decoding=DecodingConfig(
            batch_tokens=256, max_extra_length=9, beam_size=5, n_best=4
        ),
        source_language="en",
        target_language="de",
        max_length=32,
        steps=(1,),
    )


@pytest.fixture(scope="module")
def on_one_device(trained) -> Translator:
    return Translator.of(trained, mesh=make_mesh(MeshConfig(), jax.devices()[:1]))


@pytest.mark.parametrize("mesh", MESHES, ids=["data 8", "data 2 fsdp 2 tensor 2"])
def test_a_translation_does_not_depend_on_the_devices(mesh, trained, on_one_device):
    sentences = [source for source, _ in PAIRS[:37]]
    one = on_one_device
    shared = Translator.of(trained, mesh=make_mesh(mesh))
    expected = one.translate(sentences)
    assert len(set(expected)) > 10
    assert shared.translate(sentences) == expected
    assert shared.translate(sentences[::-1]) == expected[::-1]


def test_a_loss_does_not_depend_on_the_devices(trained, on_one_device):
    model = on_one_device.searcher.models[0]
    examples = TokenStore.of(trained.vocabularies.encode(PAIRS), 64)
    reports = [
        LossEvaluator(model, examples, label_smoothing=0.1, mesh=mesh)(trained.params)
        for mesh in (on_one_device.searcher.mesh, *map(make_mesh, MESHES))
    ]
    for report in reports[1:]:
        assert report.num_tokens == reports[0].num_tokens > 1000
        assert dataclasses.astuple(report) == pytest.approx(
            dataclasses.astuple(reports[0]), rel=1e-6
        )


def test_perplexity_is_per_piece_and_per_word(on_one_device):
    measured = PAIRS[:23]
    left_out = [("", "leer"), ("lang", "x " * 70)]
    experiment = ExperimentConfig(
        data=DataConfig(max_length=48, row_length=48),
        model=TransformerConfig(max_length=64),
    )
    _, report, hypotheses = evaluate(on_one_device, measured + left_out, experiment)
    assert len(hypotheses) == 25
    scores = on_one_device.score(measured)
    nats = -sum(score.log_prob for score in scores)
    pieces = sum(len(score.token_log_probs) for score in scores)
    words = sum(len(target.split(" ")) + 1 for _, target in measured)
    assert (report.num_tokens, report.num_words) == (pieces, words)
    assert words < pieces
    assert report.perplexity == pytest.approx(np.exp(nats / pieces), rel=1e-5)
    assert report.perplexity_per_word == pytest.approx(np.exp(nats / words), rel=1e-5)


def test_perplexity_of_a_broken_model_is_finite_and_of_no_words_unknown():
    broken = LossReport(1e4, 1e4, num_tokens=7, num_words=5)
    assert broken.perplexity == broken.perplexity_per_word == np.exp(700)
    assert LossReport(1.0, 1.0, num_tokens=7).perplexity_per_word is None


def random_sentences() -> list[str]:
    """Words in random order: repeated, blank, of a character, and too long ones too."""
    generator = random.Random(7)
    words = [word for source, _ in PAIRS for word in source.split()]
    sentences = [
        " ".join(generator.choices(words, k=generator.randint(1, 14)))
        for _ in range(170)
    ]
    sentences += generator.choices(sentences, k=15)
    sentences += ["", " ", "\t", "\u3000", "", *"aZ7.ü€😀", "x" * 70, "7 " * 50]
    generator.shuffle(sentences)
    return sentences + sentences[: 200 - len(sentences)]


def bits(translations) -> list[tuple]:
    """All of each translation, numbers to the last bit."""
    return [
        (
            t.source,
            t.source_tokens,
            t.num_pieces,
            t.was_cut,
            [
                (h.text, h.tokens, h.stop, h.score.hex(), h.log_prob.hex())
                for h in t.hypotheses
            ],
        )
        for t in translations
    ]


@pytest.fixture(scope="module")
def together(on_one_device):
    return on_one_device.translations(random_sentences())


def pieces_of(text, trained) -> list[int]:
    return trained.vocabularies.source.encode(text.strip())


def target_ids(hypothesis: Hypothesis, trained) -> list[int]:
    processor = trained.vocabularies.target._processor
    return [processor.piece_to_id(piece) for piece in hypothesis.tokens]


def log_softmax(logits) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    highest = logits.max(axis=-1, keepdims=True)
    return (
        logits - highest - np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True))
    )


def applied(trained, model, source: list[int], target: list[int]):
    """Logits and attention of the full model on one pair, without padding or end."""
    ids = [
        jnp.asarray([x], jnp.int32) for x in ([*source, END_ID], [START_ID, *target])
    ]
    segments = [jnp.ones_like(side) for side in ids]
    logits, kept = jax.jit(model.apply, static_argnames="mutable")(
        {"params": trained.params}, *ids, *segments, mutable="intermediates"
    )
    layer = kept["intermediates"]["decoder_0"]["cross_attention"]
    return logits[0], layer["attention_weights"][0][0]


def test_the_random_sentences_are_of_all_kinds(together):
    assert len(together) == 200
    assert len({t.source for t in together}) < 195
    kinds = collections.Counter(t.num_pieces for t in together)
    assert kinds[0] >= 5
    assert kinds[1] > 50
    assert kinds[2] > 10
    stops = collections.Counter(h.stop for t in together for h in t.hypotheses)
    assert min(stops["end"], stops["limit"]) > 50
    assert len({h.text for t in together for h in t.hypotheses}) > 100
    assert all(len(t.hypotheses) == 4 for t in together if t.source.strip())
    assert all(t.hypotheses == () for t in together if not t.source.strip())


def test_a_translation_does_not_depend_on_the_order(together, on_one_device):
    order = random.Random(1).sample(range(200), 200)
    sentences = random_sentences()
    shuffled = on_one_device.translations([sentences[i] for i in order])
    expected = bits(together)
    assert bits(shuffled) == [expected[i] for i in order]


def test_a_translation_does_not_depend_on_the_neighbours(together, on_one_device):
    sentences, chunked, size = random_sentences(), [], 0
    while len(chunked) < len(sentences):
        size = size % 17 + 1
        chunked += on_one_device.translations(
            sentences[len(chunked) : len(chunked) + size]
        )
    assert bits(chunked) == bits(together)


def test_a_translation_is_the_same_to_the_last_bit_on_two_devices(together, trained):
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    shared = Translator.of(trained, mesh=mesh)
    assert bits(shared.translations(random_sentences())) == bits(together)


def test_threads_that_share_a_translator_do_not_meet(together, on_one_device):
    sentences = random_sentences()
    parts = [slice(i, i + 25) for i in range(0, 200, 25)]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(
            lambda part: on_one_device.translations(sentences[part]), parts
        )
        assert [bits(part) for part in found] == [bits(together[p]) for p in parts]


def test_progress_adds_up_to_the_number_of_sentences(on_one_device):
    counts: list[int] = []
    sentences = ["", *random_sentences()[:30], "7 " * 50]
    on_one_device.translations(sentences, progress=counts.append)
    assert sum(counts) == len(sentences)
    assert len(counts) > 10


@pytest.fixture(scope="module")
def detailed(on_one_device):
    """Sentences of one and of two pieces, with all details."""
    sentences = ["7 o'clock", "a", "7 " * 40, ""]
    return on_one_device.translations(
        sentences, token_log_probs=True, attention=Attention(layer=-1, heads=(1,))
    )


def test_details_change_nothing_else(detailed, on_one_device):
    plain = on_one_device.translations([t.source for t in detailed])
    assert bits(detailed) == bits(plain)
    for hypothesis in (h for t in plain for h in t.hypotheses):
        assert hypothesis.token_log_probs is None
        assert hypothesis.attention is None


def test_a_search_gives_a_hypothesis_the_score_of_its_tokens(detailed):
    assert {h.stop for t in detailed for h in t.hypotheses} == {"end", "limit"}
    for translation in detailed:
        for hypothesis in translation.hypotheses:
            assert len(hypothesis.token_log_probs) == len(hypothesis.tokens)
            assert sum(hypothesis.token_log_probs) == pytest.approx(
                hypothesis.log_prob, rel=1e-5, abs=1e-5
            )


def test_a_score_is_the_log_probability_over_the_length_penalty(together):
    for translation in together:
        scores = [h.score for h in translation.hypotheses]
        if translation.num_pieces == 1:
            # Cut-off ones come after those that ended, whatever their score.
            ended = [h.score for h in translation.hypotheses if h.stop == "end"]
            assert scores[: len(ended)] == sorted(ended, reverse=True)
            for hypothesis in translation.hypotheses:
                penalty = ((5 + len(hypothesis.tokens)) / 6) ** 0.6
                assert hypothesis.score == pytest.approx(
                    hypothesis.log_prob / penalty, rel=1e-6
                )


def test_what_ended_has_the_end_token_once_and_last(together):
    for translation in together:
        if translation.num_pieces == 1:
            for hypothesis in translation.hypotheses:
                ended = hypothesis.stop == "end"
                assert (hypothesis.tokens[-1] == "</s>") == ended
                assert hypothesis.tokens.count("</s>") == ended


def test_attention_is_that_of_the_chosen_heads_of_the_full_model(
    detailed, trained, on_one_device
):
    model = on_one_device.searcher.models[0]
    for translation in detailed[:2]:
        assert translation.num_pieces == 1
        hypothesis = translation.hypotheses[0]
        shape = len(hypothesis.tokens), len(translation.source_tokens)
        assert hypothesis.attention.shape == shape
        ids = target_ids(hypothesis, trained)
        _, weights = applied(
            trained, model, pieces_of(translation.source, trained), ids[:-1]
        )
        np.testing.assert_allclose(
            hypothesis.attention, weights[1], rtol=1e-4, atol=1e-6
        )
        assert np.abs(hypothesis.attention - weights[0]).max() > 1e-3


def test_attention_of_all_heads_is_their_mean_and_each_row_sums_to_one(
    detailed, on_one_device
):
    sentences = [t.source for t in detailed[:2]]
    by_head = [
        on_one_device.translations(sentences, attention=Attention(0, heads))
        for heads in [(0,), ()]
    ]
    for translation, first, mean in zip(detailed[:2], *by_head, strict=True):
        for second, other, average in zip(
            translation.hypotheses, first.hypotheses, mean.hypotheses, strict=True
        ):
            shape = len(second.tokens), len(translation.source_tokens)
            assert second.attention.shape == shape
            np.testing.assert_allclose(second.attention.sum(axis=1), 1, rtol=1e-5)
            expected = (second.attention + other.attention) / 2
            np.testing.assert_allclose(average.attention, expected, atol=1e-6)


def test_attention_of_pieces_stays_within_each(detailed):
    translation = detailed[2]
    assert translation.num_pieces > 1
    end = translation.source_tokens.index("</s>") + 1
    weights = translation.hypotheses[0].attention
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    is_in_first = weights[:, :end].sum(axis=1) > 0.5
    assert 0 < is_in_first.sum() < len(is_in_first)
    assert not weights[is_in_first, end:].any()
    assert not weights[~is_in_first, :end].any()


def test_a_given_translations_score_is_that_of_the_model(trained, on_one_device):
    model = on_one_device.searcher.models[0]
    pairs = [PAIRS[0], ("", "a"), ("b", "")]
    for pair, score in zip(pairs, on_one_device.score(pairs), strict=True):
        source, target = (pieces_of(side, trained) for side in pair)
        logits, _ = applied(trained, model, source, target)
        log_probs = log_softmax(logits)
        wanted = [*target, END_ID]
        expected = log_probs[np.arange(len(wanted)), wanted]
        np.testing.assert_allclose(score.token_log_probs, expected, rtol=1e-5)
        assert score.log_prob == pytest.approx(expected.sum(), rel=1e-5)
        penalty = ((5 + len(wanted)) / 6) ** 0.6
        assert score.score == pytest.approx(expected.sum() / penalty, rel=1e-5)
        assert score.tokens[-1] == "</s>"
        assert len(score.tokens) == len(wanted)


def test_a_score_does_not_depend_on_the_neighbours(on_one_device):
    pairs = [("a", "b"), *PAIRS[:20], PAIRS[0], ("", ""), PAIRS[3][::-1]]
    scores = on_one_device.score(pairs)
    assert scores[1] == scores[21]
    assert on_one_device.score(pairs[::-1]) == scores[::-1]
    for i in (0, 1, 5, 22, 23):
        assert on_one_device.score([pairs[i]]) == [scores[i]]
    assert on_one_device.score([]) == []


@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_with_a_side_too_long_has_no_score(side, on_one_device):
    pair = ["a", "a"]
    pair[side] = "é " * 1024
    counts: list[int] = []
    scores = on_one_device.score(
        [("a", "b"), (pair[0], pair[1]), ("b", "a")], progress=counts.append
    )
    assert scores[1] is None
    assert [scores[0], scores[2]] == on_one_device.score([("a", "b"), ("b", "a")])
    assert None not in (scores[0], scores[2])
    assert sum(counts) == 3


def test_every_hypothesis_begins_with_its_prefix(on_one_device, trained):
    sentences = [source for source, _ in PAIRS[:12]]
    prefixes = ["", "der dritte", " Anna ", "7"] * 3
    found = on_one_device.translations(sentences, prefixes=prefixes)
    unforced = on_one_device.translations(sentences)
    for translation, free, prefix in zip(found, unforced, prefixes, strict=True):
        ids = pieces_of(prefix, trained)
        assert len(translation.hypotheses) == 4
        for hypothesis in translation.hypotheses:
            assert target_ids(hypothesis, trained)[: len(ids)] == ids
            assert hypothesis.text.startswith(prefix.strip())
        if not prefix:
            assert [h.tokens for h in translation.hypotheses] == [
                h.tokens for h in free.hypotheses
            ]
        else:
            assert not free.text.startswith(prefix.strip())
    one = on_one_device.translations(sentences, prefixes=["7"])
    assert bits(one[3::4]) == bits(found[3::4])


@pytest.fixture(scope="module")
def limited(on_one_device, together):
    """Searched with limits; and what was suppressed, of what is found without."""
    free = [t for t in together if t.num_pieces == 1]
    vocabulary = on_one_device.vocabularies.target
    words = words_of(vocabulary)
    translator = on_one_device.with_decoding(
        no_repeat_ngram_size=2, min_length=5, max_length=12
    )
    return (
        free,
        translator.translations([t.source for t in free], suppress=words),
        vocabulary.encode_batch(words),
    )


def bigrams(tokens) -> list[tuple]:
    return list(itertools.pairwise(tokens))


def has_repeats(tokens) -> bool:
    return len(set(bigrams(tokens))) < len(bigrams(tokens))


def test_no_bigram_occurs_twice_where_that_is_forbidden(limited):
    free, found, _ = limited
    assert any(has_repeats(h.tokens) for t in free for h in t.hypotheses)
    assert not any(has_repeats(h.tokens) for t in found for h in t.hypotheses)


def test_lengths_keep_to_minimum_and_maximum(limited):
    free, found, _ = limited
    lengths = {len(h.tokens) for t in free for h in t.hypotheses}
    assert min(lengths) < 5
    assert max(lengths) > 12
    assert all(t.hypotheses for t in found)
    for translation in found:
        limit = min(len(translation.source_tokens) + 9, 12)
        for hypothesis in translation.hypotheses:
            ended = hypothesis.stop == "end"
            assert 5 <= len(hypothesis.tokens) - ended
            assert len(hypothesis.tokens) <= limit
            assert ended or len(hypothesis.tokens) == limit


def occurs(part: list[int], whole: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole)))


def test_what_is_suppressed_does_not_occur(limited, trained):
    free, found, phrases = limited
    for phrase in phrases:
        assert any(
            occurs(phrase, target_ids(h, trained)) for t in free for h in t.hypotheses
        )
        assert not any(
            occurs(phrase, target_ids(h, trained)) for t in found for h in t.hypotheses
        )


def test_a_sample_is_a_function_of_the_seed_and_the_sentence(on_one_device):
    sampler = on_one_device.with_decoding(sampling=True, n_best=3)
    sentences = [source for source, _ in PAIRS[:20]] + [PAIRS[0][0]]
    first = sampler.translations(sentences, seed=5)
    assert bits(sampler.translations(sentences[::-1], seed=5)) == bits(first)[::-1]
    assert bits(sampler.translations(sentences[7:8], seed=5)) == bits(first[7:8])
    assert bits(first[:1]) == bits(first[20:])
    other = sampler.translations(sentences, seed=6)
    for one, two in zip(first, other, strict=True):
        assert {h.text for h in one.hypotheses} != {h.text for h in two.hypotheses}
        assert len({h.tokens for h in one.hypotheses}) == 3
    assert len({t.text for t in first}) > 15


def test_a_long_sentence_is_cut_before_words_and_its_parts_joined(
    on_one_device, trained
):
    words = " ".join(source for source, _ in PAIRS[:3]).split()
    (whole,) = on_one_device.translations([" ".join(words)])
    assert whole.was_cut
    assert whole.num_pieces > 2
    tokens = " ".join(whole.source_tokens).split(" </s>")
    assert tokens.pop() == ""
    assert len(tokens) == whole.num_pieces
    parts = [part.strip().split(" ") for part in tokens]
    assert all(len(part) + 1 <= 32 and part[0].startswith("▁") for part in parts)
    texts = ["".join(part).replace("▁", " ").strip() for part in parts]
    assert " ".join(texts) == " ".join(words)
    alone = on_one_device.translations(texts)
    assert not any(t.was_cut for t in alone)
    for k, hypothesis in enumerate(whole.hypotheses):
        pieces = [t.hypotheses[k] for t in alone]
        assert hypothesis.text == " ".join(p.text for p in pieces if p.text)
        assert hypothesis.tokens == sum((p.tokens for p in pieces), ())
        for name in ("score", "log_prob"):
            assert getattr(hypothesis, name) == pytest.approx(
                sum(getattr(p, name) for p in pieces), rel=1e-12
            )
        stops = {p.stop for p in pieces}
        assert hypothesis.stop == ("end" if stops == {"end"} else "limit")


@pytest.mark.parametrize("extra", [0, 1])
def test_a_sentence_of_the_models_length_is_not_cut_but_a_longer_one_is(
    extra, on_one_device, trained
):
    text = "☃" * 10  # of three bytes each, and a space in front
    assert len(pieces_of(text, trained)) == 31
    (found,) = on_one_device.translations([text + "7" * extra])
    assert found.was_cut == bool(extra)
    assert found.num_pieces == 1 + extra


def test_a_line_is_split_into_its_sentences(on_one_device):
    line = " Dr. Klein came. It was late!  Why? "
    sentences = ["Dr. Klein came.", "It was late!", "Why?"]
    split, blank = on_one_device.translations([line, " "], split=True)
    assert (split.num_pieces, split.was_cut, split.source) == (3, False, line)
    assert (blank.num_pieces, blank.text) == (0, "")
    alone = on_one_device.translations(sentences)
    assert split.source_tokens == sum((t.source_tokens for t in alone), ())
    assert split.text == " ".join(t.text for t in alone if t.text)
    (whole,) = on_one_device.translations([line])
    assert whole.num_pieces == 1


def hypothesis_of(text: str, stop) -> Hypothesis:
    return Hypothesis(text=text, score=-1.0, log_prob=-1.0, tokens=(), stop=stop)


def test_problems_are_counted_by_kind(on_one_device):
    (blank,) = on_one_device.translations([""])
    good, bad = hypothesis_of("gut", "end"), hypothesis_of("", "limit")
    problems = Problems()
    assert problems.lines() == []
    for hypotheses, num_pieces, was_cut in [
        ((good, bad), 1, False),  # only the best counts
        ((bad,), 1, False),
        ((hypothesis_of("", "end"),), 2, True),
        ((hypothesis_of("lang", "limit"),), 2, True),
        ((), 3, True),
        ((), 1, False),
        ((hypothesis_of("lang", "limit"),), 1, False),
    ]:
        problems.add(
            dataclasses.replace(
                blank, hypotheses=hypotheses, num_pieces=num_pieces, was_cut=was_cut
            )
        )
    problems.add(blank)
    assert problems.num_lines == 8
    words = {"cut into": 3, "no translation": 2, "empty": 2, "length limit": 3}
    lines = problems.lines()
    assert len(lines) == len(words)
    for word, count in words.items():
        (line,) = (line for line in lines if word in line)
        assert line.startswith(f"{count} of 8 lines ")


def error_of(function, *arguments, **options) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefixes": ["a", "b", "c"]}, "3 prefixes for 2 sentences"),
        ({"prefixes": ["", "so " * 60]}, "prefix of sentence 2 has"),
        ({"suppress": ["a", " "]}, "' ' is blank"),
        ({"attention": Attention(layer=1)}, "attention layer 1"),
        ({"attention": Attention(layer=-2)}, "attention layer -2"),
        ({"attention": Attention(heads=(0, 2))}, "attention head 2"),
        ({"attention": Attention(heads=(-1,))}, "attention head -1"),
        ({"prefixes": ["\ud800"]}, "U+D800"),
        ({"suppress": ["a\udfff"]}, "U+DFFF"),
    ],
)
def test_a_wrong_argument_is_one_line(options, words, on_one_device):
    message = error_of(on_one_device.translations, ["a", "b"], **options)
    assert words in message


def test_half_a_surrogate_pair_is_named_with_its_sentence(on_one_device):
    bad = ["a", "b\ud800"]
    for message in (
        error_of(on_one_device.translate, bad),
        error_of(on_one_device.score, [("a", "b"), ("b\ud800", "a")]),
        error_of(on_one_device.score, [("a", "b"), ("a", "b\ud800")]),
    ):
        assert "sentence 2" in message
        assert "U+D800" in message


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.translate("text"),
        lambda t: t.translate([b"text"]),
        lambda t: t.translate(["a", None]),
        lambda t: t.translations(["a"], prefixes="text"),
        lambda t: t.translations(["a"], prefixes=[3]),
        lambda t: t.translations(["a"], suppress="text"),
        lambda t: t.translations(["a"], suppress=[3]),
        lambda t: t.score([("a", 3)]),
        lambda t: t.score([("a", None)]),
    ],
)
def test_what_is_no_list_of_texts_is_a_type_error(call, on_one_device):
    with pytest.raises(TypeError, match=re.compile("got (one|a sentence of type)")):
        call(on_one_device)


def test_a_beam_wider_than_the_vocabulary_is_refused(on_one_device):
    message = error_of(on_one_device.with_decoding, beam_size=401)
    assert "decoding.beam_size is 401" in message


def test_without_sentences_there_are_no_translations(on_one_device):
    assert on_one_device.translations([]) == []
    assert on_one_device.translate([]) == []
    assert on_one_device.translate(["", " "]) == ["", ""]
