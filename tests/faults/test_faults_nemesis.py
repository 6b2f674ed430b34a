"""Half a minute of random faults under load. Longer: `python -m tests.faults.nemesis`."""

from __future__ import annotations

import os

from tests.faults.nemesis import shape_of, torment
from tests.support.processes import running

SECONDS = float(os.environ.get("BATON_NEMESIS_S", "20"))


async def test_random_faults_change_no_answer(random_model, tmp_path):
    with running(shape_of(random_model), tmp_path) as cluster:
        report = await torment(cluster, SECONDS, seed=int(os.environ.get("BATON_SEED", "1")))
    assert report.num_faults > 3
    print(report)
