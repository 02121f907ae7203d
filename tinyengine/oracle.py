"""What the tokens must be: each request decoded alone by transformers' `generate`. Tests, demo and lessons ask here."""

from pathlib import Path

import torch

from tinyengine.params import SamplingParams


class Oracle:
    """transformers on the same weights, in float32 unless told otherwise. folder: in Hugging Face layout."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        # two seconds, which only the oracle costs
        from transformers import AutoModelForCausalLM, GenerationConfig, logging

        logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.eos_token_ids = self.model.generation_config.eos_token_id
        # `generate` fills whatever a call leaves open (no end of sequence, say) with the checkpoint's own settings
        self.model.generation_config = GenerationConfig()

    @torch.inference_mode()
    def generate(self, prompt_token_ids: list[int], params: SamplingParams) -> list[int]:
        """The greedy output of this prompt alone, its end-of-sequence token included; of the parameters max_tokens,
        ignore_eos and repetition_penalty are heeded."""
        from transformers import GenerationConfig

        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=params.max_tokens,
            repetition_penalty=params.repetition_penalty,
            eos_token_id=None if params.ignore_eos else self.eos_token_ids,
            pad_token_id=0,
        )
        ids = torch.tensor([list(prompt_token_ids)], device=self.model.device)
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return out[0, ids.shape[1] :].tolist()
