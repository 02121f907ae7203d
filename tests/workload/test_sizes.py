"""Workloads: the published sizes and distributions, and the same requests for the same seed."""

import random
from statistics import mean

import numpy as np
import pytest

from tinyengine.memory import Slots
from tinyengine.request import Request, SamplingParams
from tinyengine.workload import FIRST_WORD, LENGTHS, VOCABULARY, WORKLOADS, draw_lengths, poisson, workload


def sizes(load) -> list[tuple[int, int]]:
    return [(len(item.prompt), item.params.max_tokens) for item in load.items]


def test_equal_size_is_as_published():
    load = workload("equal_size")
    assert sizes(load) == [(128, 128)] * 16 and load.max_num_seqs == 2


def test_short_long_mix_is_as_published():
    load = workload("short_long_mix")
    assert sizes(load) == [(32, 32), (512, 128)] * 8 and load.max_num_seqs == 2


@pytest.mark.parametrize("name", ["equal_size", "short_long_mix", "poisson"])
def test_synthetic_requests_end_by_length_and_use_words_that_every_model_has(name):
    for item in workload(name).items:
        assert item.params.ignore_eos and item.params.temperature == 0
        assert all(FIRST_WORD <= token < VOCABULARY for token in item.prompt)


def test_the_arena_of_the_published_workloads_holds_any_batch_whatever_the_holes():
    for name in ("equal_size", "short_long_mix"):
        load = workload(name)
        largest = max(map(sum, sizes(load)))
        others = load.max_num_seqs - 1
        assert load.num_slots > others * largest + (others + 1) * (largest - 1)


def test_the_course_workload_is_eight_questions_that_end_by_themselves():
    load = workload("course")
    assert len(load.items) == 8 and load.max_num_seqs < 8
    assert all(isinstance(item.prompt, str) and not item.params.ignore_eos for item in load.items)
    assert all(item.prompt.startswith("<|user|>") and item.prompt.endswith("<|assistant|>") for item in load.items)


def test_lookups_are_long_prompts_among_short_ones():
    lengths = [len(item.prompt) for item in workload("lookups").items]
    long, short = lengths[2::3], [length for n, length in enumerate(lengths) if n % 3 != 2]
    assert len(lengths) == 12 and min(long) > 10 * max(short)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_requests_and_it_is_kept(name):
    assert workload(name, 3) == workload(name, 3)
    assert workload(name, 3).name == name and workload(name, 3).seed == 3
    assert [item.arrival for item in workload(name, 3).items] == sorted(
        item.arrival for item in workload(name, 3).items
    )


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "course"])
def test_another_seed_gives_other_requests(name):
    assert workload(name, 3).items != workload(name, 4).items


def test_a_workload_leaves_the_global_random_numbers_alone():
    random.seed(1)
    before = random.getstate()
    for name in WORKLOADS:
        workload(name)
    assert random.getstate() == before


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in ("course", "lookups")])
def test_every_synthetic_request_can_fit_into_its_arena(name):
    for seed in range(5):
        load = workload(name, seed)
        memory = Slots(load.num_slots)
        assert all(memory.can_ever_hold(Request("r", item.prompt, item.params)) for item in load.items)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError) as caught:
        workload("sharegpt2")
    assert "'sharegpt2'" in str(caught.value) and all(name in str(caught.value) for name in WORKLOADS)
    for draw in (lambda: draw_lengths("lmsys", random.Random(0)), lambda: poisson(0, name="lmsys")):
        with pytest.raises(ValueError) as caught:
            draw()
        assert "'lmsys'" in str(caught.value) and all(name in str(caught.value) for name in LENGTHS)


def test_poisson_arrivals_have_their_rate_and_an_exponential_spread():
    arrivals = [item.arrival for item in poisson(1, requests=4000, rate=20.0, scale=1 / 512).items]
    gaps = np.diff([0.0, *arrivals])
    assert mean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert np.std(gaps) == pytest.approx(1 / 20, rel=0.1) and min(gaps) >= 0
    half = [item.arrival for item in poisson(1, requests=4000, rate=10.0, scale=1 / 512).items]
    assert half[-1] == pytest.approx(2 * arrivals[-1])


@pytest.fixture(scope="module", params=LENGTHS)
def drawn(request):
    rng = random.Random(0)
    return LENGTHS[request.param], np.array([draw_lengths(request.param, rng) for _ in range(20_000)])


def test_the_published_numbers_are_the_papers():
    sharegpt, arxiv = LENGTHS["sharegpt"], LENGTHS["arxiv"]
    assert (sharegpt.prompt, sharegpt.output, sharegpt.limit) == ((1730, 5696), (415, 834), 8192)
    assert (arxiv.prompt, arxiv.output, arxiv.limit) == ((7059, 12985), (208, 371), 16384)


def test_median_and_p90_of_a_sample_are_the_published_ones(drawn):
    published, sample = drawn
    for column, (median, p90) in zip(sample.T, (published.prompt, published.output), strict=True):
        assert np.median(column) == pytest.approx(median, rel=0.05)
        assert np.percentile(column, 90) == pytest.approx(p90, rel=0.05)


def test_no_request_is_longer_than_the_limit_or_empty(drawn):
    published, sample = drawn
    assert sample.sum(axis=1).max() <= published.limit and sample.min() >= 1


def test_prompt_and_output_lengths_are_nearly_uncorrelated(drawn):
    assert abs(np.corrcoef(drawn[1].T)[0, 1]) < 0.1


def test_poisson_lengths_are_the_published_ones_scaled():
    load = poisson(0, name="arxiv", requests=400, scale=1 / 16)
    prompts, outputs = zip(*sizes(load), strict=True)
    assert np.median(prompts) == pytest.approx(7059 / 16, rel=0.15)
    assert np.median(outputs) == pytest.approx(208 / 16, rel=0.15)
    assert all(isinstance(item.params, SamplingParams) for item in load.items)
