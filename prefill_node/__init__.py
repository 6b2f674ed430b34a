"""Prefill: computes prompts, samples first tokens, hands KV over."""
