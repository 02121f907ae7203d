"""The learner's parts as an engine under test: lesson 06 counts of them what it counts of the package's stages."""

from tinyengine.clock import IterationClock
from tinyengine.course.mine import parts_of
from tinyengine.course.plugged import PluggedEngine, plugged
from tinyengine.verify.watch import Subject, Watched


class WatchedParts(PluggedEngine, Watched):
    """An engine with the learner's parts that remembers every logits row, before their sampler, and K/V entry."""


class Yours(Subject):
    """Stage invariant with the learner's parts, as an engine under test."""

    def __init__(self, model):
        super().__init__(model, "invariant", fast=False)

    def engine(self, dummy_rows: int = 0, **options) -> WatchedParts:
        sizes = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "num_slots": 8192}
        made = plugged(self.model, self.stage, parts_of(self.stage), clock=IterationClock(), **(sizes | options))
        made.__class__, made.dummy_rows, made.seen = WatchedParts, dummy_rows, {}
        return made
