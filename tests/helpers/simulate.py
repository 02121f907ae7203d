"""What the simulator's tests share: schedulers of every kind, drawn jobs, and a run told in full."""

from hypothesis import strategies as st

from tinyengine.ablation import Ablated
from tinyengine.extras import assemble
from tinyengine.memory import Blocks, Slots
from tinyengine.scheduler import Chunked, Orca, Paged, Static
from tinyengine.simulate import Job, Roofline, Simulator
from tinyengine.simulate.catalogue import GIB, Gpu, Shape
from tinyengine.simulate.schedulers import PrefillFirst

# powers of two, so that doubling a rate halves a time to the last bit; small, so that attention is felt
GPU = Gpu("toy", flops=2.0**30, bandwidth=2.0**28, memory=GIB, link=2.0**24)
SHAPE = Shape("toy", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocab=256)


def roofline(gpu: Gpu = GPU, pp: int = 1, host: float = 0.0) -> Roofline:
    return Roofline(gpu, SHAPE, pp=pp, mfu=0.5, bandwidth=0.5, tile=4, host=host)


def chunked(slots: int, seqs: int, most: int, **options) -> Chunked:
    sizes = {"num_slots": slots, "block_size": 4, "max_num_seqs": seqs, "max_num_batched_tokens": most}
    return assemble(Chunked, Blocks, options, **sizes)


SCHEDULERS = {
    "static": lambda slots, seqs: Static(Slots(slots), seqs),
    "orca": lambda slots, seqs: Orca(Slots(slots), seqs),
    "counter": lambda slots, seqs: Orca(Slots(slots, contiguous=False), seqs),
    "paged": lambda slots, seqs: Paged(Blocks.for_arena(slots, 4), seqs),
    "chunked": lambda slots, seqs: chunked(slots, seqs, 7),
    "wide": lambda slots, seqs: chunked(slots, seqs, 40),
    "priority": lambda slots, seqs: chunked(slots, seqs, 16, policy="priority"),
    "priority, few": lambda slots, seqs: chunked(slots, seqs, 3, policy="priority"),
    "priority, chunked only": lambda slots, seqs: chunked(slots, seqs, 12, policy="priority", mixing=False),
    "priority, hybrid only": lambda slots, seqs: chunked(slots, seqs, 12, policy="priority", chunking=False),
    "fcfs and no budget": lambda slots, seqs: chunked(slots, seqs, 7, policy="fcfs", budget=None, mixing=True),
    "first chunk": lambda slots, seqs: chunked(slots, seqs, 7, admit_first_chunk=True),
    "hybrid only": lambda slots, seqs: Ablated(Blocks.for_arena(slots, 4), seqs, 12, chunking=False),
    "chunked only": lambda slots, seqs: Ablated(Blocks.for_arena(slots, 4), seqs, 12, mixing=False),
    "chunked only, few": lambda slots, seqs: Ablated(Blocks.for_arena(slots, 4), seqs, 3, mixing=False),
    "prefill first": lambda slots, seqs: PrefillFirst(Blocks.for_arena(slots, 4), seqs, 24, watermark=0.05),
    "prefill first, few": lambda slots, seqs: PrefillFirst(Blocks.for_arena(slots, 4), seqs, 2, watermark=0.05),
    "prefill first, no limit": lambda slots, seqs: PrefillFirst(Blocks.for_arena(slots, 4), seqs, watermark=0.0),
}
SLOTS = 64  # tight: at most 50 of them for one request, so that requests block and drive out each other
ROOMY = 160  # blocks are plenty now and then, so that decodes are set aside and taken back


@st.composite
def jobs(draw, largest: int = 30, most: int = 24, longest: int = 20):
    """Up to `most` jobs, of prompts and outputs up to `largest` and `longest`, that arrive in bursts and in lulls,
    multiples of 1/16 of a second apart."""
    prompt = st.integers(1, 2) | st.integers(1, largest)
    moment, found = 0.0, []
    for _ in range(draw(st.integers(1, most))):
        moment += draw(st.sampled_from([0, 0, 0, 1, 2, 5, 40])) / 16
        found.append(Job(moment, draw(prompt), draw(st.integers(1, longest)), draw(st.sampled_from([0, 0, 1]))))
    return found


def told(work, schedulers, cost, **options):
    """The report, and of each request when it began, had its first and its last token, and its worst gap."""
    story = {}

    def tell(request):
        story[request.request_id] = (request.began, request.first, request.last, request.worst_gap, request.arrival)

    report = Simulator(schedulers, cost, on_finish=tell, **options).run(work)
    return report, story
