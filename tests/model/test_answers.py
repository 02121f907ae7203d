"""The shipped weights answer as the lessons promise, measured on prompts kept out of training."""

from __future__ import annotations

from random import Random

import pytest
import torch

from tinyengine.model import evaluate, text
from tinyengine.model import tokenizer as tok

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
UNICODE = [
    "", "Mia", " Mia", "  two  spaces ", "a\n b\t\tc", "What is 23 + 45?", "héllo 世界 🦊", "e\u0301 \u202eabc",
    "x<y|>z", "\n",
]


@pytest.fixture(scope="module")
def loaded():
    return evaluate.load()


def accuracy(loaded, family: str, sample: int, **options) -> float:
    return evaluate.accuracy(*loaded, family, sample, seed=2, **options)


# With a true rate of 99.5 %, fewer than 97 % of 200 right come up less than once in 3,000 seeds; the seed is fixed.
@pytest.mark.parametrize("family", ["capital", "sum", "count", "short"])
def test_short_families(loaded, family):
    assert accuracy(loaded, family, 200) >= 0.97


def test_every_capital_and_every_polite_prompt(loaded):
    questions = [(f"What is the capital of {country}?", city) for country, city in text.CAPITALS.items()]
    assert all(evaluate.right(*loaded, questions + list(text.MANNERS.items())))


@pytest.mark.parametrize("tokens", [100, 500, 1000, 1950])
def test_an_easy_question_behind_a_long_text(loaded, tokens):
    assert accuracy(loaded, "behind", 40, tokens=tokens) >= 0.95


@pytest.mark.parametrize("tokens", [20, 50, 100, 200, 300])
def test_lookups(loaded, tokens):
    assert accuracy(loaded, "lookup", 100, n=tokens // 4) >= 0.95


@pytest.mark.parametrize("family", ["capital", "sum", "count", "short"])
def test_a_question_typed_without_the_chat_form(loaded, family):
    assert accuracy(loaded, family, 100, plain=True) >= 0.95


def test_stories_end_and_vary_in_length(loaded):
    shorts, longs = (evaluate.story_lengths(*loaded, kind, 20) for kind in ("short", "long"))
    assert max(shorts) < 60 and min(longs) > 60 and max(longs) < 400
    assert len(set(longs)) >= 8


def test_files_are_small():
    assert sum((evaluate.HERE / name).stat().st_size for name in FILES) < 4_000_000


def test_the_layout_is_a_qwen3_with_shared_heads(loaded):
    config = loaded[0].config
    assert config.model_type == "qwen3" and config.tie_word_embeddings
    assert config.num_attention_heads == 2 * config.num_key_value_heads
    assert config.vocab_size == len(loaded[1]) and all(p.dtype == torch.float32 for p in loaded[0].parameters())


def test_the_two_loaders_of_the_tokenizer_agree(loaded):
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(evaluate.HERE / "tokenizer.json"))
    prompts = [tok.chat(text.question(family, Random(3))[0]) for family in text.FAMILIES]
    for sample in UNICODE + prompts:
        assert loaded[1].encode(sample) == plain.encode(sample).ids


def test_encode_and_decode_round_trip_exactly(loaded):
    for sample in UNICODE + [tok.chat("Mia: fox. Mia?", "fox")]:
        assert loaded[1].decode(loaded[1].encode(sample)) == sample


def test_chat_template(loaded):
    tokenizer = loaded[1]
    messages = [{"role": "user", "content": "Mia: fox. Mia?"}]
    written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert written == tok.chat("Mia: fox. Mia?")
    messages.append({"role": "assistant", "content": "fox"})
    assert tokenizer.apply_chat_template(messages, tokenize=False) == tok.chat("Mia: fox. Mia?", "fox")
    with pytest.raises(Exception, match="Only the roles"):
        tokenizer.apply_chat_template([{"role": "system", "content": "Be kind."}], tokenize=False)


def test_names_and_values_are_one_token(loaded):
    assert all(len(loaded[1].encode(word)) == 1 for word in text.CONTENT)


def test_generation_config_ends_at_both_end_tokens(loaded):
    ends = loaded[1].convert_tokens_to_ids([tok.END, tok.END_OF_TEXT])
    assert loaded[0].generation_config.eos_token_id == ends
    assert loaded[0].generation_config.pad_token_id == loaded[1].pad_token_id == ends[1]
