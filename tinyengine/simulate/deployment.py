"""A model on GPUs under a scheduler, by name: what the command line and the paper's rows are made of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tinyengine.ablation import Ablated
from tinyengine.memory import Blocks
from tinyengine.scheduler import Chunked, Orca, Paged, Scheduler, Static
from tinyengine.simulate.catalogue import GPUS, MODELS, kv_slots, lookup
from tinyengine.simulate.cost import Cost, Roofline
from tinyengine.simulate.executor import Simulator, new_trace
from tinyengine.simulate.report import Report
from tinyengine.simulate.reservations import Reserved
from tinyengine.simulate.schedulers import PrefillFirst
from tinyengine.trace import Trace
from tinyengine.workload import Job

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Limits:
    """What a scheduler is made with. longest: the model's longest sequence, which Orca (Max) reserves."""

    slots: int
    max_num_seqs: int = 128
    token_budget: int = 512
    longest: int = 8192

    def blocks(self) -> Blocks:
        return Blocks.for_arena(self.slots, BLOCK_SIZE)

    def reserved(self, size: str) -> Reserved:
        return Reserved(self.slots, size, self.longest)


SCHEDULERS: dict[str, Callable[[Limits], Scheduler]] = {
    "static": lambda at: Static(at.reserved("max"), at.max_num_seqs),
    "orca": lambda at: Orca(at.reserved("max"), at.max_num_seqs),
    "orca-pow2": lambda at: Orca(at.reserved("pow2"), at.max_num_seqs),
    "orca-oracle": lambda at: Orca(at.reserved("oracle"), at.max_num_seqs),
    "paged": lambda at: Paged(at.blocks(), at.max_num_seqs),
    "vllm-v0": lambda at: PrefillFirst(at.blocks(), at.max_num_seqs, at.longest),
    "hybrid-only": lambda at: Ablated(at.blocks(), at.max_num_seqs, at.token_budget, chunking=False),
    "chunked-only": lambda at: Ablated(at.blocks(), at.max_num_seqs, at.token_budget, mixing=False),
    "chunked": lambda at: Chunked(at.blocks(), at.max_num_seqs, at.token_budget),
}

RESERVING = ("static", "orca", "orca-pow2", "orca-oracle")  # whose memory takes no request above Limits.longest


@dataclass(frozen=True)
class Deployment:
    """gpu, model, scheduler: names of GPUS, MODELS, SCHEDULERS. tp, pp: GPUs that share each layer; pipeline stages.

    max_num_seqs: requests in a batch, of each of the pp batches that are under way. token_budget: of a chunked
    scheduler. longest: the model's longest sequence. utilization: share of the GPUs' memory for weights and K/V.
    slots: K/V slots in all; None: as many as fit. host: seconds an iteration takes beside the kernels.
    cost: a cost model in the roofline's place, such as Fitted.

    Raises ValueError for an unknown name, which lists the known ones, and where the weights do not fit.
    """

    gpu: str
    model: str
    scheduler: str = "chunked"
    tp: int = 1
    pp: int = 1
    max_num_seqs: int = 128
    token_budget: int = 512
    longest: int = 8192
    utilization: float = 0.85
    slots: int | None = None
    host: float = 0.002
    cost: Cost | None = None

    def __post_init__(self):
        lookup("scheduler", self.scheduler, SCHEDULERS)
        self.make_cost(), self.limits()

    def make_cost(self) -> Cost:
        gpu, shape = lookup("gpu", self.gpu, GPUS), lookup("model", self.model, MODELS)
        return self.cost or Roofline(gpu, shape, self.tp, self.pp, host=self.host)

    def limits(self) -> Limits:
        """Of one of the pp schedulers."""
        slots = self.slots
        if slots is None:
            slots = kv_slots(GPUS[self.gpu], MODELS[self.model], self.tp, self.pp, self.utilization)
        return Limits(slots // self.pp, self.max_num_seqs, self.token_budget, self.longest)

    def schedulers(self) -> list[Scheduler]:
        """New ones, one for each stage of the pipeline."""
        return [SCHEDULERS[self.scheduler](self.limits()) for _ in range(self.pp)]

    def new_trace(self) -> Trace:
        """An empty one, for run(trace=...)."""
        return new_trace(self.scheduler, self.schedulers())

    def run(self, jobs: Iterable[Job], **options) -> Report:
        """Simulates the jobs; options: those of Simulator."""
        return Simulator(self.schedulers(), self.make_cost(), **options).run(jobs)
