"""Probes: the same inputs for all, or fresh ones for each that do not depend on how the work is cut."""

import math
import pickle

import numpy as np
import pytest
import torch
from networks_under_test import CPU, CPU64, global_states, normal

from biascope.runs.run import Run
from biascope.tasks.probe import Probe


def test_fixed_inputs_are_those_given():
    x = normal(3, 2, 4)
    probe = Probe.fixed(x)
    assert (probe.num, probe.fresh, probe.input_shape) == (3, False, (2, 4))
    assert probe.description == "3 given inputs"
    assert Probe.fixed(x[:1]).description == "1 given input"
    assert Probe.fixed(x, "photographs").description == "photographs"
    assert torch.equal(probe.inputs(0, 1, CPU64), x)
    assert torch.equal(probe.inputs(40, 700, CPU64), x)  # whoever asks
    assert probe.inputs(0, 1, CPU).dtype is torch.float32


def test_fixed_inputs_may_be_arrays_and_trees():
    tree = {"image": np.ones((2, 3), dtype=np.float64), "tokens": torch.tensor([[1, 2], [3, 4]]), "flag": True}
    probe = Probe.fixed(tree)
    inputs = probe.inputs(0, 1, CPU)
    assert probe.num == 2
    assert inputs["image"].dtype is torch.float32
    assert inputs["tokens"].dtype is torch.int64  # integers stay what they are
    assert inputs["flag"] is True
    assert Probe.fixed((torch.zeros(4, 7), torch.zeros(4, 2))).input_shape == (7,)
    assert Probe.fixed({"flag": True, "x": torch.zeros(4, 7)}).input_shape == (7,)


@pytest.mark.parametrize(
    ("x", "sizes"),
    [
        (torch.zeros(0, 3), r"\[0\]"),
        ((torch.zeros(2, 3), torch.zeros(3, 3)), r"\[2, 3\]"),
        (torch.tensor(1.0), r"\[\]"),
        ({}, r"\[\]"),
    ],
)
def test_inputs_without_one_leading_axis_are_a_sentence(x, sizes):
    with pytest.raises(
        ValueError, match=rf"^Inputs must share one leading axis .* got {sizes}\. Pass x\[None\] for one"
    ):
        Probe.fixed(x)


def test_gaussian_inputs_have_the_law_asked_for():
    probe = Probe.gaussian((50, 40), num=5, std=3.0, seed=4)
    x = probe.inputs(0, 1, CPU)
    assert x.shape == (5, 50, 40)
    assert abs(float(x.mean())) < 5 * 3.0 / math.sqrt(10_000)
    assert float(x.std()) == pytest.approx(3.0, abs=5 * 3.0 / math.sqrt(20_000))
    assert probe.description == "5 fixed N(0, 3²) inputs of shape 50×40 (seed 4)"
    assert torch.equal(x, Probe.gaussian((50, 40), num=5, std=3.0, seed=4).inputs(0, 1, CPU))
    assert not torch.equal(x, Probe.gaussian((50, 40), num=5, std=3.0, seed=5).inputs(0, 1, CPU))


def test_fresh_inputs_do_not_depend_on_the_cut():
    probe = Probe.gaussian((3,), num=2, fresh=True, seed=1)
    assert (probe.fresh, probe.input_shape) == (True, (3,))
    whole = probe.inputs(0, 600, CPU)  # more than two blocks of 256
    assert whole.shape == (600, 2, 3)
    for start, stop in ((0, 1), (255, 257), (100, 599), (256, 512), (599, 600)):
        assert torch.equal(probe.inputs(start, stop, CPU), whole[start:stop])
    assert whole.flatten(1).unique(dim=0).shape[0] == 600


def test_fresh_inputs_have_their_law_and_members_are_independent():
    x = Probe.gaussian((100,), num=2, std=0.5, fresh=True).inputs(0, 300, CPU64)
    assert abs(float(x.mean())) < 5 * 0.5 / math.sqrt(60_000)
    assert float(x.std()) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(120_000))
    assert float((torch.corrcoef(x.flatten(1)) - torch.eye(300)).abs().max()) < 6.5 / math.sqrt(200)
    between_blocks = torch.corrcoef(torch.stack([x[0].flatten(), x[256].flatten()]))[0, 1]
    assert abs(float(between_blocks)) < 5 / math.sqrt(200)


def test_a_sampled_law_may_give_trees():
    def law(generator: torch.Generator, count: int):
        tokens = torch.randint(0, 9, (count, 4), generator=generator)
        return {"tokens": tokens, "image": torch.rand((count, 2, 2), generator=generator)}

    probe = Probe.sampled(law, num=3, seed=2, description="pairs")
    whole = probe.inputs(0, 300, CPU64)
    assert whole["tokens"].shape == (300, 3, 4)
    assert whole["image"].shape == (300, 3, 2, 2)
    assert whole["image"].dtype is torch.float64
    part = probe.inputs(250, 260, CPU64)
    assert all(torch.equal(part[name], whole[name][250:260]) for name in whole)


def test_an_empty_sample_is_a_sentence():
    with pytest.raises(ValueError, match=r"^num must be at least 1 input per member, got 0\. Pass num=1\.$"):
        Probe.gaussian((3,), num=0, fresh=True)


def test_an_identity_sees_what_is_looked_at():
    x = normal(2, 4, 4)
    probes = [
        Probe.fixed(x),
        Probe.fixed(x + 1e-9),
        Probe.fixed(x.reshape(2, 2, 8)),
        Probe.fixed({"x": x, "tokens": torch.tensor([1, 2])}),
        Probe.fixed({"x": x, "tokens": torch.tensor([1, 3])}),
        Probe.gaussian((4, 4), num=2),
        Probe.gaussian((4, 4), num=2, seed=1),
        Probe.gaussian((4, 4), num=2, std=2.0),
        Probe.gaussian((4, 4), num=2, fresh=True),
        Probe.gaussian((4, 4), num=3, fresh=True),
        Probe.gaussian((4, 4), num=2, fresh=True, seed=1),
    ]
    assert len({str(probe.identity) for probe in probes}) == len(probes)
    assert Probe.fixed(x.clone()).identity == probes[0].identity == Probe.fixed(x, "photographs").identity
    assert Probe.fixed({"flag": True, "x": x}).identity  # what is no tensor only accompanies


def test_half_precision_inputs_are_rounded_only_where_asked_for():
    x = normal(1, 3)
    assert torch.equal(Probe.fixed(x).inputs(0, 1, Run(device="cpu", precision="bfloat16")), x.bfloat16())


def test_the_global_generators_are_left_alone():
    before = global_states()
    Probe.gaussian((3,)).inputs(0, 1, CPU)
    Probe.gaussian((3,), fresh=True).inputs(0, 3, CPU)
    assert global_states() == before


def test_a_block_of_fresh_inputs_is_drawn_once_and_never_changed() -> None:
    counts: list[int] = []

    def law(generator: torch.Generator, count: int) -> torch.Tensor:
        counts.append(count)
        return torch.randn((count, 3), generator=generator)

    probe, run = Probe.sampled(law, 2), Run(device="cpu")
    first = probe.inputs(0, 4, run)
    kept = first.clone()
    first.zero_()  # a network may work in place on its input
    torch.testing.assert_close(probe.inputs(0, 4, run), kept)
    assert counts == [1, 512]  # one tells how large an input is
    later = probe.inputs(254, 258, run)  # across the border of two blocks
    assert counts == [1, 512, 512]
    torch.testing.assert_close(probe.inputs(0, 4, run), kept)
    torch.testing.assert_close(Probe.sampled(law, 2).inputs(254, 258, run), later)
    assert pickle.loads(pickle.dumps(Probe.sampled(torch_law, 2)))._latest._held is None


def test_large_inputs_are_drawn_in_blocks_that_fit_into_memory() -> None:
    counts: list[int] = []

    def law(generator: torch.Generator, count: int) -> torch.Tensor:
        counts.append(count)
        return torch.randn((count, 3, 224, 224), generator=generator)

    probe = Probe.sampled(law, 64)  # 256 networks of 64 such inputs each would take 10 GB
    assert probe.inputs(0, 2, Run(device="cpu")).shape == (2, 64, 3, 224, 224)
    assert max(counts) == 64


def torch_law(generator: torch.Generator, count: int) -> torch.Tensor:
    """One that can be sent to another process."""
    return torch.randn((count, 3), generator=generator)


@pytest.mark.parametrize(("shape", "along"), [((2, 16, 12), None), ((15, 3), None), ((3, 16), (1,))])
def test_smooth_inputs_have_variance_1_and_amplitudes_of_1_over_frequency(shape, along):
    x = Probe.smooth(shape, along=along, num=4000, seed=2).inputs(0, 1, CPU64)[0]
    along = along or ((1, 2) if len(shape) == 3 else (0,))
    assert float(x.mean(0).abs().max()) < 5 / math.sqrt(4000)
    assert float((x.var(0) - 1).abs().max()) < 5 * math.sqrt(2 / 4000)
    dims = tuple(place + 1 for place in along)
    power = torch.fft.fftn(x, dim=dims).abs().square().mean(0)
    power = power.mean(tuple(place for place in range(len(shape)) if place not in along))  # over channels or features
    axes = torch.meshgrid(*(torch.fft.fftfreq(shape[place], dtype=torch.float64) for place in along), indexing="ij")
    frequency = torch.stack(axes).square().sum(0).sqrt()
    assert float(power[frequency > 0.4999].sum()) < 1e-10 * float(power.max())  # nothing from the Nyquist frequency on
    inside = frequency < 0.4999
    level = (power * frequency.clamp(min=1 / max(shape[place] for place in along)).square())[inside]
    assert float((level / level.mean() - 1).abs().max()) < 0.15


def test_smooth_inputs_are_fresh_independent_along_other_axes_and_a_function_of_the_seed():
    probe = Probe.smooth((3, 8, 8), num=2, std=3.0, seed=5)
    assert probe.description == "2 fresh smooth random inputs of shape 3×8×8 and standard deviation 3 per network"
    x = probe.inputs(0, 400, CPU64)
    assert x.shape == (400, 2, 3, 8, 8)
    assert float(x.std()) == pytest.approx(3.0, rel=0.03)
    assert abs(float((x[:, :, 0] * x[:, :, 1]).mean())) < 0.2 * 9
    assert torch.equal(Probe.smooth((3, 8, 8), num=2, std=3.0, seed=5).inputs(300, 301, CPU64), x[300:301])
    assert not torch.equal(Probe.smooth((3, 8, 8), num=2, std=3.0, seed=6).inputs(0, 1, CPU64), x[:1])


@pytest.mark.parametrize("along", [(), (3,), (1, 1), (-1,)])
def test_smooth_inputs_need_axes_to_be_smooth_along(along):
    with pytest.raises(
        ValueError, match=r"^along must be different places of axes .* Pass along=\(1, 2\) for images\.$"
    ):
        Probe.smooth((3, 8, 8), along=along)
