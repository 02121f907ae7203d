"""The simulator: the engine's own schedulers and memories, with a cost model in the model's place, which also
moves the clock. No torch, no wall clock; a million requests on a laptop.

    >>> from tinyengine.memory import Slots
    >>> from tinyengine.scheduler import Orca
    >>> from tinyengine.simulate import Job, Unit, simulate
    >>> simulate([Job(0.0, prompt=8, output=3), Job(0.0, prompt=4, output=2)], Orca(Slots(64)), Unit()).iterations
    3
"""

from tinyengine.simulate.catalogue import GPUS, MODELS, kv_slots
from tinyengine.simulate.cost import Fitted, Load, Roofline, Unit
from tinyengine.simulate.executor import Simulator, simulate
from tinyengine.simulate.report import Report
from tinyengine.workload import Job

__all__ = ["GPUS", "MODELS", "Fitted", "Job", "Load", "Report", "Roofline", "Simulator", "Unit", "kv_slots", "simulate"]
