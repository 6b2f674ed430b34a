"""A worker process whose engine steps pass a gate that the test holds: `python -m tests.support.gated_worker FLAGS`."""

import os
import sys
from pathlib import Path

from baton.cli.worker import Hooks, main
from tests.support.gate import GATE_VARIABLE, Gate

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Hooks(step_gate=Gate(Path(os.environ[GATE_VARIABLE])).step)))
