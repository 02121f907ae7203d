"""Blocks: by hand, and beside a model that knows only which text's K/V each slot of the arena was last given."""

import random
from itertools import count

import pytest
from helpers.drive import Arena
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyengine.memory import Blocks, Slots
from tinyengine.request import Request, SamplingParams
from tinyengine.trace import Holding

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def request(name: str, tokens: list[int] | int, output: int = 9) -> Request:
    return Request(name, list(range(tokens)) if isinstance(tokens, int) else tokens, SamplingParams(max_tokens=output))


def admit(memory: Blocks, one: Request, computed: int | None = None) -> Request:
    """Takes the request in, gives it the blocks of all its tokens, and computes them, or the first `computed`."""
    found(memory, one)
    assert memory.grow(one, len(one.tokens))
    compute(memory, one, len(one.tokens) if computed is None else computed)
    return one


def found(memory: Blocks, one: Request) -> int:
    """Takes the request in, whole, and says how many of its tokens the cache had."""
    one.computed = memory.admit(one, len(one.tokens))
    return one.computed


def compute(memory: Blocks, one: Request, until: int):
    since, one.computed = one.computed, until
    memory.filled(one, since)


# by hand


@pytest.mark.parametrize("block_size", [0, -4, 3, 6, 12, 24, 100])
def test_a_block_size_is_a_power_of_two(block_size):
    with pytest.raises(ValueError, match=f"block_size is {block_size}, but must be a power of two"):
        Blocks(4, block_size)


@pytest.mark.parametrize("n_blocks", [0, -1])
def test_a_pool_has_at_least_one_block(n_blocks):
    with pytest.raises(ValueError, match=f"n_blocks is {n_blocks}, but a pool has at least 1"):
        Blocks(n_blocks)


def test_an_arena_is_cut_into_whole_blocks():
    memory = Blocks.for_arena(100, 16)
    assert (memory.n_blocks, memory.n_slots, memory.enable_prefix_caching) == (6, 96, False)
    assert Blocks.for_arena(16, 16, True).enable_prefix_caching
    with pytest.raises(ValueError, match="num_slots is 15, but a block has 16"):
        Blocks.for_arena(15, 16)


def test_slots_refuse_a_prefix_cache():
    assert Slots.for_arena(100, 16).n_slots == 100
    with pytest.raises(ValueError, match="enable_prefix_caching is True, but only"):
        Slots.for_arena(100, 16, enable_prefix_caching=True)


@pytest.mark.parametrize(("n_slots", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_positions_take_whole_blocks(n_slots, blocks):
    assert Blocks(9, 4).blocks(n_slots) == blocks


def test_blocks_are_given_one_by_one_and_only_when_the_last_is_full():
    memory, one = Blocks(4, 4), request("a", 5)
    assert found(memory, one) == 0 and one.table == []
    assert memory.missing(one, 5) == 2
    for n_slots, table in [(1, [0]), (4, [0]), (5, [0, 1]), (8, [0, 1]), (9, [0, 1, 2]), (3, [0, 1, 2])]:
        assert memory.grow(one, n_slots) and one.table == table
        memory.check()
    assert memory.missing(one, 12) == 0 and memory.missing(one, 13) == 1 and memory.missing(one, 1) == 0


def test_a_refused_growth_changes_nothing():
    memory, one = Blocks(3, 4), request("a", 4)
    admit(memory, one)
    assert memory.grow(one, 12) and not memory.grow(one, 13)
    assert len(one.table) == 3
    memory.release(one)
    one.computed = 0
    admit(memory, other := request("b", 8))
    admit(memory, one)
    before = list(one.table), list(memory.free), list(memory.references)
    assert not memory.grow(one, 5)
    assert (list(one.table), list(memory.free), list(memory.references)) == before and len(other.table) == 2
    memory.check()


def test_admission_asks_for_the_whole_text_and_leaves_what_is_owed_to_others():
    memory = Blocks(4, 4)
    assert memory.admit(request("a", 17), 17) is None and not memory.holders
    assert memory.admit(request("a", 13), 13, owed=1) is None and not memory.holders
    assert memory.admit(request("a", 12), 12, owed=1) == 0
    assert memory.admit(request("b", 13), 13) == 0  # nothing is taken before `grow`
    assert list(memory.holders) == ["a", "b"]


def test_can_ever_hold_counts_all_but_the_last_token():
    memory = Blocks(2, 4)
    assert memory.can_ever_hold(request("a", 5, output=4)) and not memory.can_ever_hold(request("a", 5, output=5))


def test_slots_follow_the_table():
    memory, a, b = Blocks(4, 4), request("a", 4), request("b", 4)
    admit(memory, a), admit(memory, b)
    assert memory.grow(a, 9) and a.table == [0, 2, 3]
    assert memory.slots(a, 2, 10) == [2, 3, 8, 9, 10, 11, 12, 13]
    assert memory.slots(b, 0, 4) == [4, 5, 6, 7] and memory.slots(b, 2, 2) == []
    assert memory.holdings() == {"a": Holding(((0, 4), (8, 16)), 4), "b": Holding(((4, 8),), 4)}
    assert memory.grow(a, 9) and memory.holdings()["a"].reserved == 12


def test_holdings_of_a_request_that_came_back_are_those_it_has_now():
    memory, a, b = Blocks(4, 4), request("a", 8), request("b", 8)
    admit(memory, a)
    assert memory.holdings()["a"].ranges == ((0, 8),)
    memory.release(a)
    admit(memory, b)  # blocks 2 and 3: the least recently freed
    a.computed = 0
    admit(memory, a)
    assert memory.holdings() == {"b": Holding(((8, 16),), 8), "a": Holding(((4, 8), (0, 4)), 8)}


@pytest.mark.parametrize("caching", [False, True])
def test_the_least_recently_freed_block_goes_first_and_of_one_text_its_end(caching):
    memory = Blocks(5, 4, caching)
    a, b = admit(memory, request("a", 8)), admit(memory, request("b", [9] * 8))
    memory.release(b)
    memory.release(a)
    assert list(memory.free) == [4, 3, 2, 1, 0]


def test_release_is_idempotent_and_leaves_namesakes_and_strangers_alone():
    memory = Blocks(4, 4, True)
    a = admit(memory, request("a", 8))
    for stranger in (request("a", 8), request("b", 8)):
        memory.release(stranger)
        memory.check()
    assert list(memory.holders) == ["a"] and len(a.table) == 2
    memory.release(a)
    memory.release(a)
    memory.check()
    assert a.table == [] and not memory.holders and len(memory.free) == 4


# the prefix cache, by hand


def test_without_the_cache_nothing_is_found_again():
    memory = Blocks(8, 4)
    memory.release(admit(memory, request("a", 8)))
    assert memory.admit(request("b", 8), 8) == 0


def test_full_blocks_are_found_again_and_the_last_token_is_always_computed():
    for length, cached in [(12, 8), (13, 12), (9, 8), (8, 4), (5, 4), (4, 0), (3, 0)]:
        memory = Blocks(8, 4, True)
        memory.release(admit(memory, request("a", 13)))
        one = request("b", length)
        assert found(memory, one) == cached == (length - 1) // 4 * 4
        assert one.table == list(range(cached // 4))
        memory.check()


def test_a_hit_needs_the_same_text_from_its_very_beginning():
    memory = Blocks(8, 4, True)
    memory.release(admit(memory, request("a", list(range(12)))))
    for tokens, cached in [
        ([9, 1, 2, 3, *range(4, 12), 0], 0),  # the second block is the same, behind another first one
        ([*range(4), 9, 5, 6, 7, *range(8, 12), 0], 4),
        ([4, 5, 6, 7, 0], 0),
        ([*range(12), 0], 12),
    ]:
        one = request("b", tokens)
        assert memory.admit(one, len(tokens)) == cached
        memory.release(one)


def test_only_what_was_computed_is_found():
    memory = Blocks(8, 4, True)
    a = admit(memory, request("a", 13), computed=7)
    b = request("b", 13)
    assert found(memory, b) == 4
    compute(memory, a, 8)
    assert found(memory, request("c", 13)) == 8 and memory.references[:2] == [3, 2]
    memory.release(a)
    memory.release(b)
    assert memory.references[:2] == [1, 1]
    memory.check()


def test_generated_tokens_are_found_too():
    memory = Blocks(8, 4, True)
    a = admit(memory, request("a", 6))
    a.tokens += [7, 7]
    assert memory.grow(a, 8)
    compute(memory, a, 8)
    assert memory.admit(request("b", [*range(6), 7, 7, 5]), 9) == 8


def test_a_live_request_shares_its_blocks_and_its_growth_is_its_own():
    memory = Blocks(6, 4, True)
    a = admit(memory, request("a", 9))
    b = admit(memory, request("b", [*range(8), 70, 71]))
    assert b.table[:2] == a.table[:2] and b.table[2] != a.table[2] and memory.references[:2] == [2, 2]
    memory.release(a)
    memory.check()
    assert memory.references == [1, 1, 0, 1, 0, 0] and a.table == []
    assert set(memory.free) == {2, 4, 5}


def test_the_same_text_computed_side_by_side_stays_apart_and_the_first_is_found():
    memory = Blocks(6, 4, True)
    a, b = request("a", 5), request("b", 5)
    for one in (a, b):
        assert memory.admit(one, 5) == 0 and memory.grow(one, 5)
    for one in (a, b):
        compute(memory, one, 5)
    c = request("c", 5)
    assert found(memory, c) == 4 and c.table == a.table[:1]
    memory.check()


def test_a_hit_ends_at_the_first_block_that_is_gone():
    """a and b computed one text side by side, so b's first block is not in the cache, and its second is."""
    memory = Blocks(9, 4, True)
    a, b = request("a", 5), request("b", 9)
    for one in (a, b):
        assert found(memory, one) == 0 and memory.grow(one, len(one.tokens))
    for one in (a, b):
        compute(memory, one, len(one.tokens))
    memory.release(a)
    memory.release(admit(memory, request("c", [99] * 24)))  # all that was free, a's blocks among it
    memory.check()
    assert found(memory, request("d", 9)) == 0


def test_free_cached_blocks_count_as_room_only_once():
    memory = Blocks(3, 4, True)
    memory.release(admit(memory, request("a", 9)))  # two full blocks cached, all three free
    assert memory.admit(request("b", 12), 12, owed=1) is None  # two of the free ones are its own hit
    b = request("b", 12)
    assert found(memory, b) == 8
    assert len(memory.free) == 1 and memory.grow(b, 12) and not memory.free
    memory.check()


def test_a_hit_on_a_held_block_needs_no_free_one():
    memory = Blocks(3, 4, True)
    admit(memory, request("a", 8))
    b = request("b", [*range(8), 9])
    assert found(memory, b) == 8
    assert memory.grow(b, 9) and not memory.free
    assert memory.admit(request("c", [*range(8), 9]), 9) is None
    memory.check()


def test_a_block_given_out_anew_is_forgotten():
    memory = Blocks(2, 4, True)
    memory.release(admit(memory, request("a", 8)))
    b, c = admit(memory, request("b", [9] * 3)), request("c", 5)  # b takes block 1, the end of the text
    assert memory.admit(request("d", 9), 9) is None
    memory.release(b)
    memory.check()
    assert found(memory, c) == 4 and c.table == [0]


def test_a_preempted_request_finds_its_own_blocks_again():
    memory = Blocks(4, 4, True)
    a = admit(memory, request("a", 10))
    table = list(a.table)
    memory.release(a)
    assert memory.admit(a, 10) == 8 and a.table == table[:2]


def test_rolled_back_guesses_leave_no_trace_in_the_cache():
    memory = Blocks(6, 4, True)
    a = admit(memory, request("a", 6))
    a.tokens.append(50)
    assert memory.grow(a, 10)  # three guesses behind it: the second block would be full
    compute(memory, a, 7)  # but only the sure token stays
    assert found(memory, request("b", [*range(6), 50, 51, 52])) == 4
    memory.check()


# any order of events


class BlocksMachine(RuleBasedStateMachine):
    """Takes in, grows, computes (with guesses that turn out wrong), preempts and ends, beside plain bookkeeping."""

    @initialize(
        n_blocks=st.integers(1, 9), block_size=st.sampled_from(SIZES), caching=st.booleans(), seed=st.integers(0, 99)
    )
    def build(self, n_blocks, block_size, caching, seed):
        self.memory = Blocks(n_blocks, block_size, caching)
        self.size, self.caching = block_size, caching
        self.arena = Arena(n_blocks * block_size)
        rng = random.Random(seed)
        self.bases = [[rng.randrange(2) for _ in range(4 * block_size + 8)] for _ in range(2)]
        self.free = list(range(n_blocks))  # least recently freed first
        self.cache: dict[int, int] = {}  # text up to the end of a full block -> the block
        self.held: dict[Request, list[int]] = {}
        self.out: list[Request] = []  # preempted
        self.names = count()

    def users(self, block: int) -> int:
        return sum(block in table for table in self.held.values())

    def hit(self, one: Request) -> list[int]:
        blocks, texts = [], self.arena.texts(one.tokens)
        for end in range(self.size, len(one.tokens), self.size):  # the last token is never among them
            if not self.caching or texts[end - 1] not in self.cache:
                break
            blocks.append(self.cache[texts[end - 1]])
        return blocks

    @rule(base=st.integers(0, 1), length=st.data(), tail=st.lists(st.integers(0, 2), max_size=3))
    def new(self, base, length, tail):
        tokens = self.bases[base][: length.draw(st.integers(0, len(self.bases[base])))] + tail
        self.take_in(request(f"r{next(self.names)}", tokens or [1], output=999), length)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def again(self, data):
        self.take_in(self.out.pop(data.draw(st.integers(0, len(self.out) - 1))), data)

    def take_in(self, one: Request, data):
        n_slots = data.draw(st.sampled_from([len(one.tokens), max(1, len(one.tokens) // 2)]))
        owed = data.draw(st.sampled_from([0, 0, 0, 1]))
        hit = self.hit(one)
        assert len(hit) <= (len(one.tokens) - 1) // self.size
        fresh = -(-n_slots // self.size) - len(hit)
        fits = fresh + owed + sum(not self.users(block) for block in hit) <= len(self.free)
        assert self.memory.admit(one, n_slots, owed) == (len(hit) * self.size if fits else None)
        if fits:
            one.computed = len(hit) * self.size
            self.held[one] = hit
            self.free = [block for block in self.free if block not in hit]
        else:
            assert one.table == []
            self.out.append(one)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def grow(self, data):
        one = data.draw(st.sampled_from(list(self.held)))
        self.give(one, data.draw(st.integers(1, len(one.tokens) + self.size)))

    def give(self, one: Request, n_slots: int) -> bool:
        table = self.held[one]
        lacking = max(0, -(-n_slots // self.size) - len(table))
        assert self.memory.missing(one, n_slots) == lacking
        granted = lacking <= len(self.free)
        assert self.memory.grow(one, n_slots) == granted
        if granted:
            given, self.free = self.free[:lacking], self.free[lacking:]
            table += given
            self.cache = {text: block for text, block in self.cache.items() if block not in given}
        return granted

    @precondition(lambda self: self.held)
    @rule(data=st.data(), guesses=st.lists(st.integers(0, 2), max_size=3), right=st.integers(0, 3))
    def compute(self, data, guesses, right):
        """A chunk, or all of the rest; then a token, and as many guesses as were right."""
        one = data.draw(st.sampled_from(list(self.held)))
        open_tokens = len(one.tokens) - one.computed
        n_tokens = data.draw(st.sampled_from([open_tokens, max(1, open_tokens // 2), 1]))
        guesses = guesses if n_tokens == open_tokens else []
        text = one.tokens + guesses
        end = one.computed + n_tokens + len(guesses)
        if not self.give(one, end):
            return
        since = one.computed
        texts = self.arena.texts(text)
        for position, slot in zip(range(since, end), self.memory.slots(one, since, end), strict=True):
            assert slot == self.held[one][position // self.size] * self.size + position % self.size
            self.arena.kv[slot] = texts[position]
        one.computed = end
        if n_tokens == open_tokens:
            right = min(right, len(guesses))
            one.tokens += [*guesses[:right], data.draw(st.integers(0, 2))]
            one.computed -= len(guesses) - right
        self.memory.filled(one, since)
        for index in range(since // self.size, one.computed // self.size):
            if self.caching:
                self.cache.setdefault(texts[(index + 1) * self.size - 1], self.held[one][index])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), preempt=st.booleans())
    def leave(self, data, preempt):
        one = data.draw(st.sampled_from(list(self.held)))
        table = self.held.pop(one)
        self.memory.release(one)
        self.free += [block for block in reversed(table) if not self.users(block)]
        assert one.table == []
        one.computed = 0
        if preempt:
            self.out.append(one)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def abort_one_that_waits(self, data):
        self.memory.release(self.out.pop(data.draw(st.integers(0, len(self.out) - 1))))

    @invariant()
    def the_pool_is_what_the_model_says(self):
        memory = self.memory
        memory.check()
        assert list(memory.free) == self.free
        assert {one.request_id: one.table for one in self.held} == {
            one.request_id: table for one, table in self.held.items()
        }
        assert memory.holders == {one.request_id: one for one in self.held}
        users = [self.users(block) for block in range(memory.n_blocks)]
        assert memory.references == users if self.caching else max(users) <= 1  # nobody shares, so nobody counts
        assert sorted([*self.free, *{block for table in self.held.values() for block in table}]) == list(
            range(memory.n_blocks)
        )
        assert {key: (held.reserved, held.used) for key, held in memory.holdings().items()} == {
            one.request_id: (len(one.table) * self.size, one.computed) for one in self.held
        }

    @invariant()
    def every_request_finds_its_own_kv(self):
        for one in self.held:
            slots = self.memory.slots(one, 0, one.computed)
            assert [self.arena.kv[slot] for slot in slots] == self.arena.texts(one.tokens[: one.computed])


TestBlocksMachine = BlocksMachine.TestCase
TestBlocksMachine.settings = settings(deadline=None, max_examples=120, stateful_step_count=30)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.sampled_from([1, 2, 8]), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_when_all_have_left_every_block_is_free(lengths, block_size, seed):
    memory, held = Blocks(40, block_size, True), []
    for number, length in enumerate(lengths):
        one = request(f"r{number}", length)
        if (cached := memory.admit(one, length)) is not None:
            one.computed = cached
            assert memory.grow(one, length)
            compute(memory, one, length)
            held.append(one)
    random.Random(seed).shuffle(held)
    for one in held:
        memory.release(one)
    memory.check()
    assert len(memory.free) == 40 and not any(memory.references) and memory.holdings() == {}


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
    del memory._block_of[memory._hash_of.pop(block)]


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
    memory._block_of[b"another"] = a.table[0]


def a_hash_of_nothing(memory, a, b):
    memory._hash_of[next(iter(memory.free))] = b"another"


def find_what_is_not_computed(memory, a, b):
    a.computed = b.computed = 0


def hold_a_block_past_the_end(memory, a, b):
    a.table.append(memory.n_blocks)


def free_a_block_past_the_end(memory, a, b):
    memory.free[memory.n_blocks] = None


def a_hash_past_the_end(memory, a, b):
    memory._block_of[b"another"], memory._hash_of[memory.n_blocks] = memory.n_blocks, b"another"


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
    memory = Blocks(8, 4, True)
    a, b = admit(memory, request("a", 9)), admit(memory, request("b", [*range(4), 70, 71, 72, 73, 74]))
    assert a.table[0] == b.table[0]
    memory.check()
    corrupt(memory, a, b)
    with pytest.raises(AssertionError):
        memory.check()


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda memory, a, b: memory.free.pop(),
        lambda memory, a, b: memory.free.append(memory.free[0]),
        lambda memory, a, b: memory.free.append(a.table[0]),
        lambda memory, a, b: memory.free.append(memory.n_blocks),
        lambda memory, a, b: b.table.append(memory.free[0]),
        lambda memory, a, b: b.table.append(b.table[0]),
        lambda memory, a, b: b.table.__setitem__(0, a.table[0]),
        lambda memory, a, b: memory.holders.pop("a"),
    ],
    ids=["lost", "free twice", "both", "past the end", "not counted", "twice in a table", "shared", "no holder"],
)
def test_check_sees_without_a_cache(corrupt):
    memory = Blocks(8, 4)
    a, b = admit(memory, request("a", 9)), admit(memory, request("b", 9))
    memory.check()
    corrupt(memory, a, b)
    with pytest.raises(AssertionError):
        memory.check()
