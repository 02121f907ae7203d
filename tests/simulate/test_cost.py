"""Cost models and the catalogue: arithmetic that can be done by hand, and the published numbers that are only that."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyengine.simulate import GPUS, MODELS, Fitted, Load, Roofline, Unit, kv_slots
from tinyengine.simulate.catalogue import GIB, lookup
from tinyengine.simulate.cost import chunk, together

KV_BYTES = {
    "qwen3-0.6b": 114_688,
    "qwen3-8b": 147_456,
    "mistral-7b": 131_072,
    "yi-34b": 245_760,
    "llama2-70b": 327_680,
    "falcon-180b": 163_840,
    "opt-13b": 819_200,
}
# millions of weights, as the cards of the models state them
WEIGHTS = {
    "qwen3-0.6b": 596,
    "qwen3-8b": 8_191,
    "mistral-7b": 7_242,
    "yi-34b": 34_389,
    "llama2-70b": 68_977,
    "falcon-180b": 180_000,
    "opt-13b": 12_853,
}


@pytest.mark.parametrize("name", MODELS)
def test_shapes_give_the_known_sizes(name):
    shape = MODELS[name]
    assert shape.kv_bytes == KV_BYTES[name]
    assert shape.weights == pytest.approx(WEIGHTS[name] * 1e6, rel=0.01)


def test_a_layer_of_70b_has_0_856_billion_weights():
    assert MODELS["llama2-70b"].layer_weights == pytest.approx(0.856e9, rel=1e-3)


@pytest.mark.parametrize(("gpu", "ridge"), [("a100-pcie", 161), ("h100", 295), ("h200", 206)])
def test_ridges(gpu, ridge):
    assert round(GPUS[gpu].ridge) == ridge


def test_reading_70b_once_takes_an_h100_40_9_ms_at_the_least():
    """140 GB at 3.35 TB/s is 41.8 ms; 68.7 billion weights without the embedding, which is not read whole, are 41.0."""
    cost = Roofline(GPUS["h100"], MODELS["llama2-70b"], bandwidth=1.0, mfu=1.0, host=0.0)
    assert cost.seconds(Load(1, 1)) == pytest.approx(0.0409, rel=0.005)


def test_decode_latency_is_flat_in_the_batch_up_to_the_ridge_and_throughput_is_not():
    cost = Roofline(GPUS["h100"], MODELS["qwen3-8b"], host=0.0)
    times = {batch: cost.seconds(Load(batch, batch, batch)) for batch in (1, 16, 128, 1024)}
    assert times[16] < 1.01 * times[1] and times[128] < 1.05 * times[1] and times[1024] > 2 * times[1]


def test_decode_of_one_uses_a_third_of_a_percent_of_an_h100():
    shape = MODELS["qwen3-8b"]
    seconds = Roofline(GPUS["h100"], shape, bandwidth=1.0, host=0.0).seconds(Load(1, 1, 1))
    flops = 2 * (shape.layers * shape.layer_weights + shape.head_weights)
    assert flops / seconds / GPUS["h100"].flops == pytest.approx(0.0034, rel=0.02)


def test_a_roofline_by_hand():
    """Mistral-7B, 256 rows of one prompt: 6.98 G layer weights, 2 FLOP each; the head for one request reads its
    weights; 256 * 257 / 2 pairs of 4 * 32 * 128 * 32 FLOP; 256 positions of 131,072 bytes."""
    flops, memory = 0.7 * 312e12, 0.75 * 1.935e12
    linear = 2 * 32 * (2 * 4096 * (32 + 8) * 128 + 3 * 4096 * 14336) * 256 / flops
    head = 2 * 32000 * 4096 / memory
    attention = 256 * 257 / 2 * 4 * 32 * 128 * 32 / flops + 256 * 131072 / memory
    cost = Roofline(GPUS["a100-pcie"], MODELS["mistral-7b"])
    assert cost.seconds(chunk(0, 256)) == pytest.approx(linear + head + attention + 0.002, rel=1e-12)


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_chunks_of_a_prompt_have_the_pairs_of_the_whole(n_tokens, start):
    whole, first, second = chunk(0, start + n_tokens), chunk(0, start), chunk(start, n_tokens)
    if start > 1 and n_tokens > 1:
        assert first.prefill_pairs + second.prefill_pairs == whole.prefill_pairs
        assert second.prefill_contexts == whole.prefill_contexts == start + n_tokens
    assert together(first, second).tokens == start + n_tokens


def test_257_tokens_cost_what_384_do():
    cost = Roofline(GPUS["a100-pcie"], MODELS["yi-34b"], tp=2)
    plain = [cost.seconds(Load(tokens, 1)) for tokens in (256, 257, 384)]
    assert plain[1] == pytest.approx(plain[2], rel=0.02) and plain[1] > 1.25 * plain[0]


def test_more_gpus_take_less_time_and_more_links():
    shape, gpu = MODELS["yi-34b"], GPUS["a100-sxm"]
    one, two = (Roofline(gpu, shape, tp=tp, host=0.0).seconds(chunk(0, 4096)) for tp in (1, 2))
    assert one / 2 < two < one
    slow = Roofline(replace(gpu, link=1e9), shape, tp=2, host=0.0).seconds(chunk(0, 4096))
    # 60 layers x 2 all-reduces x 4096 rows x 7168 x 2 bytes, each GPU sends as much in a ring of two, at 0.75 GB/s
    assert slow - two == pytest.approx(60 * 2 * 4096 * 7168 * 2 / 0.75e9 * (1 - 1 / 300), rel=1e-6)
    staged = Roofline(gpu, shape, pp=2, host=0.0)
    assert staged.stages == 2 and staged.seconds(chunk(0, 4096)) == pytest.approx(one / 2, rel=0.01)
    slow = Roofline(replace(gpu, link=1e9), shape, pp=2, host=0.0)  # each row goes to the next stage once
    assert slow.seconds(chunk(0, 4096)) - staged.seconds(chunk(0, 4096)) == pytest.approx(
        4096 * 7168 * 2 / 0.75e9 * (1 - 1 / 300), rel=1e-6
    )


@pytest.mark.parametrize("degrees", [{"tp": 4}, {"pp": 4}])
def test_every_gpu_reads_its_share_of_the_k_v(degrees):
    cost = Roofline(GPUS["a100-sxm"], MODELS["yi-34b"], host=0.0, **degrees)
    reading = cost.seconds(Load(1, 1, 100_000)) - cost.seconds(Load(1, 1, 0))
    assert reading == pytest.approx(100_000 * 245_760 / 4 / (0.75 * 2.039e12))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"mfu": 0}, "mfu is 0"),
        ({"bandwidth": 1.5}, "bandwidth is 1.5"),
        ({"tp": 0}, "tp is 0"),
        ({"pp": 0}, "pp is 0"),
        ({"host": -1}, "host is -1"),
    ],
)
def test_a_roofline_refuses_what_cannot_be(fault, words):
    with pytest.raises(ValueError, match=words):
        Roofline(GPUS["h100"], MODELS["qwen3-8b"], **fault)


def test_k_v_slots_are_what_the_weights_leave():
    assert kv_slots(GPUS["a100-pcie"], MODELS["mistral-7b"]) == int(
        (0.85 * 80 * GIB - 2 * MODELS["mistral-7b"].weights) // 131_072
    )
    with pytest.raises(ValueError, match=r"falcon-180b has 332\.\d GiB of weights, but 2 x h100 has 136\.0"):
        kv_slots(GPUS["h100"], MODELS["falcon-180b"], tp=2)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'b200'.*a100-pcie.*h200"):
        lookup("gpu", "b200", GPUS)


def test_unit_counts_iterations():
    assert Unit().seconds(Load(1, 1)) == Unit().seconds(Load(9999, 128, 10**6, 10**9, 10**6)) == 1.0


def some_loads(count: int, rng: random.Random) -> list[Load]:
    return [
        together(*[chunk(rng.randrange(1, 4000), 1)] * rng.randrange(1, 64), chunk(0, rng.randrange(1, 1024)))
        for _ in range(count)
    ]


def test_a_fit_finds_the_line_it_was_given():
    truth = Fitted({"fixed": 2e-3, "tokens": 4e-5, "sequences": 1e-4, "decode_contexts": 3e-8, "prefill_pairs": 2e-10})
    rng = random.Random(0)
    found = Fitted.fit([(load, truth.seconds(load)) for load in some_loads(30, rng)])
    for name, value in truth.coefficients.items():
        assert found.coefficients[name] == pytest.approx(value, rel=1e-6)


def test_a_fit_of_a_roofline_predicts_batches_it_has_not_seen():
    truth = Roofline(GPUS["a40"], MODELS["qwen3-8b"])
    rng = random.Random(1)
    noisy = [(load, truth.seconds(load) * rng.uniform(0.95, 1.05)) for load in some_loads(60, rng)]
    assert Fitted.fit(noisy[:30]).error(noisy[30:]) < 0.15


def test_no_coefficient_is_negative_and_short_batches_count_as_much_as_long_ones():
    measured = [(Load(n, 1), 1e-3 + 1e-5 * n - 1e-6 * (n % 3)) for n in (*range(1, 9), *range(4000, 4004))]
    found = Fitted.fit([*measured, (Load(1, 64), 0.9e-3)])
    assert min(found.coefficients.values()) >= 0
    assert found.seconds(Load(4, 1)) == pytest.approx(1.04e-3, rel=0.05)


def test_a_fit_refuses_too_few_batches_and_times_that_are_none():
    with pytest.raises(ValueError, match="9 batches"):
        Fitted.fit([(Load(n, 1), 1.0) for n in range(1, 10)])
    with pytest.raises(ValueError, match="0 seconds"):
        Fitted.fit([(Load(n, 1), 0.0) for n in range(1, 20)])
    with pytest.raises(ValueError, match="prefill_pairs"):
        Fitted({"fixed": 1, "tokens": 1, "sequences": 1, "decode_contexts": 1})
