"""What is said where processes compute with different kernels: pure."""

import pytest

from streamsampler.core.fingerprints import Fingerprint, agree, disagreement, series

NEW, OLD = Fingerprint("numpy=aa torch=11", "big"), Fingerprint("numpy=bb torch=22", "small")


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ([], True),
        (["numpy=aa", "numpy=aa"], True),
        (["numpy=aa", "numpy=bb"], False),
        (["numpy=aa", "numpy=aa torch=11"], True),  # what one of them has not loaded is not compared
        (["numpy=aa torch=12", "numpy=aa", "numpy=aa torch=11"], False),
        (["anything", "anything else", ""], True),  # a file may have been changed
    ],
)
def test_libraries_are_compared_one_by_one(bits, expected):
    assert agree(*bits) is expected


def test_only_workers_that_compute_otherwise_are_named_with_their_machines_and_digests():
    alike = [(0, NEW), (1, NEW._replace(host="other")), (2, NEW._replace(bits="numpy=aa"))]
    assert [disagreement(alike), disagreement([])] == ["", ""]
    text = disagreement([(5, OLD), (1, NEW), (0, NEW), (2, NEW._replace(host="bigger")), (7, OLD)])
    assert text.startswith("numpy and torch compute with other kernels in some workers than in others")
    both = "workers 0 to 2 on big and bigger (numpy=aa torch=11); workers 5 and 7 on small (numpy=bb torch=22). For"
    assert both in text
    assert "use machines of one kind, with the same versions of libraries" in text


def test_a_library_that_agrees_is_not_blamed():
    told = [(0, NEW), (1, OLD._replace(bits="numpy=bb torch=11")), (2, NEW._replace(bits="torch=11"))]
    text = disagreement(told)
    assert text.startswith("numpy computes with other kernels")
    assert "worker 0 on big" in text
    assert "worker 2" not in text, "it has no numpy to compare"


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ([3], "worker 3"),
        ([3, 4], "workers 3 and 4"),
        ([0, 1, 2, 5], "workers 0 to 2 and 5"),
        (range(0, 40, 2), "workers 0, 2, 4, 6, 8, 10, 12 and 13 more"),
    ],
)
def test_many_workers_are_named_in_few_words(workers, text):
    assert series(list(workers)) == text
