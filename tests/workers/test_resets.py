"""What calls say of their trajectories: seeds and reset options, without a worker."""

import numpy as np
import pytest

from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.errors import UsageError
from streamsampler.workers.resets import Resets, common_resets, given_resets

DERIVED = TrajectorySeeds(0, 1)


def test_nothing_given_is_nothing():
    assert given_resets(3, None, None) == (3, None)
    assert common_resets(None) is None
    assert Resets().seeds_of(DERIVED, range(3)) == DERIVED.of(range(3))


THREE = [3, 0, 2**40]


@pytest.mark.parametrize("seeds", [THREE, tuple(THREE), np.array(THREE), iter([np.int64(3), 0, 2**40])])
def test_seeds_tell_how_many_and_become_plain_integers(seeds):
    n, resets = given_resets(None, seeds, None)
    assert (n, resets.seeds, resets.is_fixed) == (3, (3, 0, 2**40), True)
    assert set(map(type, resets.seeds or ())) == {int}
    assert resets.seeds_of(DERIVED, range(2, 4)) == [2**40, DERIVED[3]]


@pytest.mark.parametrize(
    ("n", "seeds", "options", "message"),
    [
        (None, None, None, "n_trajectories must be an integer, got None: pass a number of trajectories, or seeds"),
        (None, None, [{}], "n_trajectories must be an integer"),
        (0, [1], None, "n_trajectories must be at least 1, got 0"),
        (2, [1, 2, 3], None, "n_trajectories is 2, but seeds has 3 items"),
        (None, [], None, "seeds is empty"),
        (None, 5, None, "seeds must be a sequence of integers, one for each trajectory, got 5"),
        (None, "12", None, "seeds must be a sequence of integers"),
        (None, [1, -1], None, r"seeds\[1\] must be at least 0, got -1"),
        (None, [1.0], None, r"seeds\[0\] must be an integer, got 1.0"),
        (None, [True], None, r"seeds\[0\] must be at least 0, got True"),
        (None, np.zeros((2, 2), int), None, r"seeds\[0\] must be an integer"),
        (3, None, [{}, {}], "there are 3 trajectories, but reset_options has 2 items"),
        (None, [1], [{}, {}], "there are 1 trajectories, but reset_options has 2 items"),
        (3, None, [{}, 3, {}], r"reset_options\[1\] must be a dict or None, got 3"),
        (3, None, "abc", "reset_options must be a dict, or a list with one for each trajectory, got 'abc'"),
        (3, None, 3, "reset_options must be a dict, or a list"),
        (3, None, {1, 2, 3}, "reset_options must be a dict, or a list"),
    ],
)
def test_what_cannot_work_is_named_with_both_numbers(n, seeds, options, message):
    with pytest.raises(UsageError, match=message):
        given_resets(n, seeds, options)


def test_options_for_all_or_for_each():
    n, resets = given_resets(2, None, {"level": [1]})
    assert (n, resets.is_fixed) == (2, False)
    assert resets.options_of(0) == resets.options_of(1) == {"level": [1]}
    assert resets.vector_arguments == {"options": {"level": [1]}}
    assert Resets(seeds=(1,)).vector_arguments == {}
    n, resets = given_resets(2, None, [{"level": 1}, None])
    assert resets.is_fixed
    assert [resets.options_of(index) for index in range(4)] == [{"level": 1}, None, {"level": 1}, None]
    with pytest.raises(UsageError, match="a vector environment takes one dict of reset options"):
        _ = resets.vector_arguments
    assert common_resets({"level": 1}).options == {"level": 1}
    for wrong in ([{}], 3, "level"):
        with pytest.raises(UsageError, match="reset_options must be a dict for all trajectories"):
            common_resets(wrong)


def test_an_environment_may_change_what_it_gets():
    resets = Resets(options={"level": [1]})
    resets.options_of(0)["level"].append(2)  # type: ignore[index]
    assert resets.options_of(0) == {"level": [1]}
