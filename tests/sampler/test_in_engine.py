"""Each request is sampled by its own parameters, in any batch row and stage."""

import random

import pytest
from helpers.serve import Ask, iteration_engine, serve

from tinyengine import STAGES, SamplingParams

PROMPT = [7, 70, 170, 270, 11]
MIXED = [
    SamplingParams(max_tokens=12, ignore_eos=True),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=5),
    SamplingParams(max_tokens=9, ignore_eos=True, temperature=0.7, seed=2**62 + 1, top_k=20),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.5, seed=5, top_p=0.8),
    SamplingParams(max_tokens=5, ignore_eos=True, temperature=1.0, seed=9, repetition_penalty=1.3),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=6),
]


@pytest.fixture(scope="module")
def mixed_alone(random_model):
    engine = iteration_engine(random_model, "selective", num_slots=200)
    return [serve(engine, [Ask(PROMPT, params)])[0].token_ids for params in MIXED]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2)])
def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch_row_and_stage(random_model, mixed_alone, stage, order):
    asks = [Ask(PROMPT, MIXED[index], arrival=place // 2) for place, index in enumerate(order)]
    outputs = serve(iteration_engine(random_model, stage, max_num_seqs=4, num_slots=100, seed=len(order)), asks)
    assert [output.token_ids for output in outputs] == [mixed_alone[index] for index in order]


def test_parameters_of_neighbours_differ_in_their_effect(mixed_alone):
    assert len({tuple(tokens) for tokens in mixed_alone}) == len(MIXED)


def test_without_seeds_requests_differ_and_the_engine_s_seed_fixes_them(random_model):
    asks = [Ask(PROMPT, SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True)) for _ in range(4)]

    def run(seed):
        engine = iteration_engine(random_model, "selective", num_slots=200, seed=seed)
        return [tuple(output.token_ids) for output in serve(engine, asks)]

    first = run(0)
    assert len(set(first)) == 4
    assert first == run(0) != run(1)


def greedy(model, prompt=PROMPT, **params):
    params = SamplingParams(**{"max_tokens": 12, **params})
    return serve(iteration_engine(model, "selective", num_slots=200), [Ask(prompt, params)])[0]


def test_any_of_several_end_tokens_ends_an_output(random_model, monkeypatch):
    free = greedy(random_model, ignore_eos=True)
    assert free.finish_reason == "length"
    for place in (0, 4, 11):
        monkeypatch.setattr(random_model, "eos_token_ids", (299, free.token_ids[place], 298))
        output, end = greedy(random_model), free.token_ids.index(free.token_ids[place])
        assert (output.token_ids, output.finish_reason) == (free.token_ids[: end + 1], "stop")
        assert greedy(random_model, ignore_eos=True).token_ids == free.token_ids


def test_stop_token_ids_end_an_output_even_where_end_of_sequence_is_ignored(random_model):
    free = greedy(random_model, ignore_eos=True).token_ids
    output = greedy(random_model, ignore_eos=True, stop_token_ids=[free[3], 100_000])
    assert (output.token_ids, output.finish_reason) == (free[: free.index(free[3]) + 1], "stop")


@pytest.mark.parametrize("stage", STAGES)
def test_repetition_penalty_gives_the_tokens_of_transformers(random_model, random_oracle, stage):
    rng = random.Random(2)
    asks = [
        Ask(
            [rng.randrange(300) for _ in range(rng.randint(2, 30))],
            SamplingParams(max_tokens=20, repetition_penalty=penalty, ignore_eos=True),
            arrival=index,
        )
        for index, penalty in enumerate([1.0, 1.2, 2.0, 0.8, 1.05])
    ]
    outputs = serve(iteration_engine(random_model, stage, max_num_seqs=3, num_slots=200), asks)
    for ask, output in zip(asks, outputs, strict=True):
        assert output.token_ids == random_oracle.generate(ask.prompt, ask.params)
    plain = SamplingParams(max_tokens=20, ignore_eos=True)
    assert any(o.token_ids != random_oracle.generate(j.prompt, plain) for j, o in zip(asks, outputs, strict=True))
