"""The loop: schedule, run the model, sample, commit. A stage is a row of `STAGES`; the loop is the same for all."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from tqdm.auto import tqdm

from tinyengine import inputs
from tinyengine.arrivals import Arrivals
from tinyengine.attention import KVCache
from tinyengine.batch import Batch
from tinyengine.checks import check_fits
from tinyengine.clock import WallClock
from tinyengine.guard import Guard, whole
from tinyengine.inputs import Prompt
from tinyengine.outputs import Output, Outputs, StreamedToken
from tinyengine.qwen3 import Qwen3
from tinyengine.request import SamplingParams, Slo
from tinyengine.sampler import gumbel_max, sample
from tinyengine.scheduler import Plan, Scheduler, Tokens
from tinyengine.stages import STAGES, build
from tinyengine.stream import Stream
from tinyengine.trace import Iteration, Trace


class Engine:
    """Serves many requests with one model, for one thread at a time: a second one is refused with a RuntimeError.

    model: from load_model. Its weights must stay as they are while it serves: K/V of the old ones would meet the new.
    stage: a row of STAGES. scheduler: a scheduler instance to use in place of the stage's own, with its own memory.
    max_num_seqs: batch slots. max_num_batched_tokens: the token budget, of the stages that have one.
    num_slots: K/V slots of the arena; None estimates them from free device memory (CUDA) or CPU_KV_BYTES.
    block_size: slots of a block, of the stages that have blocks. clock: WallClock (seconds) or IterationClock.
    seed: for requests without one of their own. trace: "full", how many of the newest iterations to keep, or None.
    fast: True replaces layout, attention, operators, forward and draw by what tinyengine.fast has for this device.
        False runs them as they stand here, prints included. The tokens are the same as far as the logits agree.
    options: further ones of the stage (tinyengine.extras) and, with fast, of tinyengine.fast.accelerate.

    outputs: by request id; pop what you have read. An id is free again when its output was popped and the trace does
    not hold it. Raises ValueError for an unknown stage or option, or a number outside its limits.
    """

    def __init__(
        self,
        model: Qwen3,
        stage: str = "chunked",
        *,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        num_slots: int | None = None,
        block_size: int = 16,
        scheduler: Scheduler | None = None,
        clock: WallClock | None = None,
        seed: int = 0,
        trace: str | int | None = "full",
        fast: bool = True,
        **options,
    ):
        inputs.check_engine(model, stage, scheduler, clock, trace, fast, seed)
        sizes = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
        sizes |= dict(num_slots=inputs.check_sizes(model, num_slots, block_size, **sizes), block_size=block_size)
        extras, others = inputs.split_options(stage, options, scheduler, fast)
        inputs.check_memory(model, scheduler.memory.n_slots if scheduler else sizes["num_slots"])
        self.model = model
        self.scheduler = build(stage, extras, **sizes) if scheduler is None else scheduler
        self.memory = self.scheduler.memory
        kind, n_blocks = STAGES[stage][2], self.memory.n_slots // self.memory.block_size
        self.attention = kind(KVCache(model.config, n_blocks, self.memory.block_size, model.device, model.dtype))
        self.operators = self.attention.operators(model)
        self.draw = gumbel_max
        self.clock = clock or WallClock()
        self.trace = Trace.of(stage, self.scheduler, keep={"full": None, None: 0}.get(trace, trace))
        self.guard = Guard()
        self.outputs = Outputs(self.scheduler, self.trace, self.guard, model.tokenizer)
        self.arrivals = Arrivals()
        self._names, self._seeds = itertools.count(), random.Random(int(seed))
        if fast and (room := inputs.accelerations()):
            room.accelerate(self, **others)

    @whole
    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        arrival: float | None = None,
        priority: int = 0,
        slo: Slo | str | None = None,
    ) -> str:
        """Queues a prompt, text or token ids, and returns its request id.

        arrival: seconds on the engine's clock, now if None; a later one waits outside the scheduler until then.
        priority: the smaller, the sooner, of a scheduler that looks at it; most do not.
        slo: what its user was promised, as an Slo or as the name of one in SLO_CLASSES.
        Raises ValueError, with nothing changed, for a prompt or parameter outside its limits.
        """
        now = self.clock.now()
        if request_id is None:
            request_id = next(name for n in self._names if not self.outputs.knows(name := f"r{n}"))
        elif self.outputs.knows(request_id):
            raise ValueError(f"request_id {request_id!r} is taken: every request of an engine needs its own")
        arrival = now if arrival is None else arrival
        request = inputs.as_request(self.model, prompt, params, request_id, arrival, priority, slo)
        check_fits(request, self.memory)
        if request.params.temperature > 0 and request.params.seed is None:
            request.params = replace(request.params, seed=self._seeds.getrandbits(63))
        self.outputs.add(request, prompt if isinstance(prompt, str) else None)
        self.arrivals.add(request)
        return request_id

    def has_unfinished(self) -> bool:
        return bool(self.outputs.open)

    @whole
    @torch.inference_mode()
    def step(self) -> list[StreamedToken]:
        """One iteration, and the tokens it gave; [] where it gave none or only waited for the next arrival.

        It happens whole or not at all. If the model raises or is interrupted, nothing is computed or appended, and the
        next step plans anew. An interrupt at its end replaces what it returns: `outputs` has those tokens.
        """
        self.outputs.settle()  # what an interrupted step has left
        self._receive(started := self.clock.now())  # the requests that have arrived join the queue
        plan = self.scheduler.schedule()  # [(request, n_tokens)]: who runs, how many tokens each
        if not plan:
            return self._idle()
        batch = self.attention.layout(plan, self.memory, self.scheduler.height(plan), self.model.device)
        tokens = sample(self.logits(batch), batch, self.draw)  # one token for each that has caught up
        iteration = self._record(plan, tokens, batch, started)  # what every picture is drawn from
        self.outputs.put(self.scheduler.commit(plan, tokens))  # append, finish, free
        self.trace.append(iteration)
        return self.outputs.deliver()  # tokens become text

    def forward(self, batch: Batch) -> torch.Tensor:
        """Runs the model: the hidden states of the rows whose next token is wanted, [len(batch.wanted), hidden]."""
        hidden = self.model(batch.tokens, batch.positions, self.attention(batch), self.operators)  # [R, hidden]
        return hidden[batch.last]

    def logits(self, batch: Batch) -> torch.Tensor:
        """[len(batch.wanted), vocab]"""
        with self.guard.window(computes=True):
            return self.model.logits(self.forward(batch), self.operators)

    @whole
    def abort_request(self, request_id: str):
        """Ends a request now, wherever it is; one that has ended already stays as it is.

        Raises ValueError for a request id that this engine does not know, or has forgotten.
        """
        if not self.outputs.knows(request_id):
            raise ValueError(f"request_id {request_id!r} is unknown to this engine, so it cannot be aborted")
        if request_id in self.outputs.open:
            self.outputs.abort(request_id)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[Output]:
        """Runs all prompts to their end, beside whatever else the engine has to do; outputs in order of the prompts.

        params: one for all, or one for each. If anything raises, the requests made here are aborted.
        """
        with self.guard:
            stream = Stream(self, prompts, params)
            try:
                with tqdm(total=len(stream.outputs), desc="requests", disable=not use_tqdm) as bar:
                    for token in stream:
                        bar.update(token.finish_reason is not None)
                return stream.outputs
            finally:
                stream.close()
                self.outputs.sweep()

    def stream(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Stream:
        """The tokens of one or more prompts as they come. Closed early, its requests are aborted."""
        return Stream(self, prompts, params)

    def _receive(self, now: float):
        """Gives the scheduler the requests that have arrived, and lets the trace note what a failed step changed."""
        self.outputs.sweep()
        while (request := self.arrivals.first) and request.arrival <= now:
            self.scheduler.add(request)
            self.outputs.arrived(request)
            self.arrivals.pop()
        self.trace.hold(self.memory.holders)

    def _record(self, plan: Plan, tokens: Tokens, batch: Batch, started: float) -> Iteration:
        """Moves the clock on, tells the scheduler how long it took, and returns the iteration for the trace."""
        self.clock.iteration_done()
        duration, budget = self.clock.now() - started, self.scheduler.token_budget
        self.scheduler.observe(len(batch.tokens), duration)
        fields = dict(time=started, duration=duration, padding=batch.padding, budget=budget)
        return self.trace.iteration(plan, tokens, self.memory, **fields)

    def _idle(self) -> list[StreamedToken]:
        """Waits for the next arrival. Raises RuntimeError where requests have arrived and none can run."""
        open_requests = [entry.request for entry in self.outputs.open.values()]
        if stuck := sum(not request.finished for request in open_requests) - len(self.arrivals):
            waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
            raise RuntimeError(
                f"{type(self.scheduler).__name__}.schedule() planned nothing, with {waiting} requests waiting and "
                f"{running} running, of {stuck} that have not ended: nothing could ever change that"
            )
        if self.arrivals.first:
            with self.guard.window():
                self.clock.wait_until(self.arrivals.first.arrival)
        return self.outputs.deliver()
