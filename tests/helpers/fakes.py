"""A fake model, whose next token is a hash of the text that it finds in memory."""

from types import SimpleNamespace

import torch

from tinyengine import SamplingParams

VOCABULARY, POSITIONS, EOS = 24, 96, 23
# small whole numbers: their sums are exact also where a stage computes its mean in float32
FEATURES = torch.randint(2**10, (VOCABULARY, POSITIONS), generator=torch.Generator().manual_seed(0)).tolist()


def following(total: int, newest: int) -> int:
    """The next token, from the sum of the text's features and its newest token. Mostly it counts on, so that texts
    repeat themselves and guesses come true."""
    return (newest + 1) % VOCABULARY if total % 4 else total // 4 % VOCABULARY


class FakeModel:
    """A token's K is 0 and its V is a number that says which token it is, and where. Attention is then the mean of the
    V that a request finds through its table: one foreign, stale or misplaced slot gives another token."""

    config = SimpleNamespace(
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=1,
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
    )
    device, dtype = torch.device("cpu"), torch.float64
    eos_token_ids = (EOS,)
    tokenizer = None

    def __init__(self):
        self.features = torch.tensor(FEATURES, dtype=self.dtype)
        self.fault = lambda place: None  # called before attention, behind it, and before the logits

    def __call__(self, tokens, positions, attend, operators):
        self.fault("before")
        v = self.features[tokens, positions].view(-1, 1, 1)
        mean = attend(0, torch.zeros_like(v), torch.zeros_like(v), v).view(-1)
        self.fault("behind")
        return torch.stack([mean * (positions + 1), tokens], dim=1)

    def logits(self, hidden, operators):
        self.fault("logits")
        chosen = [following(round(total), int(newest)) for total, newest in hidden.tolist()]
        return torch.nn.functional.one_hot(torch.tensor(chosen, dtype=torch.long), VOCABULARY).float()


def expected(prompt: list[int], params: SamplingParams) -> list[int]:
    """The output of the fake model, in five lines and without an engine."""
    text = list(prompt)
    total = sum(FEATURES[token][place] for place, token in enumerate(text))
    while len(text) < len(prompt) + params.max_tokens:
        text.append(following(total, text[-1]))
        if text[-1] in params.stop_token_ids or (text[-1] == EOS and not params.ignore_eos):
            break
        total += FEATURES[text[-1]][len(text) - 1]
    return text[len(prompt) :]
