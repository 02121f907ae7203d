"""What an engine takes: prompts, parameters and sizes. All else is refused here, before anything has changed, in one
sentence that says what, which value, which limit and what to do."""

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from numbers import Integral
from operator import index
from pathlib import Path

import torch

from tinyengine.checks import check_size
from tinyengine.clock import WallClock
from tinyengine.params import SLO_CLASSES, SamplingParams, Slo
from tinyengine.qwen3 import Qwen3
from tinyengine.request import Request
from tinyengine.scheduler import Scheduler
from tinyengine.stages import EXTRAS, STAGES, check_options

Prompt = str | Sequence[int]

CPU_KV_BYTES = 256 * 2**20  # the arena's budget on a CPU, where "free memory" says little; pages count when first used
CUDA_KV_SHARE = 0.8  # of the free device memory; the rest is for activations


def check_engine(model: Qwen3, stage: str, scheduler: Scheduler | None, clock, trace, fast: bool, seed: int):
    """Raises ValueError for what no engine can be made of. (Sizes: check_sizes.)"""
    if not isinstance(stage, str) or stage not in STAGES:
        raise ValueError(f"stage is {stage!r}, but the stages are {', '.join(STAGES)}")
    if not hasattr(model, "config"):
        raise ValueError(f"model is {model!r}, but must be a model: load_model({model!r}), say")
    if scheduler is not None and not isinstance(scheduler, Scheduler):
        raise ValueError(f"scheduler is {scheduler!r}, but must be an instance of a Scheduler, with its memory")
    methods = [name for name in vars(WallClock) if not name.startswith("_")]
    if clock is not None and (isinstance(clock, type) or not all(hasattr(clock, name) for name in methods)):
        raise ValueError(f"clock is {clock!r}, but must be a clock: WallClock() or IterationClock(), say")
    is_number = isinstance(trace, int) and not isinstance(trace, bool) and trace >= 1
    if trace not in ("full", None) and not is_number:
        raise ValueError(f"trace is {trace!r}, but must be 'full', a number of iterations to keep, or None")
    if not isinstance(fast, bool):
        raise ValueError(f"fast is {fast!r}, but must be True or False")
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise ValueError(f"seed is {seed!r}, but must be a whole number")


def split_options(stage: str, options: dict, scheduler: Scheduler | None, fast: bool) -> tuple[dict, dict]:
    """The options that add to the stage's scheduler, and those of the accelerations. Raises ValueError for one that
    neither takes, and for one of the former beside a scheduler instance."""
    caching = options.get("enable_prefix_caching", False)
    if not isinstance(caching, bool):
        raise ValueError(f"enable_prefix_caching is {caching!r}, but must be True or False")
    options = {name: value for name, value in options.items() if name != "enable_prefix_caching" or value}
    check_options(stage, options, accelerations().OPTIONS if fast and accelerations() else ())
    extras = {name: value for name, value in options.items() if name in EXTRAS}
    if extras and scheduler is not None:
        raise ValueError(f"{next(iter(extras))} is an option of a stage's own scheduler: give it to yours instead")
    return extras, {name: value for name, value in options.items() if name not in EXTRAS}


def accelerations():
    """The room tinyengine.fast, or None where it was left out."""
    has_room = Path(__file__).with_name("fast").joinpath("__init__.py").exists()
    return import_module("tinyengine.fast") if has_room else None


def check_sizes(model: Qwen3, num_slots: int | None, block_size: int, **sizes: int) -> int:
    """How many slots the arena has. Raises ValueError for a size that is not a whole number of at least 1."""
    num_slots = estimate_num_slots(model) if num_slots is None else num_slots
    for name, size in {**sizes, "num_slots": num_slots, "block_size": block_size}.items():
        check_size(name, size)
    return num_slots


def encode(model: Qwen3, prompt: Prompt, request_id: str) -> list[int]:
    """A prompt's token ids. Raises ValueError for what has none."""
    if not isinstance(prompt, str):
        try:
            ids = None if isinstance(prompt, bytes) else prompt  # the bytes of a text would pass for token ids
            return [index(token) for token in ids]
        except TypeError:
            kind = type(prompt).__name__
            raise ValueError(
                f"the prompt of request {request_id!r} is {kind}, but must be text or whole token ids"
            ) from None
    if model.tokenizer is None:
        raise ValueError(
            f"the prompt of request {request_id!r} is text, but the model has no tokenizer: give token ids"
        )
    try:
        return model.tokenizer(prompt).input_ids
    except (TypeError, UnicodeError):  # half of a surrogate pair
        raise ValueError(f"the prompt of request {request_id!r} is text that has no UTF-8 form") from None


def as_request(
    model: Qwen3,
    prompt: Prompt,
    params: SamplingParams | None,
    request_id: str,
    arrival: float,
    priority: int,
    slo: Slo | str | None,
) -> Request:
    """A request that the model can serve, whatever the scheduler. Raises ValueError for all else."""
    if not isinstance(params, SamplingParams | None):
        raise ValueError(f"params is {params!r}, but must be SamplingParams")
    ids, params = encode(model, prompt, request_id), params or SamplingParams()
    request = Request(request_id, ids, params, arrival, priority, model.eos_token_ids, as_slo(slo))
    check_request(model, request)
    return request


def check_request(model: Qwen3, request: Request):
    """Raises ValueError for a request that the model cannot serve, whatever the scheduler."""
    config, params = model.config, request.params
    unknown = [token for token in request.prompt_token_ids if token >= config.vocab_size]
    if unknown:
        raise ValueError(
            f"the prompt of request {request.request_id!r} holds token id {unknown[0]}, but the model's vocabulary "
            f"ends at {config.vocab_size - 1}"
        )
    if request.max_slots > config.max_position_embeddings:
        raise ValueError(
            f"request {request.request_id!r} can reach position {request.max_slots} (prompt "
            f"{request.num_prompt_tokens} + max_tokens {params.max_tokens}), but the model has "
            f"{config.max_position_embeddings} positions: shorten it or lower max_tokens"
        )
    if params.stop and model.tokenizer is None:
        raise ValueError(f"stop is {params.stop!r}, but the model has no tokenizer: use stop_token_ids")


def estimate_num_slots(model: Qwen3) -> int:
    """K/V slots that fit: CUDA_KV_SHARE of the free device memory, or CPU_KV_BYTES on a CPU."""
    budget = CPU_KV_BYTES
    if model.device.type == "cuda":
        budget = int(torch.cuda.mem_get_info(model.device)[0] * CUDA_KV_SHARE)
    return max(1, budget // _slot_bytes(model))


def _slot_bytes(model: Qwen3) -> int:
    """Bytes of one token's keys and values, all layers."""
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize


def check_memory(model: Qwen3, num_slots: int):
    """Raises ValueError for an arena that is larger than all memory there is: it would get the process killed."""
    if model.device.type == "cuda":
        total = torch.cuda.mem_get_info(model.device)[1]
    elif "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):  # Windows has none
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return
    needed = num_slots * _slot_bytes(model)
    if needed > total:
        raise ValueError(
            f"num_slots is {num_slots}, whose K/V take {needed / 2**30:,.0f} GiB, but {model.device} has "
            f"{total / 2**30:,.0f} GiB in all: lower num_slots"
        )


def as_slo(slo: Slo | str | None) -> Slo:
    """A promise by its name, or as it is; none promises nothing."""
    if isinstance(slo, str):
        if slo not in SLO_CLASSES:
            raise ValueError(f"slo is {slo!r}, but the classes are {', '.join(SLO_CLASSES)}")
        return SLO_CLASSES[slo]
    if not isinstance(slo, Slo | None):
        raise ValueError(f"slo is {slo!r}, but must be an Slo or one of {', '.join(SLO_CLASSES)}")
    return slo or Slo()


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, text or token ids, is a list of one."""
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts is {prompts!r}, but must be a prompt or a list of them")
    each = [prompts] if isinstance(prompts, str) else list(prompts)
    is_token_ids = bool(each) and all(hasattr(token, "__index__") and not getattr(token, "shape", ()) for token in each)
    return [prompts] if is_token_ids else each


def one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, prompts: list[Prompt]
) -> list[SamplingParams | None]:
    """One for each prompt, from one for all or from a list."""
    if not isinstance(params, SamplingParams | Sequence | None):
        raise ValueError(f"params is {params!r}, but must be SamplingParams, or a list with one for each prompt")
    each = [params] * len(prompts) if isinstance(params, SamplingParams | None) else list(params)
    if len(each) != len(prompts):
        raise ValueError(f"params has {len(each)} entries, but there are {len(prompts)} prompts: give one for each")
    return each
