"""The loop: schedule, run the model, sample, commit. A stage is a row of `STAGES`; the loop is the same for all."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from tqdm.auto import tqdm

from tinyengine.attention import KVCache, make_attention
from tinyengine.batch import Batch
from tinyengine.clock import WallClock
from tinyengine.compiled_decode import CompiledDecode, can_serve
from tinyengine.detokenizer import Detokenizer
from tinyengine.graphs import DecodeGraphs, on_cuda, why_not
from tinyengine.inputs import (
    Prompt,
    as_list,
    as_slo,
    check_memory,
    check_options,
    check_request,
    encode,
    estimate_num_slots,
)
from tinyengine.overlap import Fetch, Flight, fetch, must_wait, take_tokens
from tinyengine.qwen3 import Qwen3
from tinyengine.request import PENDING, Request, SamplingParams, Slo
from tinyengine.sampler import choose, sample
from tinyengine.scheduler import Plan, Scheduler, Token, Tokens
from tinyengine.stages import STAGES
from tinyengine.trace import Trace


@dataclass
class Output:
    """What a request has produced so far. `pieces` is the text that each token made certain ("" while a character or a
    possible stop string is incomplete); finish_reason is None while it runs, then "stop" (end of sequence, stop token,
    stop string or stop_when), "length" (max_tokens), "abort", or "error" (its stop_when raised `error`)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None

    @property
    def text(self) -> str:
        """Without special tokens, and up to a stop string."""
        return "".join(self.pieces)

    def token(self, index: int) -> "StreamedToken":
        is_last = index == len(self.token_ids) - 1
        reason = self.finish_reason if is_last else None
        return StreamedToken(self.request_id, self.token_ids[index], self.pieces[index], reason)


@dataclass(frozen=True)
class StreamedToken:
    """One token of a stream, and the text that it made certain."""

    request_id: str
    token_id: int
    text: str
    finish_reason: str | None


class Engine:
    """Serves many requests with one model.

    model: from load_model. Its weights must stay as they are while it serves: K/V of the old ones would meet the new.
    stage: a row of STAGES. scheduler: a scheduler instance to use in place of the stage's own, with its own memory.
    max_num_seqs: batch slots. max_num_batched_tokens: the token budget, of the stages that have one.
    num_slots: K/V slots of the arena; None estimates them from free device memory (CUDA) or CPU_KV_BYTES.
    block_size: slots of a block, of the stages that have blocks. enable_prefix_caching: of the same stages.
    clock: WallClock (seconds) or IterationClock. seed: of the seeds of requests that bring none.
    attention_backend: of the stages that have blocks: "auto", or one of attention.BACKENDS (see PagedAttention).
    split_kv: on CUDA, several programs share the keys of a request where few long ones decode.
    cuda_graphs: decode steps are recorded and replayed (see DecodeGraphs); None does so where it can, True insists.
    compiled_decode: on a CPU, decode steps are one compiled call where they can (see CompiledDecode). False goes layer
        by layer, through the modules of the model: the same bits, and hooks and prints in them are called.
    overlap: the next iteration is launched while the last one's tokens are still on their way (see overlap); step()
        then gives each token one step later. The outputs are the same.
    options: further ones of the stage's scheduler, such as policy="priority" or num_speculative_tokens=4.

    `trace` records every iteration. Raises ValueError for an unknown stage or a number outside its limits.
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
        enable_prefix_caching: bool = False,
        scheduler: Scheduler | None = None,
        clock: WallClock | None = None,
        seed: int = 0,
        attention_backend: str = "auto",
        split_kv: bool = True,
        cuda_graphs: bool | None = None,
        compiled_decode: bool = True,
        overlap: bool = False,
        **options,
    ):
        if not isinstance(stage, str) or stage not in STAGES:
            raise ValueError(f"stage is {stage!r}, but the stages are {', '.join(STAGES)}")
        if not hasattr(model, "config"):
            raise ValueError(f"model is {model!r}, but must be a model: load_model({model!r}), say")
        if scheduler is not None and not isinstance(scheduler, Scheduler):
            raise ValueError(f"scheduler is {scheduler!r}, but must be an instance of a Scheduler, with its memory")
        switches = {"compiled_decode": compiled_decode, "overlap": overlap}
        for name, choice in {"enable_prefix_caching": enable_prefix_caching, **switches}.items():
            if not isinstance(choice, bool):
                raise ValueError(f"{name} is {choice!r}, but must be True or False")
        if enable_prefix_caching and scheduler is not None:
            raise ValueError("enable_prefix_caching is True beside a scheduler: give it to that scheduler's Blocks")
        make_scheduler, make_memory, kind_of_attention = STAGES[stage]
        if num_slots is None:
            num_slots = estimate_num_slots(model)
        sizes = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        for name, size in {**sizes, "num_slots": num_slots, "block_size": block_size}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} is {size!r}, but must be a whole number of at least 1")
        check_options(options, stage, scheduler)
        check_memory(model, num_slots if scheduler is None else scheduler.memory.n_slots)
        if scheduler is None:
            memory = make_memory.for_arena(num_slots, block_size, enable_prefix_caching)
            scheduler = make_scheduler(memory, max_num_seqs, max_num_batched_tokens, **options)
        self.model = model
        self.scheduler = scheduler
        self.memory = scheduler.memory
        # One block more than the memory gives out: on CUDA, the empty rows of a graph write there.
        spare = self.memory.block_size if model.device.type == "cuda" else 0
        cache = KVCache(model.config, self.memory.n_slots + spare, model.device, model.dtype)
        self.attention = make_attention(kind_of_attention, cache, attention_backend, split_kv)
        self.operators = kind_of_attention.operators(model)
        lacking = why_not(model.device, self.attention)
        if cuda_graphs and lacking:
            raise ValueError(f"cuda_graphs is True, but {lacking}")
        self.graphs: DecodeGraphs | None = None
        if cuda_graphs is not False and not lacking:
            self.graphs = DecodeGraphs(self._hidden, self.memory.n_slots, scheduler.max_num_seqs, on_cuda())
        self.compiled_decode: CompiledDecode | None = None
        if compiled_decode and can_serve(model, self.attention, self.operators):
            self.compiled_decode = CompiledDecode(self._hidden, model, self.attention, self.operators)
        self.overlap = overlap
        self._fetch: Fetch = fetch
        self._flight: Flight | None = None
        self._device_free = 0.0  # when the last iteration was done
        self.clock = clock or WallClock()
        memory = self.memory
        self.trace = Trace(stage, scheduler.max_num_seqs, memory.n_slots, memory.block_size, memory.contiguous)
        self.outputs: dict[str, Output] = {}  # by request id, of add_request; pop what you have read
        self._requests: dict[str, Request] = {}  # the unfinished ones
        self._outputs: dict[str, Output] = {}  # theirs: a user may have taken one out of `outputs` already
        self._detokenizers: dict[str, Detokenizer] = {}  # theirs
        self._future: list[tuple[float, int, Request]] = []  # a heap by arrival: not yet shown to the scheduler
        self._ids: set[str] = set()  # all that were ever taken
        self._names = (name for number in itertools.count() if (name := f"r{number}") not in self._ids)
        self._undelivered: deque[Token] = deque()  # committed, and not yet in an output
        self._order = itertools.count()  # of two requests with one arrival, the one added first comes first
        self._seeds = random.Random(seed)

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
        priority: the smaller, the sooner, of a scheduler with policy="priority"; no other looks at it.
        slo: what its user was promised, as an Slo or as the name of one in SLO_CLASSES.
        Raises ValueError, with nothing changed, for a prompt or parameter outside its limits.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ValueError(f"params is {params!r}, but must be SamplingParams")
        request_id = next(self._names) if request_id is None else request_id
        text = prompt if isinstance(prompt, str) else None
        now = self.clock.now()
        request = Request(
            request_id,
            encode(self.model, prompt, request_id),
            params,
            now if arrival is None else arrival,
            priority,
            self.model.eos_token_ids,
            as_slo(slo),
        )
        if request_id in self._ids:
            raise ValueError(f"request_id {request_id!r} is taken: every request of an engine needs its own")
        check_request(self.model, request)
        self.scheduler.check_fits(request)
        if params.temperature > 0 and params.seed is None:  # not before it is sure: a refused one changes no other's
            request.params = replace(params, seed=self._seeds.getrandbits(63))
        self._ids.add(request_id)
        self._requests[request_id] = request
        self._outputs[request_id] = self.outputs[request_id] = Output(request_id, text, list(request.prompt_token_ids))
        if self.model.tokenizer is not None:
            self._detokenizers[request_id] = Detokenizer(self.model.tokenizer, params.stop)
        heapq.heappush(self._future, (request.arrival, next(self._order), request))
        self._receive(now)
        return request_id

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[StreamedToken]:
        """One iteration, and the tokens it gave; [] where it gave none or only waited for the next arrival.

        If the model raises, nothing is committed: the next step tries the same requests again, unless one is aborted.
        """
        delivered = self._deliver_all()  # what an interrupt in a stop_when, or one that steps itself, has left
        overlaps = self.overlap and not must_wait(self.scheduler, self._requests.values())
        if not overlaps:
            delivered += self.settle()
        started = self.clock.now()
        self._receive(started)
        budget = self.scheduler.token_budget
        plan = self.scheduler.schedule()
        if not plan:
            if self._flight:
                return delivered + self.settle()
            self._idle()
            return delivered
        if overlaps:
            return delivered + self._launch(plan, started, budget)
        batch, tokens = self._forward(plan)
        self.clock.iteration_done()
        duration = self.clock.now() - started
        self._record(plan, tokens, batch, time=started, duration=duration, budget=budget)
        self.scheduler.observe(len(batch.tokens), duration)
        self._undelivered.extend(self.scheduler.commit(plan, tokens))
        return delivered + self._deliver_all()

    def settle(self) -> list[StreamedToken]:
        """Waits for the tokens that are on their way, if there are any, and delivers them."""
        self._arrive()
        return self._deliver_all()

    def _launch(self, plan: Plan, started: float, budget: int | None) -> list[StreamedToken]:
        """Starts an iteration, and delivers the tokens of the one before."""
        batch, chosen = self._start(plan)
        number, n_tokens = len(self.trace.iterations), len(batch.tokens)
        flight = Flight(batch.due_requests, chosen, number, n_tokens, self._fetch(chosen))
        self._record(plan, [None] * len(plan), batch, time=started, duration=0.0, budget=budget)
        self._arrive()
        self.scheduler.commit(plan, batch.per_plan([PENDING] * len(batch.due)))
        for request in flight.requests:
            if len(request.tokens) == request.max_slots:
                self.scheduler.retire(request)
        self._flight = flight
        streamed = self._deliver_all()
        if not self._requests:  # what is still on its way is nobody's
            self._arrive()
        return streamed

    @torch.inference_mode()
    def _start(self, plan: Plan) -> tuple[Batch, torch.Tensor]:
        batch = self._layout(plan)
        if self._flight:
            take_tokens(batch, self._flight)
        return batch, choose(self._logits(batch), batch.due_requests, batch.guessed)

    def _arrive(self):
        """Writes the tokens that were on their way where PENDING stood, and leaves them to be delivered."""
        flight = self._flight
        if flight is None:
            return
        tokens = flight.arrive()
        self._flight = None
        self.clock.iteration_done()
        time, now = max(self.trace.iterations[flight.number].time, self._device_free), self.clock.now()
        self._device_free = now
        alive = {}  # who has ended since gets none
        for request, token in zip(flight.requests, tokens, strict=True):
            if request.request_id in self._requests:
                request.tokens[-1] = alive[request.request_id] = token
                self._undelivered.append(Token(request, token, request.reason_to_finish()))
        self.trace.arrived(flight.number, alive, time, now - time)
        self.scheduler.observe(flight.n_tokens, now - time)

    def _record(self, plan: Plan, tokens: Tokens, batch: Batch, **fields):
        waiting = tuple(request.request_id for request in self.scheduler.waiting)
        padding = self._padding(batch)
        self.trace.record(plan, tokens, self.memory.holdings(), waiting=waiting, padding=padding, **fields)

    @torch.inference_mode()
    def _forward(self, plan: Plan) -> tuple[Batch, Tokens]:
        batch = self._layout(plan)
        return batch, sample(self._logits(batch), batch)

    def _layout(self, plan: Plan) -> Batch:
        return self.attention.layout(plan, self.memory, self.scheduler.rows(plan), self.model.device)

    def _logits(self, batch: Batch) -> torch.Tensor:
        """Runs the model on a batch: [len(batch.due), vocab]."""
        in_one_go = self._in_one_go(batch)
        try:
            hidden = in_one_go(batch) if in_one_go else self._hidden(batch)[batch.last]
            return self.model.logits(hidden, self.operators)
        except BaseException:
            self.trace.hold(self.memory.holdings())  # whom this step preempted, the next may admit again
            raise

    def _hidden(self, batch: Batch) -> torch.Tensor:
        """[len(batch.tokens), hidden]"""
        return self.model(batch.tokens, batch.positions, self.attention(batch), self.operators)

    def _in_one_go(self, batch: Batch) -> DecodeGraphs | CompiledDecode | None:
        """What runs the whole model on such a batch, without Python between the layers; None where it goes layer by
        layer."""
        if self.graphs and self.graphs.suits(batch):
            return self.graphs
        if self.compiled_decode and self.compiled_decode.suits(batch, self.model, self.attention, self.operators):
            return self.compiled_decode
        return None

    def _padding(self, batch: Batch) -> int:
        return self.graphs.padding(batch) if self.graphs and self.graphs.suits(batch) else batch.padding

    def abort_request(self, request_id: str):
        """Ends a request now, wherever it is; one that has ended already stays as it is.

        Raises ValueError for a request id that this engine has never seen.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            if request_id not in self._ids:
                raise ValueError(f"request_id {request_id!r} is unknown to this engine, so it cannot be aborted")
            return
        self._future = [entry for entry in self._future if entry[2] is not request]
        heapq.heapify(self._future)
        self.scheduler.abort(request)
        self._detokenizers.pop(request_id, None)
        self._outputs.pop(request_id).finish_reason = "abort"
        if request_id in self.trace.requests:  # else it never arrived, and the trace knows nothing of it
            self.trace.event("abort", request_id)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[Output]:
        """Runs all prompts to their end, beside whatever else the engine has to do; outputs in order of the prompts.

        params: one for all, or one for each. If anything raises, the requests made here are aborted.
        """
        outputs: list[Output] = []
        with tqdm(total=len(as_list(prompts)), desc="requests", disable=not use_tqdm) as bar:
            for token in self._run(as_list(prompts), params, outputs):
                bar.update(token.finish_reason is not None)
        return outputs

    def stream(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[StreamedToken]:
        """The tokens of one or more prompts as they come. Closed early, its requests are aborted and their memory is
        free; several streams, and other requests, may run side by side."""
        yield from self._run(as_list(prompts), params, [])

    def _run(self, prompts: list[Prompt], params, outputs: list[Output]) -> Iterator[StreamedToken]:
        """Adds the prompts, fills `outputs`, and steps until they have all ended. No way out leaves anything behind."""
        if not isinstance(params, SamplingParams | Sequence | None):
            raise ValueError(f"params is {params!r}, but must be SamplingParams, or a list with one for each prompt")
        each = [params] * len(prompts) if isinstance(params, SamplingParams | None) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"params has {len(each)} entries, but there are {len(prompts)} prompts: give one for each")
        try:
            for prompt, own in zip(prompts, each, strict=True):
                outputs.append(self.outputs[self.add_request(prompt, own)])
            given = [0] * len(outputs)  # read from the outputs, not from step(): another stream may do the stepping
            while True:
                while behind := [n for n, output in enumerate(outputs) if given[n] < len(output.token_ids)]:
                    for number in behind:  # looked for anew after these: more may have come between two yields
                        given[number] += 1
                        yield outputs[number].token(given[number] - 1)
                if all(output.finish_reason for output in outputs):
                    return
                self.step()
        finally:
            for output in outputs:
                self.abort_request(output.request_id)
                self.outputs.pop(output.request_id, None)

    def _receive(self, now: float):
        """Shows the scheduler every request whose time has come, in order of arrival."""
        while self._future and self._future[0][0] <= now:
            request = heapq.heappop(self._future)[2]
            self.scheduler.add(request)
            output = self._outputs[request.request_id]
            self.trace.arrive(request, output.prompt)
            self.trace.pieces[request.request_id] = output.pieces

    def _idle(self):
        if self.scheduler.has_unfinished():
            raise RuntimeError(
                f"{type(self.scheduler).__name__}.schedule() planned nothing, with {len(self.scheduler.waiting)} "
                f"requests waiting and {len(self.scheduler.running)} running: nothing could ever change that"
            )
        if self._future:
            self.clock.wait_until(self._future[0][0])

    def _deliver_all(self) -> list[StreamedToken]:
        streamed = []
        while self._undelivered:
            token = self._undelivered.popleft()
            if token.request.request_id in self._requests:
                streamed.append(self._deliver(token))
            else:  # a stop string or a stop_when has ended it since: in the middle of several tokens, perhaps
                self.trace.withdraw(token.request.request_id)
        return streamed

    def _deliver(self, token: Token) -> StreamedToken:
        """Turns a token into text, and ends its request where the text completes a stop string or stop_when says so."""
        request, reason = token.request, token.finish_reason
        output = self._outputs[request.request_id]
        output.token_ids.append(token.token_id)
        output.pieces.append("")
        detokenizer = self._detokenizers.get(request.request_id)
        if detokenizer:
            output.pieces[-1] = detokenizer.push(token.token_id)
            if detokenizer.stopped:
                reason = "stop"
        place = len(output.token_ids) - 1
        try:
            reason = self._ask_stop_when(request, output) or reason
        finally:  # an interrupt in there passes through, but what has ended has ended
            if reason and request.request_id in self._requests:  # it may have aborted its own request
                self._end(request, reason)
        return output.token(place)

    def _end(self, request: Request, reason: str):
        output, detokenizer = self._outputs.pop(request.request_id), self._detokenizers.pop(request.request_id, None)
        if detokenizer and not detokenizer.stopped:
            output.pieces[-1] += detokenizer.flush()
        output.finish_reason = reason
        self.scheduler.finish(request, reason)
        self._requests.pop(request.request_id)
        self.trace.event("finish", request.request_id, reason)

    @staticmethod
    def _ask_stop_when(request: Request, output: Output) -> str | None:
        """Runs the user's function. What it raises ends its own request, never the step: others have tokens in it."""
        if request.params.stop_when is None:
            return None
        try:
            return "stop" if request.params.stop_when(list(output.token_ids)) else None
        except Exception as error:
            output.error = error
            return "error"
