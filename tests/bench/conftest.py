"""Each benchmark run once, in a tiny configuration."""

import pytest

from tinyengine.bench import peers, profile, stages, stall


@pytest.fixture(scope="session")
def ladder():
    return stages.run(workloads=("course",), repeats=2)


@pytest.fixture(scope="session")
def stalled():
    return stall.run(decodes=2, long_prompt=300, max_tokens=40, sizes=(9, 17, 64), tbt_target=1e-6, repeats=2)


@pytest.fixture(scope="session")
def profiled():
    shapes = peers.SHAPES | dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2)
    return profile.run(shapes=shapes, batches=(2, 3), budget=12, matrix=32, rounds=1)
