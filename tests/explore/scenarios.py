"""What is explored: a set that takes a minute with every test run, and a set for `make explore` that takes hours."""

from __future__ import annotations

from dataclasses import replace

from tests.explore.world import Scenario

_COARSE = Scenario("", chunk=3, slow_writes=False)
"""Prefill computes three positions at once, and a write to a block is over when it has begun."""

_TRANSFER = ("kill", "cut_kv", "break_kv", "stall")

QUICK = (
    replace(_COARSE, name="any one fault", num_faults=1),
    replace(_COARSE, name="one fault while writes take time", num_faults=1, faults=_TRANSFER, slow_writes=True),
    replace(_COARSE, name="two deaths or endings", faults=("kill", "cut_kv", "cancel", "router_dies"), prompt_len=2),
    replace(_COARSE, name="two faults, timers too", faults=("kill", "stall", "reserve_timeout"), prompt_len=2),
    replace(_COARSE, name="one worker of each role", num_workers=1, num_faults=1),
    replace(_COARSE, name="one token", max_tokens=1),
    replace(_COARSE, name="ended by its first token", finish_first=True, stop_at=1, num_faults=1),
    replace(_COARSE, name="ended by the router's text", stop_at=2, num_faults=1, faults=("kill", "cut_kv")),
    replace(_COARSE, name="preempted", preempts=True, num_faults=1, faults=("kill", "cut_kv"), prompt_len=2),
    replace(_COARSE, name="two choices", num_choices=2, num_faults=1, faults=("kill",), prompt_len=1, max_tokens=2),
    replace(_COARSE, name="two choices, preempted", num_choices=2, preempts=True, num_faults=0, prompt_len=1),
    replace(_COARSE, name="two requests for one decode slot", num_requests=2, num_workers=1, num_faults=0, max_tokens=2),
)

_FINE = Scenario("", reduced=False)

WANDERED = replace(_FINE, name="any two faults, every order")

THOROUGH = (
    *QUICK,
    replace(_COARSE, name="any two faults", prompt_len=2),
    replace(_COARSE, name="any two faults, three frames"),
    replace(_FINE, name="any one fault, every order", num_faults=1),
    replace(_COARSE, name="two choices, any one fault", num_choices=2, num_faults=1, prompt_len=2),
    replace(_COARSE, name="two requests at once", num_requests=2, num_faults=1, max_tokens=2, prompt_len=2),
    replace(_COARSE, name="two requests for one slot", num_requests=2, num_workers=1, num_faults=1, max_tokens=2, prompt_len=1),
    WANDERED,
)
