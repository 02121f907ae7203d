"""From a name or a folder in Hugging Face layout to a Qwen3 with its tokenizer."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode

from tinyengine.qwen3 import Config, Qwen3

TINY = Path(__file__).parent
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt"]

# Our fused weight, and the weights of the checkpoint that are stacked to make it.
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def load_model(name: str | Path = "tiny", device: str | None = None, dtype: torch.dtype | None = None) -> Qwen3:
    """A Qwen3 ready for the engine, with its `tokenizer`.

    name: "tiny" (the embedded model), a folder in Hugging Face layout, or a name on the hub ("Qwen/Qwen3-0.6B").
    device: where to put it; CUDA if there is one, else the CPU.
    dtype: of weights and K/V; None takes what the checkpoint says.

    Raises FileNotFoundError for a folder or hub name that cannot be had, ValueError for one that is not a Qwen3 whose
    weights fit its config.
    """
    folder = _folder(str(name))
    raw = _read_json(folder / "config.json")
    config = _config(raw, folder)
    device = _device(device)
    dtype = dtype or _dtype(raw, folder)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype is {dtype!r}, but must be a floating-point dtype of torch, such as torch.float32")
    with torch.device("meta"), Uninitialised():
        model = Qwen3(config)
    weights = {key: tensor.to(device, dtype) for key, tensor in _weights(folder, config).items()}
    if config.tie_word_embeddings and "embed_tokens.weight" in weights:
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
    _check_shapes(model, weights, folder)
    model.load_state_dict(weights, assign=True)
    model.requires_grad_(False)
    model.eos_token_ids = _eos_token_ids(folder, raw)
    model.tokenizer = _tokenizer(folder)
    model.folder = folder
    return model


class Uninitialised(TorchFunctionMode):
    """Leaves out torch.nn.init: on the device "meta" it does nothing, and imports torch._dynamo, a second, for that."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return kwargs["tensor"] if getattr(function, "__module__", "") == "torch.nn.init" else function(*args, **kwargs)


def _device(name: str | torch.device | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"device is {name!r}, but must be a device of torch: cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {str(device)!r}, but torch finds no CUDA GPU on this machine: use cpu")
    return device


def _folder(name: str) -> Path:
    if name == "tiny":
        return TINY
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith(".") or name.count("/") != 1:
        raise FileNotFoundError(
            f"model folder {name!r} does not exist: give a folder with a config.json, a hub name such as "
            '"Qwen/Qwen3-0.6B", or "tiny"'
        )
    from huggingface_hub import snapshot_download  # a local model needs no hub

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except Exception as error:  # whatever went wrong on the way, the reader can do the same two things about it
        raise FileNotFoundError(
            f"model {name!r} is neither a folder here nor to be had from the hub ({type(error).__name__}): check the "
            'name and the network, or download it where there is one and give its folder; "tiny" needs no network'
        ) from error


def _read_json(path: Path) -> dict:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"model folder {str(path.parent)!r} has no {path.name}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}): fetch the file again") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not a JSON object but {data!r}: fetch the file again")
    return data


def _config(raw: dict, folder: Path) -> Config:
    if raw.get("model_type") != "qwen3":
        raise ValueError(f"{folder} holds a model of type {raw.get('model_type')!r}, but only 'qwen3' is built here")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or raw.get("attention_bias") or raw.get("use_sliding_window"):
        raise ValueError(f"{folder} asks for scaled RoPE, attention bias or a sliding window, which are not built here")
    try:
        head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        if head_dim % 2:
            raise ValueError(f"head_dim in {folder / 'config.json'} is {head_dim}, but must be even: RoPE turns pairs")
        return Config(
            **{name: raw[name] for name in Config.__dataclass_fields__ if name in raw}
            | {
                "head_dim": head_dim,
                "rope_theta": float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
                "tie_word_embeddings": raw.get("tie_word_embeddings", False),
            }
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'config.json'} lacks a field of a Qwen3 ({error})") from None


def _dtype(raw: dict, folder: Path) -> torch.dtype:
    name = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype in {folder / 'config.json'} is {name!r}, but must be one of torch's ('bfloat16')")
    return dtype


def _weights(folder: Path, config: Config) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors under our names: without "model." in front, the fused ones stacked."""
    tensors: dict[str, torch.Tensor] = {}
    for name in _shards(folder):
        try:
            tensors |= load_file(folder / name)
        except FileNotFoundError:
            raise FileNotFoundError(f"model folder {str(folder)!r} has no {name}") from None
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{folder / name} cannot be read as safetensors ({error}): fetch the file again") from None
    tensors = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    heads, kv_heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    rows = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads, "self_attn.v_proj": kv_heads}
    for layer in range(config.num_hidden_layers):
        for fused, parts in FUSED.items():
            keys = [f"layers.{layer}.{part}.weight" for part in parts]
            missing = [key for key in keys if key not in tensors]
            if missing:
                raise ValueError(f"the weights in {folder} lack {missing[0]!r}: the config does not fit them")
            for part, key in zip(parts, keys, strict=True):  # stacked, wrong parts could make a right whole
                wanted = (rows.get(part, config.intermediate_size), config.hidden_size)
                _check_shape(key, tuple(tensors[key].shape), wanted, folder)
            tensors[f"layers.{layer}.{fused}.weight"] = torch.cat([tensors.pop(key) for key in keys])
    return tensors


def _shards(folder: Path) -> list[str]:
    """The names of the weight files."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map: fetch the file again")
    return sorted(set(weight_map.values()))


def _check_shapes(model: Qwen3, weights: dict[str, torch.Tensor], folder: Path):
    wanted = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    for key in sorted(wanted.keys() | weights.keys()):
        _check_shape(key, tuple(weights[key].shape) if key in weights else None, wanted.get(key), folder)


def _check_shape(key: str, got: tuple[int, ...] | None, wanted: tuple[int, ...] | None, folder: Path):
    if got != wanted:
        raise ValueError(f"in {folder} the weight {key!r} has shape {got}, but its config.json asks for {wanted}")


def _eos_token_ids(folder: Path, raw: dict) -> tuple[int, ...]:
    """generation_config.json knows them all; config.json often names only one."""
    path = folder / "generation_config.json"
    eos = (_read_json(path) if path.exists() else raw).get("eos_token_id")
    return tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)


def _tokenizer(folder: Path):
    """None where the folder has no tokenizer: such a model takes and gives token ids only."""
    if not (folder / "tokenizer.json").exists():
        return None
    from transformers import AutoTokenizer  # takes a second, and token ids need none

    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # it raises whatever it stumbles over: KeyError, TypeError, JSONDecodeError
        raise ValueError(
            f"{folder / 'tokenizer.json'} cannot be read as a tokenizer ({type(error).__name__}): fetch the file again"
        ) from error
