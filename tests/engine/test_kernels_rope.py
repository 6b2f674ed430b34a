"""The native decoder's rotary table: as long as its sequences, whatever the model allows, and the same bits however it grew."""

from __future__ import annotations

import pytest
import torch
from test_kernels_cpu import RandomTensors, prompt_of, run, spec_of

from baton.engine.kernels.cpu import decoder
from baton.engine.kernels.cpu.decoder import NativeDecoder


@pytest.mark.parametrize("first", [1, 7, 64])
def test_a_table_that_grows_changes_no_bit(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, tensors, prompt = spec_of(), RandomTensors(32), prompt_of(200)
    expected = run(NativeDecoder(spec, tensors), prompt, chunk=13)
    monkeypatch.setattr(decoder, "FIRST_POSITIONS", first)
    grown = run(NativeDecoder(spec, tensors), prompt, chunk=13)
    assert all(map(torch.equal, grown, expected))


def test_a_long_context_costs_nothing_until_it_is_used() -> None:
    spec, tensors, prompt = spec_of(max_model_len=2**40), RandomTensors(32), prompt_of(20)  # its table: 64 TiB
    logits, _ = run(NativeDecoder(spec, tensors), prompt, chunk=20)
    expected, _ = run(NativeDecoder(spec_of(), tensors), prompt, chunk=20)
    assert torch.equal(logits, expected)
