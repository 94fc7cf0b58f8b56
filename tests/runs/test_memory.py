"""Work that does not fit is done in smaller pieces; other errors are not hidden."""

import pytest
import torch

from biascope.cli import _sentence as sentence_of
from biascope.families.acceptance import differentiated
from biascope.runs.failures import forward_pass
from biascope.runs.memory import fitting, halved, is_of_the_device, is_out_of_memory


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


DEVICE = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.52 GiB"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
]


@pytest.mark.parametrize("error", DEVICE)
def test_a_failure_of_the_device_is_not_blamed_on_the_network(error):
    assert is_of_the_device(error)
    assert is_out_of_memory(error) == ("memory" in str(error) or "ALLOC" in str(error))
    with pytest.raises(type(error)), forward_pass("VGG11 must accept inputs of shape 1×32×32", "Pass another shape."):
        raise error
    with pytest.raises(type(error)), differentiated("VGG11"):
        raise error
    told = sentence_of(error)
    assert told is not None
    assert told.startswith(
        "The memory is too small" if is_out_of_memory(error) else "The device failed and not the network"
    )
    assert "\n" not in told


@pytest.mark.parametrize(
    "error", [RuntimeError("expected 1 channel"), ValueError("out of memory of names"), KeyError("x")]
)
def test_a_failure_of_the_network_is(error):
    assert not is_of_the_device(error)
    with (
        pytest.raises(ValueError, match="its forward pass failed with"),
        forward_pass("VGG11 must run", "Pass another shape."),
    ):
        raise error
