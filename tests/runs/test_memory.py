"""Work that does not fit is done in smaller pieces; other errors are not hidden."""

import pytest
import torch

from biascope.runs.memory import fitting, halved, is_out_of_memory


def limited(most: int, error: Exception):
    def work(size: int) -> int:
        if size > most:
            raise error
        return 10 * size

    return work


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("you can't allocate memory here")])
def test_the_first_size_that_fits_is_taken(error):
    assert fitting(limited(100, error), 8, halved) == (80, 8)
    assert fitting(limited(3, error), 9, halved) == (20, 2)
    with pytest.raises(type(error)):
        fitting(limited(0, error), 9, halved)


def test_other_errors_are_raised_at_once():
    sizes = []

    def work(size: int) -> None:
        sizes.append(size)
        raise RuntimeError("a wrong shape")

    with pytest.raises(RuntimeError, match="a wrong shape"):
        fitting(work, 8, halved)
    assert sizes == [8]
    assert not is_out_of_memory(RuntimeError("a wrong shape"))
