"""Runs a scheduler without a model, and judges every step: what a plan may hold, which request may be admitted or
preempted, and that each reads the K/V of its own text, whatever block they lie in."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tinyengine.clock import IterationClock
from tinyengine.extras import assemble
from tinyengine.memory import Blocks
from tinyengine.metrics import measure
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.request import Request, SamplingParams
from tinyengine.sampler import accept
from tinyengine.scheduler import Chunked, Paged
from tinyengine.trace import Trace

EOS = 3


def requests_in(memory: Blocks) -> list[str]:
    """The tables of a memory that know a request, by its id."""
    memory.holdings()  # brings what is kept for the next one up to date
    tables = {name: table for name, table in vars(memory).items() if isinstance(table, dict)}
    return [name for name, table in tables.items() if any(isinstance(key, str) for key in table)]


class Arena:
    """Which text each slot's K/V belong to. A text is a node of a trie, so that equal prefixes are equal."""

    def __init__(self, n_slots: int):
        self.kv: list[int | None] = [None] * n_slots
        self.nodes: dict[tuple[int, int], int] = {}

    def texts(self, tokens: list[int]) -> list[int]:
        """The nodes of tokens[:1], tokens[:2], ..."""
        node, found = 0, []
        for token in tokens:
            node = self.nodes.setdefault((node, token), len(self.nodes) + 1)
            found.append(node)
        return found


def next_token(text: list[int]) -> int:
    """The "model": a text goes on as it did four tokens ago, but for a surprise now and then."""
    if len(text) % 7 == 6 or len(text) < 4:
        return (text[-1] + len(text)) % 4
    return text[-4]


def alone(request: Request) -> list[int]:
    """The output that a request would have if it were served alone."""
    text, params = list(request.prompt_token_ids), request.params
    while True:
        text.append(next_token(text))
        ended = text[-1] == EOS and EOS in request.eos_token_ids and not params.ignore_eos
        if ended or len(text) - len(request.prompt_token_ids) == params.max_tokens:
            return text[len(request.prompt_token_ids) :]


def make(number: int, prompt: int | list[int], output: int, eos: tuple[int, ...] = (), **fields) -> Request:
    tokens = [(number + place) % 4 for place in range(prompt)] if isinstance(prompt, int) else prompt
    return Request(f"r{number}", tokens, SamplingParams(max_tokens=output), eos_token_ids=eos, **fields)


@st.composite
def workloads(draw, largest: int = 20):
    """(requests, when each comes, blocks, block size): down to the smallest arena that can hold the largest request."""
    block_size = draw(st.sampled_from([1, 2, 4, 8, 16, 64, 256]))
    requests = []
    for number in range(draw(st.integers(1, 7))):
        start, length = draw(st.integers(0, 3)), draw(st.integers(0, largest))
        prompt = [(start + place) % 4 for place in range(length)] + draw(st.lists(st.integers(0, 2), max_size=3))
        output, eos = draw(st.integers(1, 12)), draw(st.sampled_from([(), (), (EOS,)]))
        requests.append((number, prompt or [1], output, eos))
    largest = max(-(-(len(prompt) + output - 1) // block_size) for _, prompt, output, _ in requests)
    n_blocks = largest + draw(st.sampled_from([0, 0, 1, 2, largest, 20]))
    arrivals = sorted(draw(st.lists(st.integers(0, 9), min_size=len(requests), max_size=len(requests))))
    return requests, arrivals, n_blocks, block_size


def n_sure_of(plan) -> int:
    """Tokens of the plan that are no guesses."""
    return sum(n_tokens - request.guesses for request, n_tokens in plan)


def sure(request: Request) -> int:
    """How many tokens it has, but for those that are only guessed."""
    return len(request.tokens) - request.guesses


@dataclass
class Step:
    """One iteration, as it was planned. rows: (request id, n_tokens, of which guesses), in plan order."""

    rows: list[tuple[str, int, int]]
    admitted: list[str]
    preempted: list[str]
    prompts: set[str]  # of the plan: those that had more than their newest token to compute
    could: tuple[bool, bool]  # of those that ran before and still do: did any prefill, did any decode?
    budget: int | None

    @property
    def n_tokens(self) -> int:
        return sum(n_tokens for _, n_tokens, _ in self.rows)

    @property
    def plan(self) -> list[tuple[str, int]]:
        return [(name, n_tokens) for name, n_tokens, _ in self.rows]


@dataclass
class Drive:
    """The loop. `steps` is what happened; every rule is asserted on the way."""

    scheduler: Paged
    steps: list[Step] = field(default_factory=list)
    events: list[tuple[int, str, str]] = field(default_factory=list)  # (iteration, admit or preempt, request id)
    cached: int = 0

    def __post_init__(self):
        memory = self.memory = self.scheduler.memory
        self.arena = Arena(memory.n_slots)
        self.clock = IterationClock()
        self.trace = Trace.of("test", self.scheduler)
        self.requests: list[Request] = []
        self.queues: list[tuple[str, ...]] = []  # what waited in each iteration
        self.caching = isinstance(memory, CachedBlocks)
        self.by_priority = getattr(self.scheduler, "policy", "fcfs") == "priority"
        self.chunking, self.mixing = (getattr(self.scheduler, name, True) for name in ("chunking", "mixing"))
        self.guesses = getattr(self.scheduler, "num_speculative_tokens", 0)

    def urgency(self, request: Request) -> tuple:
        """The order in which requests are served, said once more."""
        order = self.requests.index(request)
        if not self.by_priority:
            return (order,)
        due = request.arrival + request.slo.ttft if request.slo.ttft else float("inf")
        return request.priority, due, request.arrival, order

    def add(self, *requests: Request) -> "Drive":
        for request in requests:
            self.scheduler.add(request)
            self.trace.arrive(request)
            self.requests.append(request)
        return self

    def abort(self, request: Request):
        self.scheduler.abort(request)
        self.trace.event("abort", request.request_id)
        self.memory.check()

    def step(self) -> Step:
        scheduler, memory = self.scheduler, self.memory
        running = [(request, len(request.table)) for request in scheduler.running]
        waiting, budget, held = list(scheduler.waiting), scheduler.token_budget, list(memory.holders)
        self.trace.hold(memory.holders)
        plan = scheduler.schedule()
        memory.check()
        step = self.judge(plan, running, waiting, budget)
        now = len(self.trace.iterations)  # the last one that was admitted is the first one that is preempted
        self.events += [(now, "preempt", name) for name in reversed(held) if name in step.preempted]
        self.events += [(now, "admit", name) for name in memory.holders if name in step.admitted]
        self.queues.append(tuple(request.request_id for request in scheduler.waiting))
        tokens = [self.forward(request, n_tokens) for request, n_tokens in plan]
        started = self.clock.now()
        self.clock.iteration_done()
        self.trace.record(plan, tokens, memory, time=started, duration=1.0, budget=step.budget)
        for request, _, reason in scheduler.commit(plan, tokens):
            if reason:
                self.trace.event("finish", request.request_id, reason)
        scheduler.observe(step.n_tokens, 1.0)
        memory.check()
        for request, _ in plan:  # what was guessed wrong is not counted
            assert request.finished or request.computed == len(request.tokens) - 1 or request.gap > 1
            assert request.guesses == 0
        self.steps.append(step)
        return step

    def run(self, later: tuple[tuple[int, Request], ...] = ()) -> "Drive":
        """Until all have ended. later: (before which iteration, request) to add. Every request can be thrown back once
        for each that is served before it, and moves on in every second iteration where prompts and decodes take turns.
        """
        everyone = self.requests + [request for _, request in later]
        bound = 2 * len(everyone) * sum(request.max_slots for request in everyone) + sum(when for when, _ in later)
        for iteration in range(bound + 1):
            self.add(*(request for when, request in later if when == iteration))
            if self.scheduler.has_unfinished():
                self.step()
            elif iteration >= max((when for when, _ in later), default=0):
                break
        assert not self.scheduler.has_unfinished(), f"not ended after {bound} iterations"
        self.at_the_end()
        return self

    def forward(self, request: Request, n_tokens: int) -> int | list[int] | None:
        """Writes the K/V of the planned tokens, reads all that come before them, and chooses what comes next."""
        text, first, end = request.tokens, request.computed, request.computed + n_tokens
        texts = self.arena.texts(text[:end])
        for position, slot in zip(range(first, end), self.memory.slots(request, first, end), strict=True):
            self.arena.kv[slot] = texts[position]
        seen = [self.arena.kv[slot] for slot in self.memory.slots(request, 0, end)]
        assert seen == texts, f"{request.request_id} reads K/V that are not its own"
        if end < len(text):
            return None
        chosen = [next_token(text[:place]) for place in range(sure(request), len(text) + 1)]
        return accept(request, chosen) if request.guesses else chosen[0]

    def judge(self, plan, running, waiting, budget) -> Step:
        scheduler = self.scheduler
        before = [request for request, _ in running]
        admitted = [request for request in waiting if request in scheduler.running]
        preempted = [request for request in before if request not in scheduler.running]
        rest = [request for request in before if request in scheduler.running]
        prompts = {request.request_id for request, _ in plan if self.prefills(request)}
        could = tuple(any(self.prefills(request) is kind for request in rest) for kind in (True, False))
        self.judge_plan(plan, rest + admitted)
        self.judge_budget(plan, budget, rest, admitted, preempted)
        self.judge_queues(before, waiting, rest, admitted, preempted)
        self.judge_room(plan, budget, dict(running), admitted, preempted)
        if self.mixing and not self.caching and (budget is None or len(before) <= budget):
            self.judge_victims(dict(running), rest, preempted)
        for request in admitted:
            assert request.computed % self.memory.block_size == 0 and request.computed < len(request.tokens)
            assert request.computed == 0 or self.caching
            self.cached += request.computed
        rows = [(request.request_id, n_tokens, request.guesses) for request, n_tokens in plan]
        names = [[request.request_id for request in group] for group in (admitted, preempted)]
        return Step(rows, *names, prompts, could, budget)

    @property
    def whole(self) -> bool:
        """Whether a prompt is never cut."""
        return not isinstance(self.scheduler, Chunked) or not self.chunking

    def judge_plan(self, plan, in_order: list[Request]):
        scheduler, batch = self.scheduler, [request for request, _ in plan]
        assert plan, "idle while work waits"
        assert len(set(batch)) == len(batch) <= len(scheduler.running) <= scheduler.max_num_seqs
        assert set(batch) <= set(scheduler.running)
        assert batch == [request for request in in_order if request in batch], "those that run, then those that waited"
        for request, n_tokens in plan:
            assert 1 <= n_tokens <= request.gap
            assert n_tokens == request.gap or not self.whole
            assert request.computed + n_tokens <= len(request.table) * self.memory.block_size
            assert request.guesses <= self.guesses
            if request.guesses:
                assert n_tokens == request.gap == request.guesses + 1 and request.computed >= request.num_prompt_tokens
                assert len(request.tokens) < request.max_slots, "a guess past the end"

    def judge_budget(self, plan, budget, rest, admitted, preempted):
        batch, n_all, n_sure = [request for request, _ in plan], sum(n_tokens for _, n_tokens in plan), n_sure_of(plan)
        if budget is not None:
            past = [n_tokens for request, n_tokens in plan if self.whole and self.prefills(request)]
            assert n_all - sum(past) <= budget and n_all - (past[-1] if past else 0) < budget + (not past)
            if not self.whole and self.mixing and n_sure < budget and not preempted:
                assert batch == rest + admitted and all(n_tokens == request.gap for request, n_tokens in plan)
        if self.mixing and (budget is None or (not self.whole and budget >= len(rest))):
            assert set(rest) <= set(batch), "a request that runs stalls"

    def judge_queues(self, before, waiting, rest, admitted, preempted):
        """Which requests are admitted, and which are preempted."""
        for queue in (self.scheduler.running, list(self.scheduler.waiting)):
            assert queue == sorted(queue, key=self.urgency)
        assert preempted == before[len(rest) :], "the victims are those served last"
        assert admitted == waiting[: len(admitted)]
        assert not (preempted and admitted), "a request was admitted in a step that preempted"
        for request in (*self.scheduler.waiting,):
            assert request.computed == 0 and request.table == [] and request.guesses == 0

    def judge_room(self, plan, budget, tables: dict[Request, int], admitted, preempted):
        """That no more was let in than fits, and no less. tables: as in judge_victims."""
        scheduler, memory = self.scheduler, self.memory
        owed = sum(memory.missing(request, sure(request)) for request in scheduler.running)
        if admitted and not getattr(scheduler, "admit_first_chunk", False):
            assert owed <= len(memory.free), "more was let in than fits"
        if any(request.guesses for request, _ in plan):
            assert owed <= len(memory.free), "a guess took the block of a token"
        room = len(scheduler.running) < scheduler.max_num_seqs and (budget is None or n_sure_of(plan) < budget)
        if scheduler.waiting and not preempted and self.mixing and room and not self.caching:  # newcomers go first
            free = len(memory.free) + self.taken_for_guesses(tables, [request for request, _ in plan]) - owed
            assert memory.blocks(len(scheduler.waiting[0].tokens)) > free, "the head would fit"

    def taken_for_guesses(self, tables: dict[Request, int], batch: list[Request]) -> int:
        """Blocks that requests got in this step for nothing but guesses. tables: as in judge_victims."""
        held = {request: max(tables.get(request, 0), self.memory.blocks(sure(request))) for request in batch}
        return sum(max(0, len(request.table) - held[request]) for request in batch if request.guesses)

    def judge_victims(self, tables: dict[Request, int], rest: list[Request], preempted: list[Request]):
        """As many stay as can, each with its newest token, and guesses count for nothing. tables: how many blocks each
        had before the step, of those that ran."""
        if not preempted or any(self.prefills(request) for request in rest):
            return
        stays = len(rest) + 1  # would all of these have fit?
        batch = [*rest, *preempted]
        free = self.memory.n_blocks - sum(tables[request] for request in batch[:stays])
        wanted = [self.memory.blocks(sure(request)) - tables[request] for request in batch[:stays]]
        assert sum(max(0, blocks) for blocks in wanted) > free, f"{batch[stays - 1].request_id} was preempted for less"

    @staticmethod
    def prefills(request: Request) -> bool:
        return request.computed < request.num_prompt_tokens or request.computed < sure(request) - 1

    def at_the_end(self):
        memory, numbers = self.memory, measure(self.trace)
        assert len(memory.free) == memory.n_blocks and not requests_in(memory)
        for request in self.requests:
            if request.finish_reason != "abort":
                assert request.output_token_ids == alone(request), request.request_id
        seen = [(event.iteration, event.kind, event.request_id) for event in self.trace.events]
        assert [event for event in seen if event[1] in ("admit", "preempt")] == self.events
        assert list(self.trace.queues()) == self.queues
        assert numbers.preemptions == sum(len(step.preempted) for step in self.steps)
        assert numbers.cached_tokens == self.cached
        assert numbers.draft_tokens == sum(guesses for step in self.steps for *_, guesses in step.rows)
        aborted = any(request.finish_reason == "abort" for request in self.requests)
        if not numbers.preemptions and not aborted:  # every token but the last is computed once, or found, and no more
            wrong = numbers.draft_tokens - numbers.accepted_tokens
            tokens = sum(step.n_tokens for step in self.steps) - wrong + numbers.cached_tokens
            assert tokens == sum(len(request.tokens) - 1 for request in self.requests)
            assert numbers.recomputed_tokens == 0

    @property
    def metrics(self):
        return measure(self.trace)

    @property
    def preemptions(self) -> int:
        return self.metrics.preemptions

    def first_tokens(self) -> list[str]:
        """Request ids in the order of their first tokens; of those of one iteration, in plan order."""
        spans = [span for iteration in self.trace.iterations for span in iteration.spans if span.tokens]
        return list(dict.fromkeys(span.request_id for span in spans))


def paged(n_blocks: int, block_size: int = 4, max_num_seqs: int = 4, caching: bool = False, **options) -> Drive:
    return drive(Paged, n_blocks, caching, options, block_size=block_size, max_num_seqs=max_num_seqs)


def chunked(
    n_blocks: int, most: int, block_size: int = 4, max_num_seqs: int = 4, caching: bool = False, **options
) -> Drive:
    """most: max_num_batched_tokens."""
    sizes = {"block_size": block_size, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": most}
    return drive(Chunked, n_blocks, caching, options, **sizes)


def drive(kind: type[Paged], n_blocks: int, caching: bool, options: dict, *, block_size: int, **sizes) -> Drive:
    """Of a scheduler with the classes that its options ask for, and no others."""
    options = options | ({"enable_prefix_caching": True} if caching else {})
    return Drive(assemble(kind, Blocks, options, num_slots=n_blocks * block_size, block_size=block_size, **sizes))
