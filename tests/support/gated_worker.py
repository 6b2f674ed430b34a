"""A worker whose engine steps pass a gate and whose KV takes a bad link, both held by the test.

`python -m tests.support.gated_worker FLAGS`
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from baton.cli import worker
from tests.support.gate import GATE_VARIABLE, Gate
from tests.support.link import LINK_VARIABLE, BadLink


def main(argv: Sequence[str]) -> int:
    gate, link = Gate(Path(os.environ[GATE_VARIABLE])), BadLink(Path(os.environ[LINK_VARIABLE]))
    gate.open()
    link.gate.open()
    return worker.main(argv, worker.Hooks(step_gate=gate.step, wrap_transport=link.wrap))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
