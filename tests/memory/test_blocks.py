"""Blocks: by hand, and beside a model that knows only which text's K/V each slot of the arena was last given."""

import random
from itertools import count
from math import inf

import pytest
from helpers.blocks import admit, request
from helpers.drive import Arena
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyengine.memory import Blocks, Holding
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.request import Request

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
KINDS = pytest.mark.parametrize("kind", [Blocks, CachedBlocks])


# by hand


@KINDS
@pytest.mark.parametrize("block_size", [0, -4, 3, 6, 12, 24, 100])
def test_a_block_size_is_a_power_of_two(kind, block_size):
    with pytest.raises(ValueError, match=f"block_size is {block_size}, but must be a power of two"):
        kind(4, block_size)


@pytest.mark.parametrize("n_blocks", [0, -1])
def test_a_pool_has_at_least_one_block(n_blocks):
    with pytest.raises(ValueError, match=f"n_blocks is {n_blocks}, but a pool has at least 1"):
        Blocks(n_blocks)


@KINDS
def test_an_arena_is_cut_into_whole_blocks(kind):
    memory = kind.for_arena(100, 16)
    assert type(memory) is kind and (memory.n_blocks, memory.n_slots) == (6, 96)
    with pytest.raises(ValueError, match="num_slots is 15, but a block has 16"):
        kind.for_arena(15, 16)


@pytest.mark.parametrize(("n_slots", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_positions_take_whole_blocks(n_slots, blocks):
    assert Blocks(9, 4).blocks(n_slots) == blocks


@KINDS
def test_blocks_are_given_one_by_one_and_only_when_the_last_is_full(kind):
    memory, one = kind(4, 4), request("a", 5)
    assert memory.admit(one) and one.table == []
    assert memory.missing(one, 5) == 2
    for n_slots, table in [(1, [0]), (4, [0]), (5, [0, 1]), (8, [0, 1]), (9, [0, 1, 2]), (3, [0, 1, 2])]:
        assert memory.grow(one, n_slots) and one.table == table
        memory.check()
    assert memory.missing(one, 12) == 0 and memory.missing(one, 13) == 1 and memory.missing(one, 1) == 0


@KINDS
def test_a_refused_growth_changes_nothing(kind):
    memory, one = kind(3, 4), request("a", 4)
    admit(memory, one)
    assert memory.grow(one, 12) and not memory.grow(one, 13)
    assert len(one.table) == 3
    memory.release(one)
    one.computed = 0
    admit(memory, other := request("b", [9] * 8))
    admit(memory, one)
    before = list(one.table), list(memory.free)
    assert not memory.grow(one, 5)
    assert (list(one.table), list(memory.free)) == before and len(other.table) == 2
    memory.check()


@KINDS
def test_admission_asks_for_the_whole_text_and_leaves_free_what_it_is_told_to(kind):
    memory = kind(4, 4)
    assert not memory.admit(request("a", 17)) and not memory.holders
    assert not memory.admit(request("a", 13), kept_free=1) and not memory.holders
    assert memory.admit(request("a", 12), kept_free=1)
    assert memory.admit(request("b", 13))  # nothing is taken before `grow`
    assert memory.admit(request("c", 99), kept_free=-inf)  # whatever is free
    assert list(memory.holders) == ["a", "b", "c"] and len(memory.free) == 4


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


@KINDS
def test_the_least_recently_freed_block_goes_first_and_of_one_text_its_end(kind):
    memory = kind(5, 4)
    a, b = admit(memory, request("a", 8)), admit(memory, request("b", [9] * 8))
    memory.release(b)
    memory.release(a)
    assert list(memory.free) == [4, 3, 2, 1, 0]


@KINDS
def test_release_is_idempotent_and_leaves_namesakes_and_strangers_alone(kind):
    memory = kind(4, 4)
    a = admit(memory, request("a", 8))
    for stranger in (request("a", 8), request("b", 8)):
        memory.release(stranger)
        memory.check()
    assert list(memory.holders) == ["a"] and len(a.table) == 2
    memory.release(a)
    memory.release(a)
    memory.check()
    assert a.table == [] and not memory.holders and len(memory.free) == 4


def test_without_the_cache_nothing_is_found_again():
    memory = Blocks(8, 4)
    memory.release(admit(memory, request("a", 8)))
    b = request("b", 8)
    assert memory.admit(b) and b.computed == 0 and b.table == []


# any order of events


class BlocksMachine(RuleBasedStateMachine):
    """Takes in, grows, computes (with guesses that turn out wrong), preempts and ends, beside plain bookkeeping."""

    @initialize(
        n_blocks=st.integers(1, 9), block_size=st.sampled_from(SIZES), caching=st.booleans(), seed=st.integers(0, 99)
    )
    def build(self, n_blocks, block_size, caching, seed):
        self.memory = (CachedBlocks if caching else Blocks)(n_blocks, block_size)
        self.size, self.caching = block_size, caching
        self.arena = Arena(n_blocks * block_size)
        rng = random.Random(seed)
        self.bases = [[rng.randrange(2) for _ in range(4 * block_size + 8)] for _ in range(2)]
        self.free = list(range(n_blocks))  # least recently freed first
        self.cache: dict[int, int] = {}  # text up to the end of a full block -> the block
        self.filed: dict[Request, int] = {}  # how many of its blocks were looked at for the cache
        self.held: dict[Request, list[int]] = {}
        self.out: list[Request] = []  # preempted
        self.names = count()

    def users(self, block: int) -> int:
        return sum(block in table for table in self.held.values())

    def file(self):
        """The blocks that have become full, of those that hold any in the order in which they came: the first of a text
        is the one that is found."""
        for one, table in self.held.items():
            texts, full = self.arena.texts(one.tokens), one.computed // self.size
            for index in range(self.filed.get(one, 0), full):
                if self.caching:
                    self.cache.setdefault(texts[(index + 1) * self.size - 1], table[index])
            self.filed[one] = full

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
        kept_free = data.draw(st.sampled_from([0, 0, 0, 1, -inf]))
        self.file()
        hit = self.hit(one)
        assert len(hit) <= (len(one.tokens) - 1) // self.size
        fresh = -(-len(one.tokens) // self.size) - len(hit)
        fits = fresh + kept_free + sum(not self.users(block) for block in hit) <= len(self.free)
        assert self.memory.admit(one, kept_free) == fits
        if fits:
            assert one.computed == len(hit) * self.size
            self.held[one] = hit
            self.filed[one] = 0
            self.free = [block for block in self.free if block not in hit]
        else:
            assert one.table == [] and one.computed == 0
            self.out.append(one)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def grow(self, data):
        one = data.draw(st.sampled_from(list(self.held)))
        self.give(one, data.draw(st.integers(1, len(one.tokens) + self.size)))

    def give(self, one: Request, n_slots: int) -> bool:
        table = self.held[one]
        if one.computed // self.size > self.filed[one]:
            self.file()
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
    @rule(
        data=st.data(), guesses=st.lists(st.integers(0, 2), max_size=3), right=st.integers(0, 3), between=st.booleans()
    )
    def compute(self, data, guesses, right, between):
        """A chunk, or all of the rest; then a token, and as many guesses as were right. between: another request comes
        or goes while the iteration runs, so that blocks are looked at for the cache."""
        one = data.draw(st.sampled_from(list(self.held)))
        open_tokens = len(one.tokens) - one.computed
        n_tokens = data.draw(st.sampled_from([open_tokens, max(1, open_tokens // 2), 1]))
        guesses = guesses if n_tokens == open_tokens else []
        since, end = one.computed, one.computed + n_tokens + len(guesses)
        if not self.give(one, end):
            return
        one.tokens += guesses
        texts = self.arena.texts(one.tokens)
        for position, slot in zip(range(since, end), self.memory.slots(one, since, end), strict=True):
            assert slot == self.held[one][position // self.size] * self.size + position % self.size
            self.arena.kv[slot] = texts[position]
        if between and self.caching:
            self.file()
            self.memory.file_full_blocks()
        del one.tokens[len(one.tokens) - len(guesses) :]
        one.computed = end
        if n_tokens == open_tokens:
            right = min(right, len(guesses))
            one.tokens += [*guesses[:right], data.draw(st.integers(0, 2))]
            one.computed -= len(guesses) - right

    @precondition(lambda self: self.held)
    @rule(data=st.data(), preempt=st.booleans())
    def leave(self, data, preempt):
        one = data.draw(st.sampled_from(list(self.held)))
        self.file()
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
        assert memory.references == users if self.caching else max(users) <= 1
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


@KINDS
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.sampled_from([1, 2, 8]), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_when_all_have_left_every_block_is_free(kind, lengths, block_size, seed):
    memory, held = kind(40, block_size), []
    for number, length in enumerate(lengths):
        one = request(f"r{number}", length)
        if memory.admit(one):
            assert memory.grow(one, length)
            one.computed = length
            held.append(one)
    random.Random(seed).shuffle(held)
    for one in held:
        memory.release(one)
    memory.check()
    assert len(memory.free) == 40 and memory.holdings() == {}


# check


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
def test_check_sees(corrupt):
    memory = Blocks(8, 4)
    a, b = admit(memory, request("a", 9)), admit(memory, request("b", 9))
    memory.check()
    corrupt(memory, a, b)
    with pytest.raises(AssertionError):
        memory.check()
