"""The course in one table: each stage differs from the one before it in one cell."""

from tinyengine.attention import Padded, PerRequest
from tinyengine.memory import Slots
from tinyengine.scheduler import Orca, Static

STAGES = {
    # stage      scheduler  memory  attention
    "static":    (Static,   Slots,  Padded),      # a rectangle until the longest request ends
    "orca":      (Orca,     Slots,  Padded),      # the scheduler changes: join and leave at any iteration
    "selective": (Orca,     Slots,  PerRequest),  # attention changes: padding falls to 0
}  # fmt: skip
