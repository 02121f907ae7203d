"""GPUs and models in the numbers that a cost model needs. Peaks are from the vendors' data sheets, dense bf16 with fp32
sums; shapes are from the models' config.json."""

from dataclasses import dataclass

GB, GIB = 10**9, 2**30


@dataclass(frozen=True)
class Gpu:
    """flops: a second, dense bf16. bandwidth: of its memory, bytes a second. memory: bytes.
    link: bytes a second that it can send to a GPU beside it, in one direction."""

    name: str
    flops: float
    bandwidth: float
    memory: float
    link: float

    @property
    def ridge(self) -> float:
        """FLOP a byte from which on arithmetic, not memory, is the limit."""
        return self.flops / self.bandwidth


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer in 2-byte weights. heads, kv_heads: of queries; of keys and values. gated: its MLP has
    three matrices, else two. tied: the output head is the embedding, stored once."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True
    tied: bool = False

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of one layer: queries and output, keys and values, MLP."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        return self.vocab * self.hidden

    @property
    def weights(self) -> int:
        return self.layers * self.layer_weights + (1 if self.tied else 2) * self.head_weights

    @property
    def kv_bytes(self) -> int:
        """Of one token: a key and a value of each K/V head of each layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


# the links: NVLink where the part has it (half of the sheet's two-way figure), else PCIe 4.0 x16; four A40 share PCIe
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-pcie", 312e12, 1.935e12, 80 * GIB, 300e9),
        Gpu("a100-sxm", 312e12, 2.039e12, 80 * GIB, 300e9),
        Gpu("a100-40g", 312e12, 1.555e12, 40 * GIB, 300e9),
        Gpu("h100", 989e12, 3.35e12, 80 * GIB, 450e9),
        Gpu("h200", 989e12, 4.8e12, 141 * GB, 450e9),
        Gpu("a40", 149.7e12, 0.696e12, 48 * GIB, 32e9),
        Gpu("rtx-4090", 165.2e12, 1.008e12, 24 * GIB, 32e9),
    )
}

MODELS = {
    shape.name: shape
    for shape in (
        Shape("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000),
        Shape("yi-34b", 60, 7168, 56, 8, 128, 20480, 64000),
        Shape("llama2-70b", 80, 8192, 64, 8, 128, 28672, 32000),
        Shape("falcon-180b", 80, 14848, 232, 8, 64, 59392, 65024, gated=False, tied=True),
        Shape("opt-13b", 40, 5120, 40, 40, 128, 20480, 50272, gated=False, tied=True),
        Shape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, tied=True),
        Shape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936),
    )
}


def lookup(kind: str, name: str, known: dict):
    """`known[name]`. Raises ValueError that lists the known names."""
    if name not in known:
        raise ValueError(f"{kind} is {name!r}, but the known ones are {', '.join(known)}")
    return known[name]


def kv_slots(gpu: Gpu, shape: Shape, tp: int = 1, pp: int = 1, utilization: float = 0.85) -> int:
    """K/V slots that `tp * pp` GPUs hold beside the weights, when `utilization` of their memory may be used.

    Raises ValueError where the weights leave no room.
    """
    room = utilization * gpu.memory * tp * pp - 2 * shape.weights
    if room < shape.kv_bytes:
        need = 2 * shape.weights / GIB
        raise ValueError(
            f"{shape.name} has {need:.1f} GiB of weights, but {tp * pp} x {gpu.name} has "
            f"{utilization * gpu.memory * tp * pp / GIB:.1f} GiB to use: raise tp or pp"
        )
    return int(room // shape.kv_bytes)
