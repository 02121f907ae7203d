"""The prefix cache: what is found again, when, and what the free blocks of a hit count for. Any order of events: see
memory/test_blocks.py, which runs both kinds of blocks beside one model."""

import pytest
from helpers.blocks import admit, found, request

from tinyengine.prefix_cache import CachedBlocks


def test_full_blocks_are_found_again_and_the_last_token_is_always_computed():
    for length, cached in [(12, 8), (13, 12), (9, 8), (8, 4), (5, 4), (4, 0), (3, 0)]:
        memory = CachedBlocks(8, 4)
        memory.release(admit(memory, request("a", 13)))
        one = request("b", length)
        assert found(memory, one) == cached == (length - 1) // 4 * 4
        assert one.table == list(range(cached // 4))
        memory.check()


def test_a_hit_needs_the_same_text_from_its_very_beginning():
    memory = CachedBlocks(8, 4)
    memory.release(admit(memory, request("a", list(range(12)))))
    for tokens, cached in [
        ([9, 1, 2, 3, *range(4, 12), 0], 0),  # the second block is the same, behind another first one
        ([*range(4), 9, 5, 6, 7, *range(8, 12), 0], 4),
        ([4, 5, 6, 7, 0], 0),
        ([*range(12), 0], 12),
    ]:
        one = request("b", tokens)
        assert found(memory, one) == cached
        memory.release(one)


def test_only_what_was_computed_is_found():
    memory = CachedBlocks(8, 4)
    a = admit(memory, request("a", 13), computed=7)
    b = request("b", 13)
    assert found(memory, b) == 4
    a.computed = 8
    assert found(memory, request("c", 13)) == 8 and memory.references[:2] == [3, 2]
    memory.release(a)
    memory.release(b)
    assert memory.references[:2] == [1, 1]
    memory.check()


def test_generated_tokens_are_found_too():
    memory = CachedBlocks(8, 4)
    a = admit(memory, request("a", 6))
    a.tokens += [7, 7]
    assert memory.grow(a, 8)
    a.computed = 8
    assert found(memory, request("b", [*range(6), 7, 7, 5])) == 8


def test_a_live_request_shares_its_blocks_and_its_growth_is_its_own():
    memory = CachedBlocks(6, 4)
    a = admit(memory, request("a", 9))
    b = admit(memory, request("b", [*range(8), 70, 71]))
    assert b.table[:2] == a.table[:2] and b.table[2] != a.table[2] and memory.references[:2] == [2, 2]
    memory.release(a)
    memory.check()
    assert memory.references == [1, 1, 0, 1, 0, 0] and a.table == []
    assert set(memory.free) == {2, 4, 5}


def test_the_same_text_computed_side_by_side_stays_apart_and_the_first_is_found():
    memory = CachedBlocks(6, 4)
    a, b = request("a", 5), request("b", 5)
    for one in (a, b):
        assert found(memory, one) == 0 and memory.grow(one, 5)
    a.computed = b.computed = 5
    c = request("c", 5)
    assert found(memory, c) == 4 and c.table == a.table[:1]
    memory.check()


def test_a_hit_ends_at_the_first_block_that_is_gone():
    """a and b computed one text side by side, so b's first block is not in the cache, and its second is."""
    memory = CachedBlocks(9, 4)
    a, b = request("a", 5), request("b", 9)
    for one in (a, b):
        assert found(memory, one) == 0 and memory.grow(one, len(one.tokens))
    a.computed, b.computed = 5, 9
    memory.release(a)
    memory.release(admit(memory, request("c", [99] * 24)))  # all that was free, a's blocks among it
    memory.check()
    assert found(memory, request("d", 9)) == 0


def test_free_cached_blocks_count_as_room_only_once():
    memory = CachedBlocks(3, 4)
    memory.release(admit(memory, request("a", 9)))  # two full blocks cached, all three free
    assert not memory.admit(request("b", 12), kept_free=1)  # two of the free ones are its own hit
    b = request("b", 12)
    assert found(memory, b) == 8
    assert len(memory.free) == 1 and memory.grow(b, 12) and not memory.free
    memory.check()


def test_a_hit_on_a_held_block_needs_no_free_one():
    memory = CachedBlocks(3, 4)
    admit(memory, request("a", 8))
    b = request("b", [*range(8), 9])
    assert found(memory, b) == 8
    assert memory.grow(b, 9) and not memory.free
    assert not memory.admit(request("c", [*range(8), 9]))
    memory.check()


def test_a_block_given_out_anew_is_forgotten():
    memory = CachedBlocks(2, 4)
    memory.release(admit(memory, request("a", 8)))
    b, c = admit(memory, request("b", [9] * 3)), request("c", 5)  # b takes block 1, the end of the text
    assert not memory.admit(request("d", 9))
    memory.release(b)
    memory.check()
    assert found(memory, c) == 4 and c.table == [0]


def test_a_preempted_request_finds_its_own_blocks_again():
    memory = CachedBlocks(4, 4)
    a = admit(memory, request("a", 10))
    table = list(a.table)
    memory.release(a)
    a.computed = 0
    assert found(memory, a) == 8 and a.table == table[:2]


def test_rolled_back_guesses_leave_no_trace_in_the_cache():
    memory = CachedBlocks(6, 4)
    a = admit(memory, request("a", 6))
    a.tokens += [50, 51, 52, 53]  # three guesses: the second block would be full
    assert memory.grow(a, 10)
    del a.tokens[7:]
    a.computed = 7  # but only the sure token stays
    assert found(memory, request("b", [*range(6), 50, 51, 52])) == 4
    memory.check()


def test_the_copy_of_the_request_that_came_first_is_found_whichever_leaves_first():
    """a and b computed one text side by side. When b is preempted, a's block is filed, and not the one b gives back."""
    memory = CachedBlocks(4, 4)
    a, b = request("a", 5), request("b", 5)
    for one in (a, b):
        assert found(memory, one) == 0 and memory.grow(one, 5)
    a.computed = b.computed = 5
    memory.release(b)
    b.computed = 0
    assert found(memory, b) == 4 and b.table == a.table[:1]
    memory.check()


def test_of_two_that_compute_one_text_the_one_that_is_full_first_is_found():
    """a came first, but b fills the block first: it is filed when b grows, and stays filed when a's block is full."""
    memory = CachedBlocks(8, 4)
    a, b = request("a", 5), request("b", 5)
    for one in (a, b):
        assert found(memory, one) == 0 and memory.grow(one, 5)
    b.computed = 5
    assert memory.grow(b, 6)
    a.computed = 5
    c = request("c", 5)
    assert found(memory, c) == 4 and c.table == b.table[:1]
    memory.check()


def test_a_refused_admission_changes_nothing():
    memory = CachedBlocks(3, 4)
    memory.release(admit(memory, request("a", 9)))
    before = list(memory.free), list(memory.references)
    b = request("b", 17)
    assert not memory.admit(b) and (b.table, b.computed) == ([], 0)
    assert (list(memory.free), list(memory.references)) == before and not memory.holders
    memory.check()


# check


def lose_a_free_block(memory, a, b):
    memory.free.popitem()


def lose_a_holder(memory, a, b):
    del memory.holders["a"]


def free_what_is_held(memory, a, b):
    memory.free[b.table[-1]] = None


def take_without_counting(memory, a, b):
    b.table.append(next(iter(memory.free)))


def count_without_taking(memory, a, b):
    memory.references[a.table[-1]] += 1


def forget_to_count(memory, a, b):
    memory.references[a.table[0]] -= 1


def forget_a_table(memory, a, b):
    b.table = []


def swap_tables(memory, a, b):
    a.table[1], b.table[1] = b.table[1], a.table[1]


def share_without_a_hash(memory, a, b):
    block = a.table[0]
    del memory.block_of[memory.hash_of.pop(block)]


def share_other_tokens(memory, a, b):
    b.tokens[0] = 99


def share_another_place(memory, a, b):
    b.table[0], b.table[1] = b.table[1], b.table[0]


def share_with_oneself(memory, a, b):
    b.table.append(b.table[0])
    memory.references[b.table[0]] += 1


def outgrow_the_table(memory, a, b):
    a.computed = len(a.table) * memory.block_size + 1


def two_hashes_of_a_block(memory, a, b):
    memory.block_of[b"another"] = a.table[0]


def a_hash_of_nothing(memory, a, b):
    memory.hash_of[next(iter(memory.free))] = b"another"


def find_what_is_not_computed(memory, a, b):
    a.computed = b.computed = 0


def hold_a_block_past_the_end(memory, a, b):
    a.table.append(memory.n_blocks)


def free_a_block_past_the_end(memory, a, b):
    memory.free[memory.n_blocks] = None


def a_hash_past_the_end(memory, a, b):
    memory.block_of[b"another"], memory.hash_of[memory.n_blocks] = memory.n_blocks, b"another"


@pytest.mark.parametrize(
    "corrupt",
    [
        lose_a_free_block,
        lose_a_holder,
        free_what_is_held,
        take_without_counting,
        count_without_taking,
        forget_to_count,
        forget_a_table,
        swap_tables,
        share_without_a_hash,
        share_other_tokens,
        share_another_place,
        share_with_oneself,
        outgrow_the_table,
        two_hashes_of_a_block,
        a_hash_of_nothing,
        find_what_is_not_computed,
        hold_a_block_past_the_end,
        free_a_block_past_the_end,
        a_hash_past_the_end,
    ],
)
def test_check_sees(corrupt):
    memory = CachedBlocks(8, 4)
    a, b = admit(memory, request("a", 9)), admit(memory, request("b", [*range(4), 70, 71, 72, 73, 74]))
    assert a.table[0] == b.table[0]
    memory.file_full_blocks()
    memory.check()
    corrupt(memory, a, b)
    with pytest.raises(AssertionError):
        memory.check()
