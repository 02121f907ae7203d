"""Runs a scheduler without a model, and judges every step: what a plan may hold, who may be let in or driven out, and
that each request reads the K/V of its own text, whatever block they lie in."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tinyengine.clock import IterationClock
from tinyengine.memory import Blocks
from tinyengine.metrics import measure
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import POLICIES, Chunked, Paged
from tinyengine.speculate import accept
from tinyengine.trace import Trace

EOS = 3


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


def urgency(scheduler: Paged, request: Request) -> tuple:
    """The order in which requests are served, said once more."""
    if scheduler.urgency is POLICIES["fcfs"]:
        return (request.order,)
    due = request.arrival + request.slo.ttft if request.slo.ttft else float("inf")
    return request.priority, due, request.arrival, request.order


@dataclass
class Step:
    """One iteration, as it was planned. rows: (request id, n_tokens, of which guesses), in plan order."""

    rows: list[tuple[str, int, int]]
    admitted: list[str]
    preempted: list[str]
    prompts: set[str]  # of the plan: who had more than its newest token to compute
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
        self.trace = Trace("test", self.scheduler.max_num_seqs, memory.n_slots, memory.block_size, memory.contiguous)
        self.requests: list[Request] = []

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
        waiting, budget = list(scheduler.waiting), scheduler.token_budget
        plan = scheduler.schedule()
        memory.check()
        step = self.judge(plan, running, waiting, budget)
        tokens = [self.forward(request, n_tokens) for request, n_tokens in plan]
        started = self.clock.now()
        self.clock.iteration_done()
        queue = tuple(request.request_id for request in scheduler.waiting)
        self.trace.record(
            plan, tokens, memory.holdings(), time=started, duration=1.0, waiting=queue, budget=step.budget
        )
        for request, _, reason in scheduler.commit(plan, tokens):
            if reason:
                self.trace.event("finish", request.request_id, reason)
        scheduler.observe(step.n_tokens, 1.0)
        memory.check()
        for request, _ in plan:  # what was guessed wrong is not counted
            assert request.finished or request.computed == len(request.tokens) - 1 or request.gap > 1
            assert request.draft == []
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
        text, first, end = request.tokens + request.draft, request.computed, request.computed + n_tokens
        texts = self.arena.texts(text[:end])
        for position, slot in zip(range(first, end), self.memory.slots(request, first, end), strict=True):
            self.arena.kv[slot] = texts[position]
        seen = [self.arena.kv[slot] for slot in self.memory.slots(request, 0, end)]
        assert seen == texts, f"{request.request_id} reads K/V that are not its own"
        if end < len(text):
            return None
        places = range(len(request.tokens), len(text) + 1)
        chosen = [next_token(text[:place]) for place in places]
        return accept(request, chosen) if request.draft else chosen[0]

    def judge(self, plan, running, waiting, budget) -> Step:
        scheduler, memory, size = self.scheduler, self.memory, self.memory.block_size
        batch = [request for request, _ in plan]
        before = [request for request, _ in running]
        admitted = [request for request in waiting if request in scheduler.running]
        preempted = [request for request in before if request not in scheduler.running]
        rest = [request for request in before if request in scheduler.running]
        whole = not isinstance(scheduler, Chunked) or not scheduler.chunking
        mixing = not isinstance(scheduler, Chunked) or scheduler.mixing
        assert plan, "idle while work waits"
        # the plan
        assert len(set(batch)) == len(batch) <= len(scheduler.running) <= scheduler.max_num_seqs
        assert set(batch) <= set(scheduler.running)
        assert batch == [r for r in rest if r in batch] + admitted, "those that run come first, then those that waited"
        n_all = sum(n_tokens for _, n_tokens in plan)
        for request, n_tokens in plan:
            assert 1 <= n_tokens <= request.gap
            assert n_tokens == request.gap or not whole
            assert request.computed + n_tokens <= len(request.table) * size
            assert len(request.draft) <= scheduler.num_speculative_tokens
            if request.draft:
                assert n_tokens == len(request.draft) + 1 and request.computed >= request.num_prompt_tokens
                assert len(request.tokens) + len(request.draft) < request.max_slots, "a guess past the end"
        prompts = {request.request_id for request, _ in plan if self.prefills(request)}
        could = tuple(any(self.prefills(request) is kind for request in rest) for kind in (True, False))
        # the budget
        if budget is not None:
            past = [n_tokens for request, n_tokens in plan if whole and request.request_id in prompts]
            assert n_all - sum(past) <= budget and n_all - (past[-1] if past else 0) < budget + (not past)
            if not whole and mixing and n_all < budget and not preempted:
                assert batch == rest + admitted and all(n_tokens == request.gap for request, n_tokens in plan)
        if mixing and (budget is None or (not whole and budget >= len(rest))):
            assert set(rest) <= set(batch), "somebody that runs stalls"
        # who is let in, and who is driven out
        for queue in (scheduler.running, list(scheduler.waiting)):
            assert queue == sorted(queue, key=lambda request: urgency(scheduler, request))
        assert preempted == before[len(rest) :], "the victims are those served last"
        assert admitted == waiting[: len(admitted)]
        assert not (preempted and admitted), "somebody was let in while somebody was driven out"
        for request in (*scheduler.waiting,):
            assert request.computed == 0 and request.table == [] and request.draft == []
        owed = sum(memory.missing(request, len(request.tokens)) for request in scheduler.running)
        if admitted and not getattr(scheduler, "admit_first_chunk", False):
            assert owed <= len(memory.free), "more was let in than fits"
        room = len(scheduler.running) < scheduler.max_num_seqs and (budget is None or n_all < budget)
        if scheduler.waiting and not preempted and mixing and room and not memory.enable_prefix_caching:
            assert memory.blocks(len(scheduler.waiting[0].tokens)) > len(memory.free) - owed, "the head would fit"
        if mixing and not memory.enable_prefix_caching and (budget is None or len(before) <= budget):
            self.judge_victims(dict(running), rest, preempted)
        now = len(self.trace.iterations)
        self.events += [(now, "preempt", request.request_id) for request in preempted]
        self.events += [(now, "admit", request.request_id) for request in admitted]
        for request in admitted:
            assert request.computed % size == 0 and request.computed < len(request.tokens)
            assert request.computed == 0 or memory.enable_prefix_caching
            self.cached += request.computed
        rows = [(request.request_id, n_tokens, len(request.draft)) for request, n_tokens in plan]
        names = [[request.request_id for request in group] for group in (admitted, preempted)]
        return Step(rows, *names, prompts, could, budget)

    def judge_victims(self, tables: dict[Request, int], rest: list[Request], preempted: list[Request]):
        """As many stay as can, each with its newest token, and guesses count for nothing. tables: how many blocks each
        had before the step, of those that ran."""
        if not preempted or any(self.prefills(request) for request in rest):
            return
        stays = len(rest) + 1  # would all of these have fit?
        batch = [*rest, *preempted]
        free = self.memory.n_blocks - sum(tables[request] for request in batch[:stays])
        wanted = [self.memory.blocks(len(request.tokens)) - tables[request] for request in batch[:stays]]
        assert sum(max(0, blocks) for blocks in wanted) > free, f"{batch[stays - 1].request_id} was driven out for less"

    @staticmethod
    def prefills(request: Request) -> bool:
        return request.computed < request.num_prompt_tokens or request.computed < len(request.tokens) - 1

    def at_the_end(self):
        memory, numbers = self.memory, measure(self.trace)
        assert len(memory.free) == memory.n_blocks and not memory.holders and not memory._chains
        for request in self.requests:
            if request.finish_reason != "abort":
                assert request.output_token_ids == alone(request), request.request_id
        seen = [(event.iteration, event.kind, event.request_id) for event in self.trace.events]
        assert [event for event in seen if event[1] in ("admit", "preempt")] == self.events
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
    return Drive(Paged(Blocks(n_blocks, block_size, caching), max_num_seqs, **options))


def chunked(
    n_blocks: int, most: int, block_size: int = 4, max_num_seqs: int = 4, caching: bool = False, **options
) -> Drive:
    """most: max_num_batched_tokens."""
    return Drive(Chunked(Blocks(n_blocks, block_size, caching), max_num_seqs, most, **options))
