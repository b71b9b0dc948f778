import gc
import os

import numpy as np

from streamsampler.core.memory import Pool, lend

LARGE = (1 << 20) + 4096


def address(array):
    return array.__array_interface__["data"][0]


def allocate(pool, n=LARGE, dtype=np.uint8):
    return pool.allocate((n,), np.dtype(dtype))


def test_a_lent_array_is_returned_with_its_last_view():
    returned, memory = [], np.arange(12.0)
    array = lend(memory, lambda: returned.append(True))
    assert np.shares_memory(array, memory)
    row = array.reshape(3, 4)[1]
    half = memoryview(row)[:2]
    del array, row
    assert not returned
    assert half.tolist() == [4.0, 5.0]
    del half
    assert returned == [True]


def test_a_block_is_used_again_when_its_last_array_is_gone():
    pool = Pool()
    first = allocate(pool)
    where, view = address(first), first[10:20]
    second = allocate(pool)
    assert not np.shares_memory(first, second)
    del first
    third = allocate(pool)
    assert address(third) != where, "it is still in use"
    del view
    again = pool.allocate((LARGE // 8, 4), np.dtype(np.int16))
    assert address(again) == where
    again[:] = 3
    del pool
    gc.collect()
    assert again.min() == 3, "arrays outlive the pool"


def test_small_arrays_objects_and_blocks_much_too_large_or_too_small_are_not_kept():
    pool = Pool()
    assert allocate(pool, 10, np.float32).base is None
    assert allocate(pool, LARGE, object).tolist()[0] is None
    assert pool._free is None
    allocate(pool, 20 * LARGE)
    assert pool._free is not None
    array = allocate(pool)
    assert pool._free is None
    del array
    assert len(pool._free) == LARGE
    allocate(pool, 2 * LARGE)
    assert len(pool._free) == 2 * LARGE


def test_a_forked_copy_keeps_what_it_has():
    """While this process uses the memory again; and what the copy writes is its own."""
    pool = Pool()
    array = allocate(pool)
    array[:] = 1
    (told, tell), (heard, say) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(told, 1)
        same = bool((array == 1).all())
        array[:] = 3
        os.write(say, b"y" if same else b"n")
        os._exit(0)
    del array
    array = allocate(pool)
    array[:] = 2
    os.write(tell, b".")
    answer = os.read(heard, 1)
    os.waitpid(pid, 0)
    for fd in (told, tell, heard, say):
        os.close(fd)
    assert answer == b"y"
    assert (array == 2).all()
