"""What an engine takes: prompts, parameters and sizes. Whatever it does not is refused before anything has changed, in
one sentence that says what, which value, which limit and what to do."""

import os
from collections.abc import Iterable, Sequence
from inspect import signature
from operator import index

import torch

from tinyengine.qwen3 import Qwen3
from tinyengine.request import SLO_CLASSES, Request, Slo
from tinyengine.scheduler import Scheduler
from tinyengine.stages import STAGES

Prompt = str | Sequence[int]

CPU_KV_BYTES = 256 * 2**20  # the arena's budget on a CPU, where "free memory" says little; pages count when first used
CUDA_KV_SHARE = 0.8  # of the free device memory; the rest is for activations


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


def check_options(options: dict, stage: str, scheduler: Scheduler | None):
    """Raises ValueError for an option that the stage's scheduler does not take, or any beside a scheduler instance."""
    if options and scheduler is not None:
        raise ValueError(f"{next(iter(options))} is an option of a stage's own scheduler: give it to yours instead")
    makers = [kind.__init__ for kind in STAGES[stage][0].__mro__ if "__init__" in vars(kind)]
    known = {one.name for make in makers for one in signature(make).parameters.values() if one.kind is one.KEYWORD_ONLY}
    if unknown := options.keys() - known:
        theirs = ", ".join(sorted(known)) or "none"
        raise ValueError(f"{sorted(unknown)[0]} is no option of stage {stage!r}, whose options are: {theirs}")


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
