"""Random programs, disturbed by kills and stops, against `LocalSampler`; 500 of them are a proof."""

import logging
from collections import Counter

import pytest

from tests.proofs.random_programs import run_program


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("streamsampler")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.mark.slow
def test_random_programs():
    tally = Counter()
    for number in range(1_000, 1_012):
        run_program(number, tally)
    assert tally["programs"] == 12
