"""A learner's own scheduler and memory, and how large an arena is."""

import pytest
import torch
from helpers.prompts import LIMITS, PARAMS, PROMPTS, drain
from helpers.serve import iteration_engine

from tinyengine import STAGES, Engine
from tinyengine.inputs import CPU_KV_BYTES, estimate_num_slots
from tinyengine.memory import Slots
from tinyengine.scheduler import Orca


def slots_of(engine) -> int:
    _, blocks, block_size, *_ = engine.attention.cache.keys.shape
    return blocks * block_size


class Newest(Orca):
    """Last come, first served, one at a time."""

    def schedule(self):
        if not self.running and self.waiting and self.memory.reserve(self.waiting[-1]):
            self.running.append(self.waiting[-1])
            self.waiting.remove(self.running[0])
        return [(request, request.gap) for request in self.running]


@pytest.mark.parametrize("stage", STAGES)
def test_a_learner_s_scheduler_and_memory_are_used(random_model, alone, stage):
    scheduler = Newest(Slots(77), max_num_seqs=1)
    engine = iteration_engine(random_model, stage, scheduler=scheduler)
    names = [engine.add_request(prompt, limits) for prompt, limits in zip(PROMPTS, LIMITS, strict=True)]
    finished = [token.request_id for token in drain(engine) if token.finish_reason]
    assert engine.scheduler is scheduler and engine.memory is scheduler.memory
    assert slots_of(engine) == engine.trace.num_slots == 77
    assert engine.trace.max_num_seqs == 1
    assert finished == names[::-1]
    assert [engine.outputs[name].token_ids for name in names] == alone


def test_a_scheduler_that_is_stuck_is_named(random_model):
    class Stuck(Orca):
        def schedule(self):
            return []

    engine = Engine(random_model, scheduler=Stuck(Slots(64)))
    engine.add_request([1], PARAMS)
    with pytest.raises(RuntimeError, match=r"Stuck.schedule\(\) planned nothing, with 1 requests waiting"):
        engine.step()


@pytest.mark.parametrize(("stage", "block_size"), [("selective", 16), ("chunked", 16), ("chunked", 1), ("paged", 256)])
def test_num_slots_is_what_fits_the_stated_budget_in_whole_blocks(random_model, stage, block_size):
    slots = estimate_num_slots(random_model)
    per_slot = 2 * 3 * 2 * 16 * 4  # K and V, layers, kv heads, head_dim, bytes of a float32
    assert slots * per_slot <= CPU_KV_BYTES < (slots + 1) * per_slot
    engine = Engine(random_model, stage, block_size=block_size)
    whole = slots // engine.memory.block_size * engine.memory.block_size
    assert engine.memory.block_size == (1 if stage == "selective" else block_size)
    assert engine.memory.n_slots == whole == slots_of(engine)
    assert engine.attention.cache.keys.nbytes + engine.attention.cache.values.nbytes <= CPU_KV_BYTES


@pytest.mark.cuda
def test_num_slots_on_a_gpu_leaves_room_for_activations(random_folder):
    from tinyengine import load_model

    model = load_model(random_folder, "cuda")
    free, _ = torch.cuda.mem_get_info()
    assert 0.7 * free < estimate_num_slots(model) * 2 * 3 * 2 * 16 * 4 <= 0.8 * free


def test_a_request_that_just_fits_is_served(engine):
    """prompt + max_tokens equal to the arena; one more is refused. Blocks on demand hold one token more: nothing ever
    attends to the last one, and no block is kept for it."""
    most = 128 if isinstance(engine.memory, Slots) else 129
    (output,) = engine.generate([1] * (most - 8), PARAMS)
    assert len(output.token_ids) == 8
    with pytest.raises(ValueError, match=f"can come to need {most + 1} K/V slots"):
        engine.generate([1] * (most - 7), PARAMS)


def test_a_request_up_to_the_last_position_is_served(random_model, random_oracle):
    prompt = [7, 8] * 252
    (output,) = Engine(random_model, num_slots=600).generate([prompt], PARAMS)
    assert output.token_ids == random_oracle.generate(prompt, PARAMS)
