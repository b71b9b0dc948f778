from streamsampler.protocol.plans import AtLeast
from streamsampler.protocol.result import Result


def test_forgotten_segments_keep_the_numbers_of_the_others():
    result = Result(AtLeast(100), "index", 0)
    for index in range(4):
        result.add(0, range(index, index + 1), (1,), f"delivery {index}", ())
    result.forget_segments(0, 2)
    result.forget_segments(0, 2)  # again, as after an interrupt
    assert [segment.delivery for segment in result.segments()] == ["delivery 2", "delivery 3"]
    assert [segment.delivery for segment in result.segments(3)] == ["delivery 3"]
    assert result.n_trajectories == 4
