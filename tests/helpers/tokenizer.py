"""A tokenizer that splits characters."""

TEXT = "the cat 世界 한국어 🦊🦊 naïve e\u0301 " * 8


def byte_tokenizer(vocab_size: int = 300):
    """A byte-level BPE whose tokens end anywhere in a character, and merge over its border: no pre-tokenizer keeps them
    apart. `<|end|>` is special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=4,
    )
    tokenizer.train_from_iterator([TEXT[i : i + 40] for i in range(0, len(TEXT), 7)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False)
