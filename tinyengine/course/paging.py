"""What exercises 04 need: pools of blocks played step by step, schedulers of blocks under watch, K/V in blocks for
attention, and ways to run an answer in the real engine."""

from functools import cache
from hashlib import blake2b
from itertools import accumulate, chain
from unittest.mock import patch

import torch

from tinyengine.attention import paged_attention
from tinyengine.course import tiles
from tinyengine.course.checks import ends, quote
from tinyengine.course.plugged import plugged
from tinyengine.course.watch import Halt, Watch, guarded, serve, some
from tinyengine.memory import Blocks
from tinyengine.metrics import measure
from tinyengine.model.load import load_model
from tinyengine.request import Request, SamplingParams
from tinyengine.workload import chat, workload

SIZE = 4  # slots of a block


@cache
def tiny():
    return load_model("tiny", device="cpu")


def engine(num_slots: int = 128, max_num_seqs: int = 4, **parts):
    """The real engine, stage paged, with these parts of the learner's: MyBlocks, MyPaged or paged_attention."""
    return plugged(tiny(), "paged", parts, max_num_seqs=max_num_seqs, num_slots=num_slots, block_size=8)


def answers(questions, views=(), num_slots: int = 128, max_tokens: int = 48, **parts):
    """Prints what the real engine answers with these parts of the learner's, and what that took; gives the run as a
    picture of these views, opened where a request was preempted, or else in the middle."""
    from visualizers import show

    made, params = engine(num_slots, **parts), SamplingParams(max_tokens=max_tokens)
    prompts = [chat(question) for question in questions]
    outputs = made.generate(prompts, params)
    alone = [engine(num_slots).generate([prompt], params)[0].token_ids for prompt in prompts]
    for output in outputs:
        print(output.text)
    print(f"same texts as alone: {'yes' if [output.token_ids for output in outputs] == alone else 'no'}")
    trace, m = made.trace, measure(made.trace)
    wants = sum(len(output.prompt_token_ids) + max_tokens for output in outputs)
    each = [[own.ranges for own in step.memory.values()] for step in trace.iterations]
    held = max(sum(end - first for first, end in chain(*step)) for step in each)
    print(f"for all of them at once, selective would hold {wants} K/V slots, yours at most {held} of {num_slots}")
    again = f"{some(m.preemptions, 'preemption')}, {some(m.recomputed_tokens, 'token')} computed twice"
    print(f"{some(m.iterations, 'iteration')}, {again}")
    if not views:
        return None
    preempted = [event.iteration + 1 for event in trace.events if event.kind == "preempt"]
    middle = (len(trace.iterations) + 1) // 2
    return show(trace, views=views, iteration=next(iter(preempted), middle))


def served(**parts) -> list[list[int]]:
    """The tokens of the course's eight requests, in an arena that is too small for all of them."""
    return [output.token_ids for output in workload("course").replay(engine(**parts))]


# 4.1


def need_own(name: str):
    def package(*_, **__):
        raise RuntimeError(f"you call the package's own {name}: write yours")

    return package


class Played:
    """One pool under watch. case: (steps, n_blocks); a step is ("grow", name, n_slots) or ("end", name).

    faults: {rule: the sentence}, of the step at which the run ended. seen: what each step left.
    """

    rules = {
        "grants": "a request gets what it lacks, if enough blocks are free",
        "books": "each block is free or in one table, and free ones are given",
        "refused": "a request that is refused keeps what it has, and nothing else changes",
        "end": "the blocks of a request that has ended are free again",
    }

    def __init__(self, blocks_class, case: tuple):
        steps, n_blocks = case
        self.faults, self.seen, self.requests = {}, [], {}
        own = {name: need_own(name) for name in ("take", "grow", "release")}
        self.memory = blocks_class(n_blocks, SIZE)
        with patch.multiple(Blocks, **own):
            try:
                for kind, name, *n_slots in steps:
                    self._grow(name, *n_slots) if kind == "grow" else self._end(name)
            except Halt:
                pass

    def _stop(self, rule: str, sentence: str) -> None:
        self.faults.setdefault(rule, sentence)
        raise Halt

    def _grow(self, name: str, n_slots: int) -> None:
        memory = self.memory
        if name not in self.requests:
            self.requests[name] = memory.holders[name] = Request(name, [1], SamplingParams(max_tokens=99))
        request = self.requests[name]
        had, free = list(request.table), list(memory.free)
        lacks = max(0, -(-n_slots // SIZE) - len(had))
        told = f"{name} has {some(len(had), 'block')} and grows to {some(n_slots, 'slot')}, {len(free)} free"
        granted = ends(memory.grow, request, n_slots)
        self.seen.append([told, bool(granted), quote(request.table), quote(list(memory.free))])
        self._look(told)
        gained = len(request.table) - len(had)
        if list(request.table[: len(had)]) != had:
            self._stop("books", f"{told}: its table was {had} and is {quote(request.table)}; what it had must stay")
        if not granted:
            if lacks <= len(free):
                self._stop("grants", f"{told}: you refuse" + (" (it gave None)" if granted is None else ""))
            if gained or list(memory.free) != free:
                self._stop("refused", f"{told}: you refuse, and it has {some(gained, 'block')} more")
        elif gained != lacks:
            rule = "refused" if lacks > len(free) else "grants"
            self._stop(rule, f"{told}: you grant it and give {some(gained, 'block')}")

    def _end(self, name: str) -> None:
        request = self.requests[name]
        held = list(request.table)
        told = f"{name} ends with {some(len(held), 'block')}"
        for again in ("", ", twice"):  # a request that holds none is left as it is
            ends(self.memory.release, request)
            self.seen.append([told + again, quote(request.table), quote(list(self.memory.free))])
            self._look(told + again, "end")
        if request.table or not set(held) <= set(self.memory.free):
            free = quote(list(self.memory.free))
            self._stop("end", f"{told}: its table is {quote(request.table)}, and {free} are free")
        if name in self.memory.holders:
            self._stop("end", f"{told}, and self.holders still has it")
        del self.requests[name]

    def _look(self, told: str, rule: str = "books") -> None:
        """Every block is free or in one table."""
        memory = self.memory
        tables = [request.table for request in self.requests.values()]
        if not all(isinstance(table, list) for table in tables):
            odd = next(table for table in tables if not isinstance(table, list))
            self._stop(rule, f"{told}: then a table is {quote(odd)}, where a list of block numbers is needed")
        every = [*memory.free, *(block for table in tables for block in table)]
        if len(every) > len(set(map(str, every))):
            twice = next(block for block in every if every.count(block) > 1)
            self._stop(rule, f"{told}: then block {quote(twice)} is there twice (free: {quote(list(memory.free))})")
        if any(not isinstance(block, int) for block in every) or sorted(every) != list(range(memory.n_blocks)):
            self._stop(rule, f"{told}: then {len(every)} of {memory.n_blocks} blocks are free or in a table")


def show_pool(blocks_class, steps, n_blocks: int = 8) -> None:
    """Prints what each step leaves, and the first broken rule."""
    played = Played(blocks_class, (steps, n_blocks))
    for told, *left in played.seen:
        print(f"{told:48} -> {', '.join(map(str, left))}")
    print(next(iter(played.faults.values()), "no rule is broken"))


# 4.3

# name: ((new rows, keys), ...) of each request, in blocks of 4
SIZES = {
    "decodes, one block each": ((1, 3), (1, 4), (1, 1)),
    "decodes, several blocks": ((1, 10), (1, 7), (1, 13)),
    "prompts": ((5, 5), (9, 9)),
    "everything at once": ((1, 10), (3, 11), (6, 6), (1, 2)),
    "large scores": ((1, 9), (4, 12)),
}
LARGE = 40  # times the queries there: some score is more than 88, whose exp() no float32 holds


class Pages(torch.Tensor):
    """An arena that notes the most numbers that were copied out of it at once."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        source = next((arg for arg in args if isinstance(arg, Pages)), None)
        out = super().__torch_function__(func, types, args, kwargs or {})
        if source is None or not isinstance(out, Pages):
            return out
        is_view = out.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
        out.notes, out.one = source.notes, source.one
        if not is_view:
            source.notes.append(out.numel())
        return out if is_view and out.numel() > source.one else out.as_subclass(torch.Tensor)


def sizes_of(case):
    return SIZES[case] if isinstance(case, str) else case


def over_blocks(case, watched: bool = False):
    """(q, keys, values, cu_seqlens_q, seqused_k, block_table) of a case: 4 heads of queries, 2 of keys and values, in
    scattered blocks. What no request owns is NaN."""
    sizes = sizes_of(case)
    random = torch.Generator().manual_seed(sum(10 * length + n for n, length in sizes))
    counts = [-(-length // SIZE) for _, length in sizes]
    n_blocks, most = sum(counts) + 3, max(counts) + 1
    order = torch.randperm(n_blocks, generator=random).tolist()
    arena = torch.full((2, n_blocks, SIZE, 2, 8), torch.nan)
    tables = []
    for (_, length), count in zip(sizes, counts):
        own, order = order[:count], order[count:]
        tables.append(own + [order[-1]] * (most - count))
        for position in range(length):
            arena[:, own[position // SIZE], position % SIZE] = torch.randn(2, 2, 8, generator=random)
    starts = [0, *accumulate(n for n, _ in sizes)]
    q = torch.randn(starts[-1], 4, 8, generator=random) * (LARGE if case == "large scores" else 1)
    lengths = [length for _, length in sizes]
    if watched:
        arena = arena.as_subclass(Pages)
        arena.notes, arena.one = [], SIZE * 2 * 8
    return q, arena[0], arena[1], torch.tensor(starts), torch.tensor(lengths), torch.tensor(tables)


def attended(answer, case):
    """(what the answer gives, the most blocks that it copied at once)"""
    arguments = over_blocks(case, watched=True)
    out = ends(answer, *arguments)
    if out is None:
        return None
    out = out.as_subclass(torch.Tensor) if isinstance(out, torch.Tensor) else out
    return out, max(arguments[1].notes, default=0) // arguments[1].one


def digest(got):
    """A few rounded numbers of each row, which another order of adding up does not change."""
    out, most = got
    if not isinstance(out, torch.Tensor):
        return [quote(out), most]
    return [list(out.shape), most > 1, [round(row.sum().item(), 2) for row in out]]


# 4.4


class Pool(Blocks):
    """Blocks for a scheduler under watch. note(rule, sentence) hears of a wrong question."""

    def __init__(self, n_blocks: int, note):
        super().__init__(n_blocks, SIZE)
        self.note, self.joined = note, set()  # joined: who was admitted in this iteration

    def admit(self, request, kept_free=0):
        granted = self._is_request("admit", request) and super().admit(request, kept_free)
        if granted:
            self.joined.add(request.request_id)
        return granted

    def grow(self, request, n_slots):
        return self._is_request("grow", request) and super().grow(request, n_slots)

    def release(self, request):
        if self._is_request("release", request) and request.request_id in self.joined:
            told = "joins and is preempted in the same iteration: those that run come first"
            self.note("order", f"{request.request_id} {told}")
        super().release(request)

    def fits(self, request: Request) -> bool:
        return self.blocks(len(request.tokens)) <= len(self.free)

    def _is_request(self, name: str, request) -> bool:
        if not isinstance(request, Request):
            self.note("plan", f"memory.{name}() is given a {type(request).__name__}, but a request is needed")
            raise Halt
        return True


class Paging(Watch):
    """One run of a scheduler of blocks. case: (sizes, max_num_seqs, n_blocks), blocks of 4 slots."""

    rules = {
        "plan": "every plan serves each running request with its gap",
        "size": "the batch never exceeds max_num_seqs",
        "memory": "a request that runs has the blocks of all its tokens, and no more; one that waits has none",
        "victim": "where a block is missing, the newest request is preempted, and no more than needed",
        "order": "first come, first served",
    }
    forbidden = ()
    _ran = frozenset()

    def __init__(self, scheduler_class, case: tuple, named=None):
        self._lengths = {}  # by id: tokens that the request must have by now
        super().__init__(scheduler_class, case, named)

    def arena(self, n_slots: int):
        return Pool(n_slots, self.note)

    def look(self, scheduler, queue, ran, plan) -> None:
        for request in ran:
            if not (request.finished or request in scheduler.running or request in scheduler.waiting):
                self.note("plan", f"{request.request_id} is lost: it ran, and now neither runs nor waits")
        for request in [*scheduler.running, *scheduler.waiting]:
            name, expected = request.request_id, self._lengths.get(request.request_id, request.num_prompt_tokens)
            if len(request.tokens) != expected:
                self.note("plan", f"{name} has {some(len(request.tokens), 'token')}, and it had {expected}")
        super().look(scheduler, queue, ran, plan)
        self.memory.joined.clear()
        self._lengths |= {request.request_id: len(request.tokens) + (n == request.gap) for request, n in plan}
        self.look_at_victims(ran, list(scheduler.running), list(scheduler.waiting))

    def look_at_memory(self, waiting, running) -> None:
        for request in running:
            has, needs = len(request.table), self.memory.blocks(len(request.tokens))
            name = request.request_id
            if has < needs:
                self.note("memory", f"{name} runs with {some(has, 'block')} for {some(len(request.tokens), 'token')}")
            elif has > needs:
                self.note("memory", f"{name} holds {some(has, 'block')} for {some(len(request.tokens), 'token')}")
            if name not in self.memory.holders:
                self.note("memory", f"{name} runs, and memory.admit() was not asked: its blocks never come back")
        self.look_at_books(waiting)

    def look_at_books(self, waiting) -> None:
        """Who waits has no memory, and each block is free or in one table. Raises Halt where memory is wrong."""
        for request in waiting:
            if request.table or request.request_id in self.memory.holders:
                self.note("memory", f"{request.request_id} waits, and still has memory")
            if request.computed:
                told = f"its `computed` is {request.computed}"
                self.note("memory", f"{request.request_id} waits, and {told}, though its K/V are gone")
        try:
            self.memory.check()
        except AssertionError as error:
            self.note("memory", f"the pool's books are wrong: {error}")
        if "memory" in self.faults:
            raise Halt

    def look_at_victims(self, ran, running, waiting) -> None:
        """The newest gave way, as many as had to."""
        back = next((request for request in ran if request in running and request.gap > 1), None)
        if back:
            self.note("victim", f"{back.request_id} is preempted, and joins again in the same iteration")
        out = [request for request in ran if request in waiting]
        if not out:
            return
        stayed = [request for request in ran if request in running]
        names = ", ".join(request.request_id for request in out)
        newest = [request for request in stayed if self.place(request) > min(map(self.place, out))]
        if newest:
            self.note("victim", f"{names} is preempted, and {newest[0].request_id}, which is newer, runs on")
        last = min(out, key=self.place)
        lacks = [self.memory.blocks(len(request.tokens)) for request in [*stayed, last]]
        held = sum(len(request.table) for request in running if request not in stayed)
        if not newest and sum(lacks) + held <= self.memory.n_blocks:
            self.note("victim", f"{names} preempted, and there are blocks enough for {last.request_id}")

    def look_at_order(self, queue, waiting, running) -> None:
        """First come, first served, also for those that were preempted."""
        in_turn = sorted(waiting, key=self.place)
        if waiting != in_turn:
            names = ", ".join(request.request_id for request in waiting)
            rule = "who is preempted goes to the front, the others keep their place"
            self.note("order", f"the queue is now {names}: {rule}")
        for request in running:
            if request in queue and in_turn and self.place(in_turn[0]) < self.place(request):
                name = in_turn[0].request_id
                self.note("order", f"{request.request_id} joins, and {name}, which came first, waits")

    def look_at_joining(self, waiting, running, joined: int) -> None:
        """The first time that one more request could have joined is kept in `late`."""
        preempted = any(request.request_id in self._ran for request in waiting)
        self._ran = {request.request_id for request in running}
        if preempted or self.late or not waiting or len(running) == self.max_num_seqs:
            return
        if self.memory.fits(waiting[0]):
            name = waiting[0].request_id
            self.late = f"{self.here()}: {name} waits, while a batch slot and the blocks for it are free"
            self.when["late"] = len(self.plans) + 1


def show_schedule(scheduler_class, sizes, n_blocks: int, max_num_seqs: int, iteration: int = 1):
    """Prints the plan of each iteration of a run with dummy tokens; gives the run as a picture."""
    from visualizers import show

    trace = serve(guarded(scheduler_class(Blocks(n_blocks, SIZE), max_num_seqs)), sizes)
    for number, step in enumerate(trace.iterations, 1):
        print(f"{number:3}: {', '.join(f'({span.request_id}, {span.n_tokens})' for span in step.spans)}")
    return show(trace, views=("slots", "memory"), iteration=min(iteration, len(trace.iterations)))


def draw_cases(random, number: int = 4) -> list[tuple]:
    """Cases of 3 to 7 requests, in a pool that is too small for them."""
    cases = []
    for _ in range(number):
        sizes = [(random.randint(1, 9), random.randint(1, 12)) for _ in range(random.randint(3, 7))]
        largest = max(-(-(sum(size) - 1) // SIZE) for size in sizes)
        cases.append((sizes, random.randint(2, 4), random.randint(largest, 2 * largest)))
    return cases


# 4.5


def show_kernel(kernel) -> None:
    """Prints how far a kernel is from the definition, for requests of 10 and of 3 tokens."""
    if tiles.missing():
        print(tiles.missing())
        return
    q, keys, values, starts, lengths, table = over_blocks(((1, 10), (1, 3)))
    out = tiles.decode(q, keys, values, lengths, table, kernel=kernel)
    gap = (out - paged_attention(q, keys, values, starts, lengths, table)).abs().amax(-1)
    for tokens, heads in zip(lengths.tolist(), gap.tolist()):
        print(f"{tokens:2} tokens: each head is off by {', '.join(f'{by:.2g}' for by in heads)}")


# 4.6


def fingerprint(before: bytes, tokens) -> bytes:
    """A hash of these tokens behind the text whose hash is `before`; b"" where nothing stands before."""
    return blake2b(before + b",".join(str(int(token)).encode() for token in tokens), digest_size=8).digest()
