"""The learner's parts in the real engine, through its own seams: a scheduler with its memory, the layout of a batch,
the attention, the choice of each token."""

from itertools import pairwise

import torch

from tinyengine.attention import Padded, PagedAttention, PerRequest, one_request
from tinyengine.batch import Batch
from tinyengine.course.checks import ends, quote
from tinyengine.course.mine import PartError, blamed
from tinyengine.engine import Engine
from tinyengine.inputs import check_sizes
from tinyengine.invariant import Invariant
from tinyengine.noise import gumbel_noise
from tinyengine.sampler import cut, penalise
from tinyengine.scheduler import Chunked
from tinyengine.stages import STAGES

LINES = 2_000_000  # of Python, in one call of a part with tensors: a loop over queries and heads takes many


class PluggedEngine(Engine):
    """An Engine that tells which part of the learner's has failed.

    parts: the learner's, by name. called: the names of those of them that have run.
    """

    parts: dict
    called: set

    def step(self):
        try:
            return super().step()
        except PartError:
            raise
        except Exception as error:
            raise PartError(blamed(error, self.parts)) from None

    def logits(self, batch):
        """With a `sample` of the learner's: logits that leave each row the one token which that has chosen."""
        logits = super().logits(batch)
        if "sample" not in self.parts or not len(logits):
            return logits
        self.called.add("sample")
        tokens = sampled(self.parts["sample"], logits, batch.wanted)
        return torch.full_like(logits, -torch.inf).scatter_(-1, tokens[:, None], 0.0)


def plugged(
    model, stage, parts, num_slots=None, max_num_seqs=8, block_size=16, max_num_batched_tokens=512, **options
) -> Engine:
    """An Engine with these parts in place of the package's."""
    num_slots = check_sizes(model, num_slots, block_size, max_num_seqs=max_num_seqs)
    scheduler, memory, attention = STAGES[stage]
    names = "MyStatic", "MyOrca", "MyPaged", "MyChunked"
    budget = {"max_num_batched_tokens": max_num_batched_tokens} if issubclass(scheduler, Chunked) else {}
    scheduler = next((parts[name] for name in names if name in parts), scheduler)
    memory = parts.get("MySlots") or parts.get("MyBlocks") or memory
    try:
        made = guarded(scheduler)(memory.for_arena(num_slots, block_size), max_num_seqs, **budget)
    except Exception as error:
        raise PartError(blamed(error, parts)) from None
    engine = PluggedEngine(model, stage, scheduler=made, fast=False, **options)
    engine.parts, engine.called = parts, parts.keys() & {type(made).__name__, type(made.memory).__name__}
    if attention is PerRequest and {"attend", "attend_each"} & parts.keys():
        engine.attention = Each(engine.attention.cache, attention_of(parts, engine.called))
    if attention is PagedAttention and "paged_attention" in parts:
        engine.attention = OverBlocks(engine.attention.cache, parts["paged_attention"])
        engine.called.add("paged_attention")
    if attention is Invariant and "fixed_split_attention" in parts:
        engine.attention = InSplits(engine.attention.cache, parts["fixed_split_attention"])
        engine.called.add("fixed_split_attention")
    if attention is not Padded and "flat" in parts:
        engine.attention.layout = laid_flat(parts["flat"])
        engine.called.add("flat")
    if attention is Padded and "rectangle" in parts:
        engine.attention.layout = laid_in_a_rectangle(parts["rectangle"])
        engine.called.add("rectangle")
    return engine


def guarded(scheduler: type) -> type:
    """The same class, but an endless loop in its schedule() is stopped, and the engine hears of its batch_size."""

    class Guarded(scheduler):
        def schedule(self):
            plan = ends(super().schedule)
            for request, n_tokens in plan:
                name, own = request.request_id, f"whose gap is {request.gap}"
                holds = 1 <= n_tokens <= request.gap
                need(scheduler.__name__, holds, f"{name}, {own}, a plan of {n_tokens} tokens", "1 token up to its gap")
                need(scheduler.__name__, request.table, f"{name} a plan, and no K/V slots", "memory.reserve(request)")
            return plan

        def height(self, plan):
            return max(super().height(plan), getattr(self, "batch_size", 0))

    Guarded.__name__ = Guarded.__qualname__ = scheduler.__name__  # as a sentence tells it
    return Guarded


class Each(PerRequest):
    """Selective batching whose attention is one function: attend_each(q, starts, keys, values)."""

    def __init__(self, cache, each):
        super().__init__(cache)
        self.each = each

    def __call__(self, batch):
        slots = [batch.slots(index) for index in range(len(batch.plan))]

        def attend(layer, q, k, v):
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = zip(*(self.cache.read(layer, own) for own in slots))
            return self.each(q, batch.starts, list(keys), list(values))

        return attend


class OverBlocks(PagedAttention):
    """Attention over blocks by one function: paged_attention(q, keys, values, cu_seqlens_q, seqused_k, block_table)."""

    def __init__(self, cache, function):
        super().__init__(cache)
        self.function = function

    def __call__(self, batch):
        where = batch.cu_seqlens_q, batch.seqused_k, batch.block_table

        def attend(layer, q, k, v):
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            out = ends(self.function, q, keys, values, *where, lines=LINES)
            need("paged_attention", is_tensor(out, *q.shape), out, f"a tensor of shape {list(q.shape)}")
            return out.to(q.dtype)

        return attend


class InSplits(Invariant):
    """Attention of the sixth stage by one function of one request: fixed_split_attention(q, keys, values)."""

    def __init__(self, cache, function):
        super().__init__(cache)
        self.function = function

    def __call__(self, batch):
        slots = [batch.slots(index) for index in range(len(batch.plan))]

        def attend(layer, q, k, v):
            self.cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            for (start, end), own in zip(pairwise(batch.starts), slots):
                new = ends(self.function, q[start:end], *self.cache.read(layer, own), lines=LINES)
                is_right, form = is_tensor(new, *q[start:end].shape), f"a tensor of shape {list(q[start:end].shape)}"
                need("fixed_split_attention", is_right, new, form)
                out[start:end] = new
            return out

        return attend


def attention_of(parts: dict, called: set):
    """attend_each of these parts: the learner's own, or a loop over the learner's `attend`. called: what has run."""
    each = parts.get("attend_each")

    def attend(q, keys, values):
        called.update(parts.keys() & {"attend"})
        return parts.get("attend", one_request)(q, keys, values)

    if each is None:
        name = "attend"

        def each(q, starts, keys, values):
            own = zip(pairwise(starts), keys, values)
            return torch.cat([attend(q[start:end], *k_and_v) for (start, end), *k_and_v in own])
    else:
        name = "attend_each"
        called.add(name)
        if "attend" in each.__globals__:
            each.__globals__["attend"] = attend

    def run(q, starts, keys, values):
        out = ends(each, q, starts, keys, values, lines=LINES)
        need(name, is_tensor(out, *q.shape), out, f"a tensor of shape {list(q.shape)}")
        return out.to(q.dtype)

    return run


def laid_in_a_rectangle(rectangle):
    """The layout of a batch by rectangle(chunks) -> tokens [B, W], positions [B, W], real [B, W], last [B]."""

    def layout(plan, memory, height, device) -> Batch:
        given = ends(rectangle, chunks_of(plan), lines=LINES)
        counts = [n_tokens for _, n_tokens in plan]
        shape, size = (len(plan), max(counts)), sum(counts)
        is_right = is_group(given, 4) and all(is_tensor(part, *shape) for part in given[:3])
        is_right = is_right and is_tensor(given[3], len(plan)) and given[2].sum() == size
        need("rectangle", is_right, given, f"tokens, positions and real, {list(shape)}, {size} of them real, and last")
        tokens, positions, real, last = (part.to(device) for part in given)
        ended = height - len(plan), shape[1]  # rows of requests that have ended still take part
        tokens, positions, real = (torch.cat([part, part.new_zeros(ended)]) for part in (tokens, positions, real))
        starts = torch.arange(len(plan), device=device) * shape[1]
        return batch_of(plan, memory, tokens, positions, real.flatten().nonzero()[:, 0], starts + last)

    return layout


def laid_flat(flat):
    """The layout of a batch by flat(chunks) -> tokens [N], positions [N], starts, last [B]."""

    def layout(plan, memory, height, device) -> Batch:
        given = ends(flat, chunks_of(plan), lines=LINES)
        size, starts = sum(n_tokens for _, n_tokens in plan), [0]
        for _, n_tokens in plan:
            starts.append(starts[-1] + n_tokens)
        is_right = is_group(given, 4) and is_tensor(given[0], size) and is_tensor(given[1], size)
        is_right = is_right and list(given[2]) == starts and is_tensor(given[3], len(plan))
        need("flat", is_right, given, f"tokens [{size}], positions [{size}], starts {starts} and last [{len(plan)}]")
        tokens, positions, last = given[0].to(device), given[1].to(device), given[3].to(device)
        return batch_of(plan, memory, tokens, positions, None, last)

    return layout


def batch_of(plan, memory, tokens, positions, real, last) -> Batch:
    """A Batch of what a layout of the learner's gives. last: of each request of the plan, caught up or not."""
    spans = [(request, request.computed, request.computed + n_tokens) for request, n_tokens in plan]
    slots = [slot for request, first, end in spans for slot in memory.slots(request, first, end)]
    caught_up = [number for number, (request, _, end) in enumerate(spans) if end == len(request.tokens)]
    return Batch(
        plan,
        tokens.flatten().long(),
        positions.flatten().long(),
        None if real is None or len(real) == tokens.numel() else real,
        torch.tensor(slots, device=tokens.device),
        [n_tokens for _, n_tokens in plan],
        [end for _, _, end in spans],
        memory.block_size,
        [(spans[number][0], spans[number][2]) for number in caught_up],
        last[caught_up].long(),
    )


def sampled(sample, logits, wanted) -> torch.Tensor:
    """The tokens [n] of sample(logits, temperature, top_p, noise), each row by its own request's parameters.

    It knows no repetition_penalty and no top_k: these are in the logits.
    """
    params, vocab, logits = [request.params for request, _ in wanted], logits.shape[-1], logits.float()

    def column(numbers, dtype=torch.long):
        return torch.tensor(numbers, dtype=dtype, device=logits.device)[:, None]

    if any(one.repetition_penalty != 1.0 for one in params):
        logits = penalise(logits, wanted)
    if any(one.top_k > 0 for one in params):
        kept = [one.top_k if one.top_k > 0 else vocab for one in params]
        logits = cut(logits, column(kept), column([torch.inf] * len(params), None))
    settings = [
        column([getattr(one, name) for one in params], torch.float32)[:, 0] for name in ("temperature", "top_p")
    ]
    seeds, positions = column([one.seed or 0 for one in params]), column([length for _, length in wanted])
    tokens = ends(sample, logits.clone(), *settings, gumbel_noise(seeds, positions, vocab), lines=LINES)
    need("sample", is_tensor(tokens, len(logits)), tokens, f"a tensor of {len(logits)} tokens")
    within = not tokens.is_floating_point() and tokens.min() >= 0 and tokens.max() < vocab
    need("sample", within, tokens, f"a whole number from 0 to {vocab - 1} for each request")
    return tokens.long()


def chunks_of(plan) -> list[tuple[list[int], int]]:
    """[(token ids, first position), ...]: what each request of a plan computes."""
    return [
        (list(request.tokens[request.computed : request.computed + n_tokens]), request.computed)
        for request, n_tokens in plan
    ]


def is_tensor(value, *shape) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == shape


def is_group(value, count: int) -> bool:
    return isinstance(value, tuple | list) and len(value) == count


def need(name: str, holds: bool, given, form: str) -> None:
    if not holds:
        told = given if isinstance(given, str) else quote(given)
        raise PartError(f"Your {name} gives {told}, where {form} is needed.")
