"""The tokenizer of the embedded model: one token a known word, one a digit, and bytes for everything else."""

from __future__ import annotations

from collections import Counter
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tinyengine.model import text

END_OF_TEXT, USER, ASSISTANT, END = SPECIALS = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
VOCAB_SIZE = 1024

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}{{ raise_exception('Only the roles user and assistant are known, not ' ~ message['role']) }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# A word carries the space before it; digits and signs stand alone. The look-ahead leaves the last space to the word.
SPLIT = Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+")


def splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(SPLIT, behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def known_pieces() -> list[str]:
    """Every piece (in byte-level letters) of more than one byte that the text generator writes, sorted."""
    split, counts, rng = splitter(), Counter(), Random(0)
    for family in text.FAMILIES:
        for _ in range(12000):
            options = {"tokens": 20} if family == "behind" else {}
            prompt, answer = text.question(family, rng, held=False, **options)
            counts.update(piece for piece, _ in split.pre_tokenize_str(f" {prompt} {answer}"))
    closed = set(f"Ġ{word}" for word in text.CONTENT)
    # The random letters of the distracting text come once or twice; every real word comes more often.
    return sorted(closed | {piece for piece, n in counts.items() if len(piece) > 1 and n >= 5})


def build() -> PreTrainedTokenizerFast:
    """Build the tokenizer.

    `ignore_merges` looks a whole piece up before any merging, so a word needs no chain of half words in the small
    vocabulary. The normalizer puts one space before the text, also after each special token: "Mia" at the start is the
    same token as " Mia" in the middle. The decoder takes exactly that space away again.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = known_pieces()
    room = VOCAB_SIZE - len(SPECIALS) - len(alphabet)
    assert len(pieces) == room, f"the word list has {len(pieces) - room:+d} words for the vocabulary of {VOCAB_SIZE}"
    vocab = {token: i for i, token in enumerate(SPECIALS + alphabet + pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = splitter()
    tokenizer.decoder = decoders.Sequence([
        decoders.ByteLevel(), *(decoders.Replace(f"{token} ", token) for token in SPECIALS), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END_OF_TEXT, chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False, model_max_length=4096, padding_side="left",
    )


def chat(prompt: str, answer: str = "") -> str:
    """One turn of the chat form, up to where the model answers, or with its answer."""
    return f"{USER}{prompt}{ASSISTANT}" + (f"{answer}{END}" if answer else "")
