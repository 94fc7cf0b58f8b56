import pytest
import torch
from torch import nn

from biascope.derivatives.gradients import input_gradient
from biascope.derivatives.member_threads import MemberThreads, of_member
from biascope.families.family import Family
from biascope.runs.run import Run


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 1))


@pytest.mark.parametrize("members", [1, 2, 3, 7])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("paired", [False, True])
def test_members_come_back_in_order_whoever_computed_them(members: int, threads: int, paired: bool) -> None:
    stack = Family.initialised(smooth).draw(members, seed=0, run=Run(device="cpu", precision="float64")).read("first")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((members, 2, 5) if paired else (2, 5), generator=generator, dtype=torch.float64)
    wanted = torch.stack([input_gradient(stack.member(i), of_member(x, i, paired)) for i in range(members)])
    found = MemberThreads([input_gradient] * threads, paired)(stack, x)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_many_rounds_do_not_mix_weights_between_threads() -> None:
    stack = Family.initialised(smooth).draw(200, seed=1, run=Run(device="cpu", precision="float64")).read("first")
    x = torch.ones(1, 5, dtype=torch.float64)
    torch.testing.assert_close(
        MemberThreads([input_gradient] * 4, False)(stack, x), input_gradient(stack, x), rtol=1e-12, atol=1e-14
    )


def test_the_number_of_threads_is_restored_and_errors_come_through() -> None:
    def failing(*_: object) -> torch.Tensor:
        raise ValueError("broken")

    before = torch.get_num_threads()
    stack = Family.initialised(smooth).draw(4, seed=0, run=Run(device="cpu")).read("first")
    with pytest.raises(ValueError, match="broken"):
        MemberThreads([failing, failing], False)(stack, torch.zeros(1, 5))
    assert torch.get_num_threads() == before
