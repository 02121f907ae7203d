"""What takes the place of `engine.forward` for the batches that suit it."""

from weakref import WeakMethod, proxy

import torch

from tinyengine.batch import Batch


class Forward:
    """The engine's forward, by `run` where a batch suits it and the engine's parts are those that this was made for,
    else as before."""

    def __init__(self, engine):
        self.engine = proxy(engine)  # it holds this: were it held by this, only the collector would free its arena
        self._otherwise = WeakMethod(engine.forward)
        self._made_for = self._parts()

    def __call__(self, batch: Batch) -> torch.Tensor:
        """[len(batch.wanted), hidden]"""
        if self._parts() == self._made_for and self.suits(batch):
            return self.run(batch)
        return self.otherwise(batch)

    def otherwise(self, batch: Batch) -> torch.Tensor:
        """[len(batch.wanted), hidden], as before this took its place"""
        return self._otherwise()(batch)

    def suits(self, batch: Batch) -> bool:
        raise NotImplementedError

    def run(self, batch: Batch) -> torch.Tensor:
        """[len(batch.wanted), hidden], of a batch that suits"""
        raise NotImplementedError

    def _parts(self) -> tuple:
        """What a user may replace after an engine was made: then this no longer suits."""
        engine = self.engine
        return engine.model, engine.attention, engine.attention.cache, engine.operators, torch.get_num_threads()
