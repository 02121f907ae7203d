"""The flat batch in the field's terms, worked by hand."""

import pytest
import torch
from helpers.batches import placed

from tinyengine.batch import flat, rectangle
from tinyengine.memory import Blocks, Slots
from tinyengine.request import Request, SamplingParams
from tinyengine.sampler import sample

CPU = torch.device("cpu")


def by_hand():
    """Blocks of 4: a whole prompt, a chunk behind older context, a decode step, a chunk that leaves a rest, and two
    guesses behind the newest token."""
    return [
        (placed("whole", [10, 11, 12, 13, 14], [7, 2], 0), 5),
        (placed("last chunk", [20, 21, 22, 23, 24, 25], [0, 9], 3), 3),
        (placed("decode", [30, 31, 32, 33], [5], 3), 1),
        (placed("first chunk", [40, 41, 42, 43, 44, 45, 46], [8, 1], 0), 2),
        (placed("guesses", [50, 51, 52], [3, 6], 2, [53, 54]), 3),
    ]


def wanted(batch) -> list[tuple[str, int]]:
    return [(request.request_id, length) for request, length in batch.wanted]


def test_a_flat_batch_by_hand():
    batch = flat(by_hand(), Blocks(10, 4), 99, CPU)  # a stream has as many rows as tokens
    assert batch.tokens.tolist() == [10, 11, 12, 13, 14, 23, 24, 25, 33, 40, 41, 52, 53, 54]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 3, 0, 1, 2, 3, 4]
    assert batch.slot_mapping.tolist() == [28, 29, 30, 31, 8, 3, 36, 37, 23, 32, 33, 14, 15, 24]
    assert batch.cu_seqlens_q.tolist() == [0, 5, 8, 9, 11, 14] and batch.counts == [5, 3, 1, 2, 3]
    assert batch.seqused_k.tolist() == batch.lengths == [5, 6, 4, 2, 5]
    # only as many blocks as the keys take: "first chunk" has two, and fills but one
    assert batch.block_table.tolist() == [[7, 2], [0, 9], [5, 0], [8, 0], [3, 6]]
    assert batch.last.tolist() == [4, 7, 8, 11, 12, 13]
    assert wanted(batch) == [("whole", 5), ("last chunk", 6), ("decode", 4), *[("guesses", n) for n in (3, 4, 5)]]
    assert batch.real is None and batch.padding == 0 and batch.block_size == 4
    for ints in (batch.cu_seqlens_q, batch.seqused_k, batch.block_table):
        assert ints.dtype == torch.int32
    for longs in (batch.tokens, batch.positions, batch.slot_mapping, batch.last):
        assert longs.dtype == torch.long


def test_a_rectangle_by_hand():
    batch = rectangle(by_hand()[1:], Blocks(10, 4), 5, CPU)
    assert batch.tokens.view(5, 3).tolist() == [[23, 24, 25], [33, 0, 0], [40, 41, 0], [52, 53, 54], [0, 0, 0]]
    assert batch.positions.view(5, 3).tolist() == [[3, 4, 5], [3, 0, 0], [0, 1, 0], [2, 3, 4], [0, 0, 0]]
    assert batch.real.tolist() == [0, 1, 2, 3, 6, 7, 9, 10, 11] and batch.padding == 6
    assert batch.slot_mapping.tolist() == [3, 36, 37, 23, 32, 33, 14, 15, 24]
    assert batch.last.tolist() == [2, 3, 9, 10, 11]
    assert wanted(batch) == [("last chunk", 6), ("decode", 4), *[("guesses", n) for n in (3, 4, 5)]]


def test_no_token_is_wanted_of_a_first_chunk():
    batch = flat(by_hand()[3:4], Blocks(10, 4), 1, CPU)
    assert batch.wanted == batch.last.tolist() == [] and sample(torch.empty(0, 60), batch) == [None]


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [([53, 54, 9], [53, 54, 9]), ([53, 8, 9], [53, 8]), ([7, 8, 9], [7])],
)
def test_chosen_tokens_go_back_to_their_requests(chosen, kept):
    batch = flat(by_hand(), Blocks(10, 4), 5, CPU)
    logits = torch.nn.functional.one_hot(torch.tensor([1, 2, 3, *chosen]), 60).float()
    assert sample(logits, batch) == [1, 2, 3, None, kept]


@pytest.mark.parametrize("index", range(5))
def test_the_slots_of_a_request_are_those_of_its_positions(index):
    memory, plan = Blocks(10, 4), by_hand()
    batch = flat(plan, memory, 5, CPU)
    assert batch.slots(index).tolist() == memory.slots(plan[index][0], 0, batch.lengths[index])


def test_a_reservation_is_a_table_of_blocks_of_one():
    memory, request = Slots(20), Request("r", [1, 2, 3], SamplingParams(max_tokens=2))
    memory.reserve(Request("before", [1], SamplingParams(max_tokens=3)))
    memory.reserve(request)
    batch = flat([(request, 3)], memory, 1, CPU)
    assert batch.slots(0).tolist() == batch.slot_mapping.tolist() == [4, 5, 6]
    assert batch.block_table.tolist() == [[4, 5, 6]] and batch.block_size == 1
