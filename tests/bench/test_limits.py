"""Peers serve the same requests, and the limit is the products that a schedule cannot do without."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinyengine.bench import limits, peers
from tinyengine.fast import operators


def test_peers_say_the_same_as_every_stage_and_are_compared_with_the_limit():
    result = peers.run(loads=(peers.mixed(requests=3, longest=32, max_num_seqs=2),), repeats=1)
    rows = result["loads"]["mixed-2"]["rows"]
    assert [row["name"] for row in rows[:5]] == [
        "transformers, one by one",
        "transformers, static batches",
        "transformers, generate_batch",
        "ours, one by one, layer by layer",
        "ours, one by one",
    ]
    assert [row["name"] for row in rows[5:]] == [f"ours, {stage}" for stage in peers.STAGES_COMPARED]
    assert all(row["exact"] and row["wall_s"] > 0 and row["cpu_s"] > 0 for row in rows)
    assert all(row["limit_s"] > 0 for row in rows[4:])
    assert peers.table(result).markdown().count("yes") == len(rows)


class Multiplications(TorchDispatchMode):
    """Counts them, of the linear layers and of other products."""

    def __init__(self):
        super().__init__()
        self.linear = self.other = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if name in ("linear", "_linear_pointwise"):
            self.linear += out.numel() * args[0].shape[-1]
        elif name in ("matmul", "mm", "bmm"):
            self.other += out.numel() * args[0].shape[-1]
        return out


@pytest.mark.parametrize("stage", peers.STAGES_COMPARED)
def test_the_limit_is_the_products_that_a_schedule_cannot_do_without_and_no_more(tiny, stage, monkeypatch):
    not_here = staticmethod(lambda model: "only torch's own can be counted")
    monkeypatch.setattr(operators.PackedForOneThread, "why_not", not_here)
    load = peers.mixed(requests=5, longest=48, max_num_seqs=3)
    with Multiplications() as engine:
        run = peers.serve(tiny, load, stage)
    with Multiplications() as limit:
        limits.products(tiny, run.operators, run.trace.iterations)
    assert limit.linear == engine.linear > 0
    config = tiny.config
    per_pair = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    least = most = 0
    for span in (span for iteration in run.trace.iterations for span in iteration.spans):
        # decodes of nearly one length share a product, in which the shorter ones are padded
        longest = max(span.end + 2 * limits.PAGE, (span.end + limits.PAGE) * 9 // 8) if span.n_tokens == 1 else span.end
        least += span.n_tokens * span.end * per_pair
        most += span.n_tokens * longest * per_pair
    assert least <= limit.other <= most


def test_the_operations_of_a_step_are_those_of_its_rows_and_of_each_query_with_the_keys_up_to_its_own(tiny):
    spans = [(3, 5), (1, 7), (4, 4)]
    with Multiplications() as rows:
        for layer in tiny.layers:
            own = layer.self_attn, layer.mlp
            for linear in (own[0].qkv_proj, own[0].o_proj, own[1].gate_up_proj, own[1].down_proj):
                linear(torch.zeros(8, linear.in_features))
        tiny.lm_head(torch.zeros(2, tiny.config.hidden_size))
    pairs = (3 + 4 + 5) + 7 + (1 + 2 + 3 + 4)
    config = tiny.config
    per_pair = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    # aten.linear may be seen as its transposed product
    assert limits.flop_of(tiny, spans, due=2) == 2 * (rows.linear + rows.other + pairs * per_pair)


def test_a_peer_with_one_wrong_token_is_not_exact():
    load = peers.mixed(requests=2, longest=32)
    runs = [peers.Run(1.0, 1.0, [[1, 2], [3]]), peers.Run(1.0, 1.0, [[1, 2], [4]])]
    assert peers._row("x", runs[:1], [], [[1, 2], [3]], load)["exact"] is True
    assert peers._row("x", runs, [], [[1, 2], [3]], load)["exact"] is False
