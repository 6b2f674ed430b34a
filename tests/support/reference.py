"""What transformers says in float32: the yardstick of greedy text and logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.support import checkpoints
from tests.support.answers import Answer, Logprob, assert_close


class Reference:
    """A checkpoint, loaded by transformers."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def generate(self, prompt: str | Sequence[int], num_tokens: int, **options: Any) -> tuple[str, tuple[Logprob, ...]]:
        """Greedy text after `prompt` (text or ids), and each token's logprob. Stops at the model's end tokens."""
        ids = torch.tensor([checkpoints.encode(prompt) if isinstance(prompt, str) else list(prompt)])
        made = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False,
            return_dict_in_generate=True, output_logits=True, **options,
        )  # fmt: skip
        new_ids = made.sequences[0, ids.shape[1] :].tolist()
        rows = [row[0].float().log_softmax(-1) for row in made.logits]
        logprobs = (float(row[i]) for row, i in zip(rows, new_ids, strict=True))
        names = (checkpoints.decode([i]) for i in new_ids)
        return checkpoints.decode(new_ids), tuple(Logprob.of(*pair, {}) for pair in zip(names, logprobs, strict=True))

    def assert_equal(self, answer: Answer, prompt: str | Sequence[int], num_tokens: int) -> None:
        """`answer`, asked for with `logprobs` but without rivals, is what transformers says."""
        text, logprobs = self.generate(prompt, num_tokens)
        assert answer.text == text
        assert_close(answer.only.logprobs, logprobs, "transformers")


reference = cache(Reference)
"""One model for each checkpoint and test session."""
