"""How long a batch takes: one interface, three models. A simulated clock is moved by these and by nothing else.

A cost model has `stages` (of its pipeline) and `seconds(load)`: how long each stage is busy with a batch of that load.
"""

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

from tinyengine.simulate.catalogue import Gpu, Shape


class Load(NamedTuple):
    """A batch in five numbers, so that a cost model takes the same time for any batch.

    tokens: rows of the batch. sequences: requests in it.
    decode_contexts: K/V positions that rows of one token read, summed over those requests.
    prefill_pairs: (query, key) pairs of the longer rows: n tokens after s others have n s + n (n + 1) / 2.
    prefill_contexts: K/V positions that those longer rows read, summed over their requests: s + n each.
    """

    tokens: int
    sequences: int
    decode_contexts: int = 0
    prefill_pairs: int = 0
    prefill_contexts: int = 0


def chunk(start: int, n_tokens: int) -> Load:
    """The load of `n_tokens` tokens of one request, of which `start` are computed."""
    if n_tokens == 1:
        return Load(1, 1, start + 1)
    return Load(n_tokens, 1, 0, n_tokens * start + n_tokens * (n_tokens + 1) // 2, start + n_tokens)


def together(*loads: Load) -> Load:
    """The load of a batch that has all of these in it."""
    return Load(*map(sum, zip(*loads)))


class Cost(Protocol):
    @property
    def stages(self) -> int: ...

    def seconds(self, load: Load) -> float: ...


@dataclass(frozen=True)
class Unit:
    """Every iteration takes the same time: the clock counts iterations, as the course's first lessons do."""

    iteration: float = 1.0
    stages: int = 1

    def seconds(self, load: Load) -> float:
        return self.iteration


class Roofline:
    """What the hardware allows, and a share of it: the larger of arithmetic and of reading the weights, then attention,
    communication, and what the host takes for each iteration.

    gpu, shape: from the catalogue. tp, pp: GPUs that share each layer; pipeline stages that share the layers.
    mfu, bandwidth: shares of the peaks that good kernels reach. tile: a matrix product computes whole tiles of so many
    rows (257 tokens cost what 384 cost). host: seconds an iteration takes beside the kernels.

    Raises ValueError for a share outside (0, 1], a degree below 1, a tp that does not divide the heads, and a negative
    host time.
    Source: the roofline model (Williams et al., CACM 2009); tiles and the cost of small chunks: Sarathi-Serve (OSDI
    2024), section 4.3. The four shares are one setting for everything that is simulated here.
    """

    def __init__(
        self,
        gpu: Gpu,
        shape: Shape,
        tp: int = 1,
        pp: int = 1,
        mfu: float = 0.70,
        bandwidth: float = 0.75,
        tile: int = 128,
        host: float = 0.002,
    ):
        for name, share in (("mfu", mfu), ("bandwidth", bandwidth)):
            if not 0 < share <= 1:
                raise ValueError(f"{name} is {share}, but must be above 0 and at most 1: a share of the GPU's peak")
        for name, degree in (("tp", tp), ("pp", pp), ("tile", tile)):
            if degree < 1:
                raise ValueError(f"{name} is {degree}, but must be at least 1")
        if shape.heads % tp:
            divisors = ", ".join(str(n) for n in range(1, shape.heads + 1) if shape.heads % n == 0)
            raise ValueError(
                f"tp is {tp}, but {shape.name} has {shape.heads} heads, which {tp} GPUs cannot share evenly: choose "
                f"one of {divisors}"
            )
        if host < 0:
            raise ValueError(f"host is {host}, but must be at least 0 seconds")
        self.gpu, self.shape, self.tp, self.stages = gpu, shape, tp, pp
        self.tile, self.host = tile, host
        layers = shape.layers / (tp * pp)  # a GPU's share of all layers' work, whichever way it is cut
        flops, memory, link = gpu.flops * mfu, gpu.bandwidth * bandwidth, gpu.link * bandwidth
        weights = shape.layer_weights * layers
        head = shape.head_weights / (tp * pp)  # counted evenly over the stages, as a balanced pipeline places it
        self._row = 2 * weights / flops  # one multiplication and one addition a weight
        self._floor = 2 * weights / memory  # every weight is read once, however few the rows: 2 bytes each
        self._head_row, self._head_floor = 2 * head / flops, 2 * head / memory
        self._pair = 4 * shape.heads * shape.head_dim * layers / flops  # q k and p v
        self._position = shape.kv_bytes / (tp * pp) / memory
        ring = 2 * (tp - 1) / tp  # of its bytes, each GPU sends so much in a ring all-reduce; two of them a layer
        sent = 2 * shape.hidden * (2 * ring * shape.layers / pp + (pp > 1))  # and once to the next stage
        self._token = sent / link if sent else 0.0

    def seconds(self, load: Load) -> float:
        tokens, sequences, decode_contexts, prefill_pairs, prefill_contexts = load
        tile = self.tile
        linear = -(-tokens // tile) * tile * self._row
        head = -(-sequences // tile) * tile * self._head_row
        return (
            (linear if linear > self._floor else self._floor)
            + (head if head > self._head_floor else self._head_floor)
            + prefill_pairs * self._pair
            + (decode_contexts + prefill_contexts) * self._position
            + tokens * self._token
            + self.host
        )


class Fitted:
    """A line through measured batches: seconds = fixed + a tokens + b sequences + c decode contexts + d prefill pairs.

    Least squares on relative errors, so that short batches count as much as long ones; none of the five may be negative
    (a batch that takes less time for having more to do would be noise).
    """

    stages = 1
    FEATURES = ("fixed", "tokens", "sequences", "decode_contexts", "prefill_pairs")

    def __init__(self, coefficients: dict[str, float]):
        missing = [name for name in self.FEATURES if name not in coefficients]
        if missing:
            raise ValueError(f"coefficients lack {', '.join(missing)}: give all of {', '.join(self.FEATURES)}")
        self.coefficients = {name: float(coefficients[name]) for name in self.FEATURES}
        self._terms = tuple(self.coefficients.values())

    @classmethod
    def fit(cls, measured: list[tuple[Load, float]]) -> "Fitted":
        """measured: loads, and the seconds each took. Raises ValueError for fewer than ten of them, and for a time that
        is not above 0."""
        import numpy as np  # no other cost model needs it

        if len(measured) < 10:
            raise ValueError(f"{len(measured)} batches were measured, but a fit of five numbers wants at least 10")
        if any(not seconds > 0 for _, seconds in measured):
            raise ValueError("a measured batch took 0 seconds or less: measure with a clock that moves")
        times = np.array([seconds for _, seconds in measured])
        rows = np.array([cls._row(load) for load, _ in measured], dtype=float) / times[:, None]
        scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)  # pairs are millions where sequences are tens
        kept = list(range(len(cls.FEATURES)))
        while True:  # drop what comes out negative, the most negative first, and fit the rest again
            solution = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(times)), rcond=None)[0]
            if len(kept) == 1 or solution.min() >= 0:
                break
            kept.pop(int(solution.argmin()))
        found = dict.fromkeys(cls.FEATURES, 0.0)
        found |= {cls.FEATURES[index]: float(value / scale[index]) for index, value in zip(kept, solution)}
        return cls(found)

    @staticmethod
    def _row(load: Load) -> tuple[int, ...]:
        return 1, load.tokens, load.sequences, load.decode_contexts, load.prefill_pairs

    def seconds(self, load: Load) -> float:
        return sum(term * feature for term, feature in zip(self._terms, self._row(load)))

    def error(self, measured: list[tuple[Load, float]]) -> float:
        """Median of |predicted - measured| / measured."""
        return median(abs(self.seconds(load) - seconds) / seconds for load, seconds in measured)
