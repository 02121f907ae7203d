"""The event loop: the engine's step with a cost model in the model's place, and P pipeline stages."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import inf

from tinyengine.memory import Blocks, Holding, Slots
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Plan, Scheduler, Token
from tinyengine.simulate.cost import Cost, Load
from tinyengine.simulate.report import Report
from tinyengine.simulate.steady import Steady
from tinyengine.simulate.stretch import is_deaf, repeat, repeats
from tinyengine.speculate import Speculative
from tinyengine.trace import Trace
from tinyengine.workload import Job


class SimulatedRequest(Request):
    """A request of which only the sizes are known: every token is 0. It remembers when what happened to it.

    number: how many came before it. began: the start of the first iteration that had it. first, last: when its first
    and its newest token came. worst_gap: between two of its tokens.
    """

    max_slots = 0  # a number here, not a sum made anew

    def __init__(self, request_id: str, job: Job, number: int = 0):
        arrival, prompt, output, priority, slo = job
        if prompt < 1 or output < 1:
            raise ValueError(f"request {request_id!r} has {prompt} + {output} tokens, but at least 1 + 1 are needed")
        super().__init__(request_id, range(prompt), _params(output), arrival, priority, slo=slo)
        self.max_slots = prompt + output
        self.number = number
        self.began: float | None = None
        self.first: float | None = None
        self.last = 0.0
        self.worst_gap = 0.0

    def __post_init__(self):
        """A job's sizes need no check of each token, as the prompt of a user does."""
        self.tokens = [0] * len(self.prompt_token_ids)

    def reason_to_finish(self, length: int | None = None) -> str | None:
        """ "length", or None: there is no token 0 that ends a request sooner."""
        return "length" if (len(self.tokens) if length is None else length) >= self.max_slots else None

    @property
    def is_good(self) -> bool:
        """Whether a finished request got its first token and every later one as soon as was promised."""
        ttft, tbt = self.slo.ttft, self.slo.tbt
        return (ttft is None or self.first - self.arrival <= ttft) and (tbt is None or self.worst_gap <= tbt)


@lru_cache(maxsize=1 << 16)
def _params(output: int) -> SamplingParams:
    return SamplingParams(max_tokens=output, ignore_eos=True)


class Lane:
    """A scheduler, and the time from which it may plan again: when its newest batch has left the last stage.

    steady: the requests that it need not look at, if they may be set aside.
    """

    def __init__(self, scheduler: Scheduler, set_aside: bool):
        if isinstance(scheduler, Speculative) and scheduler.num_speculative_tokens:
            raise ValueError("num_speculative_tokens is set, but simulated tokens cannot be guessed: leave it at 0")
        if isinstance(scheduler.memory, CachedBlocks):
            raise ValueError("enable_prefix_caching is True, but simulated prompts have no tokens to share")
        self.scheduler = scheduler
        self.steady = Steady(scheduler, set_aside)
        self.ready = 0.0
        self.unfinished = 0


class Arenas:
    """The memories of all lanes in one trace: their arenas lie one behind the other in it."""

    def __init__(self, memories: list[Slots | Blocks]):
        self.memories = memories

    @property
    def holders(self) -> dict[str, Request]:
        if len(self.memories) == 1:
            return self.memories[0].holders
        return {key: request for memory in self.memories for key, request in memory.holders.items()}

    def holdings(self) -> dict[str, Holding]:
        if len(self.memories) == 1:
            return self.memories[0].holdings()
        found, offset = {}, 0
        for memory in self.memories:
            for key, held in memory.holdings().items():
                ranges = tuple((first + offset, past + offset) for first, past in held.ranges)
                found[key] = Holding(ranges, held.used)
            offset += memory.n_slots
        return found


class Simulator:
    """Runs jobs through schedulers under a virtual clock, which the cost model moves.

    schedulers: one, or one for each stage of the cost model's pipeline, each with a memory of its own: their batches
        are disjoint, as Orca's RUNNING state makes them, so that each stage can be at work on another one. A request
        goes to the scheduler with the fewest unfinished (vLLM's virtual engines).
    trace: records every iteration, as the engine does. Without it, and if `jump`, stretches of equal iterations are
        taken at once, and decodes that only go on are set aside: the result is the same, sooner.
    on_finish: called with each request that has ended.

    Raises ValueError for another number of schedulers than stages.
    """

    def __init__(
        self,
        schedulers: Scheduler | Sequence[Scheduler],
        cost: Cost,
        trace: Trace | None = None,
        jump: bool = True,
        on_finish: Callable[[SimulatedRequest], object] | None = None,
    ):
        schedulers = [schedulers] if isinstance(schedulers, Scheduler) else list(schedulers)
        if len(schedulers) != cost.stages:
            raise ValueError(
                f"there are {len(schedulers)} schedulers, but the pipeline has {cost.stages} stages: give one for each"
            )
        jump = jump and trace is None
        self.lanes = [Lane(scheduler, set_aside=jump) for scheduler in schedulers]
        self.cost = cost
        self.trace = trace
        self._memory = Arenas([scheduler.memory for scheduler in schedulers])  # as the trace sees it
        self.on_finish = on_finish
        self.report = Report(stages=cost.stages)
        self._jump = jump and cost.stages == 1
        self._free = [0.0] * cost.stages  # when each stage has done its newest batch
        self._awake = 0.0  # since when there is work: a stage that idles after that is a bubble
        self.name: Callable[[int], str] = "r{}".format  # the id of the n-th request

    def run(self, jobs: Iterable[Job]) -> Report:
        """Takes jobs, in order of arrival and one by one, and runs until all have ended.

        Raises ValueError for a job that arrives before the one ahead of it, and for one that fits into no memory;
        RuntimeError where a scheduler plans nothing though it has requests.
        """
        self._jobs = iter(jobs)
        self._next: Job | None = next(self._jobs, None)
        if self._next:
            self.report.started = self._next.arrival
        while self._step():
            pass
        return self.report

    def _step(self) -> bool:
        """One iteration of the lane that is ready first; False when nothing is left to do."""
        lane = min(self.lanes, key=lambda lane: lane.ready) if len(self.lanes) > 1 else self.lanes[0]
        if lane.ready == inf:
            return False
        now = max(lane.ready, self._free[0])
        self._receive(now)
        scheduler, steady = lane.scheduler, lane.steady
        steady.exchange(lane.ready)
        queued = len(scheduler.waiting)
        budget = scheduler.token_budget
        if self.trace is not None:
            self.trace.hold(self._memory.holders)
        plan = scheduler.schedule()
        if not plan and not steady.size:
            self._idle(lane)
            return True
        load, tokens, most, advance = self._look_at(plan, steady, now)
        if len(scheduler.waiting) > queued:
            self.report.preemptions += len(scheduler.waiting) - queued
        duration = self.cost.seconds(load)
        end = self._flow(now, duration)
        if self.trace is not None:
            self.trace.record(plan, tokens, self._memory, time=now, duration=end - now, budget=budget)
        scheduler.observe(load.tokens, end - now)
        self._count(load, duration, end)
        self._deliver(scheduler.commit(plan, tokens), lane, end)
        steady.advance(1, end - lane.ready)
        lane.ready = end
        if self._jump and (times := repeats(scheduler, plan, min(most, steady.until_next), queued, steady)):
            self._leap(lane, plan, load, advance, times)
        return True

    def _look_at(self, plan: Plan, steady: Steady, now: float) -> tuple[Load, list[int | None], float, Load]:
        """What the plan and the decodes set aside come to: the load; the plan's tokens, one for each request that is
        due; for how many more iterations none of its requests ends or comes to its prompt's last chunk; and what each
        of those would add to the load."""
        total = ones = steady.size
        contexts = steady.contexts
        pairs = reads = squares = longer = 0
        most = inf
        tokens: list[int | None] = []
        for request, n_tokens in plan:
            computed, known = request.computed, len(request.tokens)
            if request.began is None:
                request.began = now
                self.report.delay.add(now - request.arrival)
            total += n_tokens
            if n_tokens == 1:
                contexts += computed + 1
                ones += 1
            else:
                pairs += n_tokens * computed + n_tokens * (n_tokens + 1) // 2
                reads += computed + n_tokens
                squares += n_tokens * n_tokens
                longer += n_tokens
            left = known - computed - n_tokens
            if left:
                tokens.append(None)
                left = (left - 1) // n_tokens
            else:
                tokens.append(0)
                left = request.max_slots - known - 2 if n_tokens == 1 else 0
            if left < most:
                most = left
        load = Load(total, len(plan) + steady.size, contexts, pairs, reads)
        return load, tokens, most, Load(0, 0, ones, squares, longer)

    def _leap(self, lane: Lane, plan: Plan, load: Load, advance: Load, most: int):
        """Takes up to `most` iterations like the newest one at once; ends sooner where an arrival may change the plan.
        Every one of them is still priced by itself, since contexts grow."""
        arrival = inf if self._next is None or is_deaf(lane.scheduler, plan) else self._next.arrival
        decoding = [request for request, n_tokens in plan if len(request.tokens) - request.computed == n_tokens]
        due = len(decoding) + lane.steady.size
        seconds, gaps = self.cost.seconds, self.report.tbt
        tokens, sequences, contexts, pairs, reads = load
        _, _, more_contexts, more_pairs, more_reads = advance
        now, times, worst, busy, batch = lane.ready, 0, 0.0, self.report.busy, self.report.batch_seconds
        while times < most and now < arrival:
            contexts += more_contexts
            pairs += more_pairs
            reads += more_reads
            duration = seconds(Load(tokens, sequences, contexts, pairs, reads))
            end = now + duration
            gap = end - now
            if due:
                gaps.add(gap, due)
            if gap > worst:
                worst = gap
            busy += duration
            batch += sequences * duration
            now = end
            times += 1
        if not times:
            return
        for request in decoding:
            request.last = now
            if worst > request.worst_gap:
                request.worst_gap = worst
        repeat(lane.scheduler, plan, times)
        lane.steady.advance(times, worst)
        report = self.report
        report.busy, report.batch_seconds = busy, batch
        report.iterations += times
        report.jumped += times
        report.tokens += times * tokens
        report.output_tokens += times * due
        lane.ready = self._free[0] = report.ended = now

    def _receive(self, now: float):
        """Gives every job whose time has come to the lane with the fewest unfinished requests."""
        while self._next is not None and self._next.arrival <= now:
            job = self._next
            number = self.report.requests
            request = SimulatedRequest(self.name(number), job, number)
            if not any(lane.unfinished for lane in self.lanes):
                self._awake = job.arrival
            lane = min(self.lanes, key=lambda lane: lane.unfinished) if len(self.lanes) > 1 else self.lanes[0]
            lane.scheduler.add(request)
            lane.steady.meet(request)
            lane.unfinished += 1
            self.report.requests += 1
            if self.trace is not None:
                self.trace.arrive(request)
            self._next = next(self._jobs, None)
            if self._next is not None and self._next.arrival < job.arrival:
                raise ValueError(f"a job arrives at {self._next.arrival}, after one at {job.arrival}: sort them")

    def _idle(self, lane: Lane):
        scheduler = lane.scheduler
        if scheduler.has_unfinished():
            raise RuntimeError(
                f"{type(scheduler).__name__}.schedule() planned nothing, with {len(scheduler.waiting)} requests "
                f"waiting and {len(scheduler.running)} running: nothing could ever change that"
            )
        lane.ready = inf if self._next is None else self._next.arrival

    def _flow(self, now: float, duration: float) -> float:
        """Takes a batch through the stages, each of which has one batch at a time; returns when it leaves the last."""
        for stage, free in enumerate(self._free):
            idle = now - (free if free > self._awake else self._awake)
            if idle > 0:
                self.report.bubbles += idle
            now = (now if now > free else free) + duration
            self._free[stage] = now
        return now

    def _count(self, load: Load, duration: float, end: float):
        report = self.report
        report.iterations += 1
        report.tokens += load.tokens
        report.busy += duration
        report.batch_seconds += load.sequences * duration
        report.ended = end

    def _deliver(self, events: list[Token], lane: Lane, end: float):
        report = self.report
        previous, same = lane.ready, lane.steady.size  # most had their last token in this lane's iteration before
        for request, _, reason in events:
            if request.first is None:
                request.first = end
                report.ttft.add(end - request.arrival)
            else:
                gap = end - request.last
                if request.last == previous:
                    same += 1
                else:
                    report.tbt.add(gap)
                if gap > request.worst_gap:
                    request.worst_gap = gap
            request.last = end
            if reason:
                self._finish(request, reason, lane, end)
        report.output_tokens += len(events) + lane.steady.size
        if same:
            report.tbt.add(end - previous, same)

    def _finish(self, request: SimulatedRequest, reason: str, lane: Lane, end: float):
        lane.unfinished -= 1
        report = self.report
        report.finished += 1
        report.good += request.is_good
        report.e2e.add(end - request.arrival)
        report.worst_gap.add(request.worst_gap)
        if self.trace is not None:
            self.trace.event("finish", request.request_id, reason)
        if self.on_finish:
            self.on_finish(request)


def simulate(jobs: Iterable[Job], schedulers: Scheduler | Sequence[Scheduler], cost: Cost, **options) -> Report:
    """Runs the jobs to their end; options: those of Simulator."""
    return Simulator(schedulers, cost, **options).run(jobs)


def new_trace(stage: str, schedulers: Scheduler | Sequence[Scheduler]) -> Trace:
    """An empty trace of the schedulers' sizes, for Simulator(trace=...)."""
    schedulers = [schedulers] if isinstance(schedulers, Scheduler) else list(schedulers)
    trace = Trace.of(stage, schedulers[0])
    trace.max_num_seqs = sum(scheduler.max_num_seqs for scheduler in schedulers)
    trace.num_slots = sum(scheduler.memory.n_slots for scheduler in schedulers)
    return trace
