"""Any Qwen3 folder gives the model that transformers makes of it, and any other folder a sentence that says why not."""

import json
import shutil

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from tinyengine import load_model
from tinyengine.attention import KVCache, PerRequest
from tinyengine.memory import Slots
from tinyengine.request import Request, SamplingParams

SMALL = dict(
    vocab_size=90,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    initializer_range=0.1,
    eos_token_id=5,
    pad_token_id=0,
    bos_token_id=None,
)
TOKENS = [3, 14, 15, 9, 26, 53, 58, 89, 0, 1]


def save(folder, dtype=torch.float32, shard="1GB", **changes):
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**{**SMALL, **changes})).to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


@torch.inference_mode()
def logits_of(model) -> torch.Tensor:
    """Of every position of TOKENS as one prompt."""
    memory, request = Slots(32), Request("r", TOKENS, SamplingParams(max_tokens=1))
    memory.reserve(request)
    attention = PerRequest(KVCache(model.config, 32, 1, model.device, model.dtype))
    batch = attention.layout([(request, len(TOKENS))], memory, 1, model.device)
    return model.logits(model(batch.tokens, batch.positions, attention(batch)))


@torch.inference_mode()
def reference_of(folder, dtype) -> torch.Tensor:
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=dtype).eval()(torch.tensor([TOKENS])).logits[0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("shard", ["1GB", "15KB"])
def test_logits_are_those_of_transformers(tmp_path, tied, group, shard):
    save(tmp_path, shard=shard, tie_word_embeddings=tied, num_key_value_heads=8 // group)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "15KB")
    model = load_model(tmp_path, device="cpu")
    torch.testing.assert_close(logits_of(model), reference_of(tmp_path, torch.float32), atol=1e-5, rtol=1e-5)


def test_a_sharded_untied_bf16_checkpoint_loads_as_it_is(tmp_path):
    save(tmp_path, torch.bfloat16, "15KB", tie_word_embeddings=False)
    model = load_model(tmp_path, device="cpu")
    assert model.dtype == torch.bfloat16 and len(list(tmp_path.glob("*.safetensors"))) > 1
    got, right = logits_of(model).float(), reference_of(tmp_path, torch.bfloat16).float()
    exact = logits_of(load_model(tmp_path, device="cpu", dtype=torch.float32))
    torch.testing.assert_close(exact, reference_of(tmp_path, torch.float32), atol=1e-5, rtol=1e-5)
    # both round to bf16 on their way, in different places: neither may be further from the exact logits than usual
    assert (got - exact).abs().max() < 2 * (right - exact).abs().max() + 0.02


def test_the_embedded_model_has_the_logits_of_transformers(tiny):
    torch.testing.assert_close(logits_of(tiny), reference_of(tiny.folder, torch.float32), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_weights_are_in_memory_once(tmp_path, dtype):
    model = load_model(save(tmp_path, tie_word_embeddings=True), device="cpu", dtype=dtype)
    assert model.lm_head.weight.data_ptr() == model.embed_tokens.weight.data_ptr()
    assert model.dtype == dtype


def test_the_rotary_base_and_the_positions_come_from_the_config(tmp_path):
    save(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    model = load_model(tmp_path, device="cpu")
    assert (model.config.rope_theta, model.config.max_position_embeddings) == (5000.0, 64)
    torch.testing.assert_close(logits_of(model), reference_of(tmp_path, torch.float32), atol=1e-5, rtol=1e-5)


def test_a_config_as_older_transformers_wrote_it_is_read_too(tmp_path):
    """rope_theta and torch_dtype at the top, as in Qwen/Qwen3-0.6B."""
    save(tmp_path, torch.bfloat16, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    new = load_model(tmp_path, device="cpu")
    change_config(tmp_path, rope_parameters=None, rope_scaling=None, rope_theta=5000.0)
    change_config(tmp_path, dtype=None, torch_dtype="bfloat16")
    old = load_model(tmp_path, device="cpu")
    assert old.dtype == torch.bfloat16 and old.config == new.config
    assert logits_of(old).equal(logits_of(new))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [([7, 8], 5, (7, 8)), (7, 5, (7,)), ("no file", 5, (5,)), ("no file", [5, 6], (5, 6)), ("no file", None, ())],
)
def test_end_of_sequence_tokens(tmp_path, generation, config, expected):
    save(tmp_path)
    change_config(tmp_path, eos_token_id=config)
    path = tmp_path / "generation_config.json"
    if generation == "no file":
        path.unlink()
    else:
        path.write_text(json.dumps({"eos_token_id": generation}))
    assert load_model(tmp_path, device="cpu").eos_token_ids == expected


def test_a_loaded_model_knows_its_folder_and_asks_for_no_gradients(tmp_path):
    model = load_model(str(save(tmp_path)), device="cpu")
    assert model.folder == tmp_path and model.tokenizer is None
    assert not any(parameter.requires_grad for parameter in model.parameters())


# ---- What cannot be loaded -------------------------------------------------------------------------------------------


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def refused(folder, kind=ValueError) -> str:
    """The one sentence that the loader says."""
    with pytest.raises(kind) as error:
        load_model(folder, device="cpu")
    text = str(error.value)
    assert "\n" not in text and ". " not in text and not text.endswith("."), text
    return text


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "model")


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "nowhere", "a/b/c", "~/nowhere-at-all/x/y"])
def test_a_folder_that_is_not_there(name):
    said = refused(name, FileNotFoundError)
    assert name in said and "does not exist" in said and "config.json" in said


def test_an_empty_folder(tmp_path):
    assert "has no config.json" in refused(tmp_path, FileNotFoundError)


@pytest.mark.parametrize("text", ["{", "", "\x00\x01", "[]", "3", "null"])
def test_a_config_that_is_no_json_object(folder, text):
    (folder / "config.json").write_text(text)
    assert "config.json is not" in refused(folder)


@pytest.mark.parametrize("kind", ["llama", None])
def test_another_kind_of_model(folder, kind):
    change_config(folder, model_type=kind)
    assert f"holds a model of type {kind!r}, but only 'qwen3'" in refused(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_parameters": None},
        {"attention_bias": True},
        {"use_sliding_window": True},
    ],
)
def test_what_is_not_built_here_is_refused_not_ignored(folder, changes):
    change_config(folder, **changes)
    assert "not built here" in refused(folder)


def test_an_odd_head_dim(folder):
    change_config(folder, head_dim=15)
    assert "head_dim" in refused(folder) and "is 15, but must be even" in refused(folder)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_key_value_heads", "rms_norm_eps"])
def test_a_config_without_a_field(folder, name):
    config = json.loads((folder / "config.json").read_text())
    del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    said = refused(folder)
    assert "lacks a field of a Qwen3" in said and name in said


@pytest.mark.parametrize("dtype", ["float99", "nn", 16])
def test_an_unknown_dtype(folder, dtype):
    change_config(folder, dtype=dtype)
    assert f"is {dtype!r}, but must be one of torch's" in refused(folder)


@pytest.mark.parametrize("keep", [0, 4, 8, 200, 3000, -1])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.safetensors cannot be read as safetensors" in refused(folder)


@pytest.mark.parametrize("garbage", [b"\x00" * 5000, b"\xff" * 5000, b"not weights at all" * 100])
def test_garbage_for_weights(folder, garbage):
    (folder / "model.safetensors").write_bytes(garbage)
    assert "model.safetensors cannot be read as safetensors" in refused(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(folder, FileNotFoundError)


def test_a_lost_shard(tmp_path):
    save(tmp_path, shard="15KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    assert f"has no {lost.name}" in refused(tmp_path, FileNotFoundError)


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": 3}', "{"])
def test_a_broken_index_of_shards(tmp_path, text):
    save(tmp_path, shard="15KB")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refused(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.self_attn.q_norm.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path, name):
    folder = save(tmp_path, tie_word_embeddings=False)
    change_weights(folder, lambda weights: weights.pop(name))
    said = refused(folder)
    assert name.removeprefix("model.") in said


@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.input_layernorm.weight"],
)
def test_a_wrong_shape_is_named(folder, name):
    change_weights(folder, lambda weights: weights.update({name: torch.zeros(3, *weights[name].shape[1:])}))
    said = refused(folder)
    assert name.removeprefix("model.") in said and "has shape (" in said and "asks for (" in said


def test_parts_of_a_fused_weight_that_do_not_stack(folder):
    name = "model.layers.1.self_attn.k_proj.weight"
    change_weights(folder, lambda weights: weights.update({name: torch.zeros(32, 7)}))
    assert "layers.1.self_attn" in refused(folder)


def test_more_layers_than_the_config_says(folder):
    change_config(folder, num_hidden_layers=1)
    assert "layers.1." in refused(folder)


def test_fewer_layers_than_the_config_says(folder):
    change_config(folder, num_hidden_layers=3)
    assert "lack 'layers.2." in refused(folder)


def test_parts_of_a_fused_weight_in_swapped_sizes(folder):
    """q, k and v stacked have the right shape in all, but the wrong borders: it would load, and talk nonsense."""

    def swap(weights):
        q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
        weights[q], weights[k] = weights[k].clone(), weights[q].clone()

    change_weights(folder, swap)
    assert "layers.0.self_attn" in refused(folder)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_a_hub_name_without_network_says_what_to_do(offline):
    said = refused("Qwen/Qwen3-0.6B", FileNotFoundError)
    assert "'Qwen/Qwen3-0.6B'" in said and "network" in said and '"tiny" needs no network' in said


def test_an_impossible_hub_name(offline):
    assert "'a b/c'" in refused("a b/c", FileNotFoundError)


def test_a_hub_name_and_a_folder_take_the_same_path(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: asked.append(name) or str(folder))
    assert logits_of(load_model("somebody/something", device="cpu")).equal(logits_of(load_model(folder, device="cpu")))
    assert asked == ["somebody/something"]


def test_a_damaged_copy_of_the_embedded_model_says_which_file(tiny, tmp_path):
    for path in tiny.folder.glob("*.json"):
        shutil.copy(path, tmp_path)
    weights = (tiny.folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-100])
    assert str(tmp_path / "model.safetensors") in refused(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "[]", "{}"])
def test_a_corrupt_tokenizer(tiny, tmp_path, text):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny.folder / name, tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    assert "tokenizer.json cannot be read as a tokenizer" in refused(tmp_path)


def test_a_model_that_is_converted_computes_with_rotary_tables_of_its_new_type(tmp_path):
    save(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert {table.dtype for table in model.rope_tables()} == {torch.float32}
    assert {table.dtype for table in model.to(torch.bfloat16).rope_tables()} == {torch.bfloat16}
