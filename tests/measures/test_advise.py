"""Networks ranked for a signal before training: candidates, warnings, the check, and what is kept."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from biascope import Family, Run
from biascope.measures.advise import advise
from biascope.measures.advise.candidates import Candidate, parse_candidates, usual_candidates
from biascope.measures.advise.kernels import TIMES, SignalKernels, _spectrum
from biascope.measures.advise.result import Advice
from biascope.results.registry import load
from biascope.results.report import write_report
from biascope.runs.randomness import generator_for
from biascope.runs.trials import Trials
from biascope.tasks.signals import Signal, coordinate_grid

HERE = Run(device="cpu", progress=False)
SMALL = {"points": 64, "draws": 2, "width": 24}


def tones(*frequencies: float, samples: int = 128) -> Signal:
    at = coordinate_grid((samples,))
    return Signal(
        torch.stack([torch.sin(2 * math.pi * f * at[:, 0] + f) for f in frequencies]).sum(0)[:, None], "tones"
    )


def image(channels: int = 1) -> Signal:
    r = coordinate_grid((16, 20))
    values = torch.stack([torch.sin((4 + k) * r[:, 0]) * torch.cos(9 * r[:, 1] + k) for k in range(channels)], 1)
    return Signal(0.5 + 0.3 * values.reshape(16, 20, channels), "image")


def sirens(*omegas: float) -> list[Candidate]:
    return [Candidate("siren", omega) for omega in omegas]


def test_usual_candidates_are_the_published_range_at_64_pixels_and_scale_with_the_samples() -> None:
    usual = usual_candidates((64, 64))
    omegas = [each.value for each in usual if each.kind == "siren"]
    assert (omegas[0], omegas[-1]) == (5.0, 100.0)
    assert [each.value for each in usual if each.kind == "ffn"] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert [each.kind for each in usual].count("relu") == 1
    larger = [each.value for each in usual_candidates((400, 640)) if each.kind == "siren"]
    assert larger[-1] == pytest.approx(10 * omegas[-1], rel=0.05)
    assert larger[0] == 5.0
    sound = [each.value for each in usual_candidates((88_200,)) if each.kind == "siren"]
    assert sound[-1] == pytest.approx(math.pi * 88_200 / 4, rel=0.05)
    assert sound[-1] / sound[0] == pytest.approx(256, rel=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lenet", "must be one of siren, ffn, relu"),
        ("siren=fast", "must have a positive number"),
        ("relu=3", "must have a positive number"),
        ("single", "needs a number"),
        (" , ", "must name at least one"),
    ],
)
def test_candidates_that_are_none_are_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_candidates(text, (64, 64))


def test_candidates_are_not_doubled_and_build_networks_of_the_signal_s_shape() -> None:
    found = parse_candidates("relu,siren=30,relu,single=1,positional=0.5,ffn=2,siren=30", (8, 8, 8))
    assert [each.name for each in found] == [
        "ReLU MLP",
        "SIREN ω₀=30",
        "single frequency f₀=1",
        "positional f₀=0.5",
        "FFN σ=2",
    ]
    for each in found:
        network = each.family(3, outputs=2, width=8).template
        assert network(torch.zeros(5, 3)).shape == (5, 2)
    assert found[4].model == "--model coordinate_mlp --set encoding=gaussian --set sigma=2.0"


def test_the_order_is_that_of_training() -> None:
    chosen = [Candidate("relu"), *sirens(1, 5, 15, 40)]
    found = advise(tones(3, 7), chosen, steps=60, rate=1e-3, check=True, run=HERE, **SMALL)
    assert found.names[-1] == "ReLU MLP"
    assert found.agreement()[60] >= 0.8
    assert found.iterations == (2, 6, 20, 60)
    assert found.trained is not None
    assert found.trained.shape == (4, 5)
    assert found.points == (16, 64)
    assert "rank correlation" in found.sentence()
    assert "trained PSNR, dB, after iterations" in found.table()
    tables, best = found.tables(), found.tables()["networks"][0]
    assert list(found.headline())[:5] == [f"predicted_psnr:{row['candidate']}" for row in tables["networks"]]
    assert found.headline()["agreement:60"].value == found.facts()["agreement"][60] == found.agreement()[60]
    assert found.headline()[f"predicted_psnr:{best['candidate']}"].unit == best["predicted_psnr"].unit == "dB"
    assert best["predicted_psnr"].value == found.score(0).value
    assert [row["iterations"] for row in tables["trainings"][:4]] == [2, 6, 20, 60]
    assert tables["trainings"][3]["trained_psnr"].value == found.trained[3, 0]


def test_frequencies_far_beyond_the_samples_are_warned_of_as_aliasing() -> None:
    found = advise(tones(23, samples=128), sirens(30, 300), run=HERE, **SMALL)
    share = dict(zip(found.names, found.beyond, strict=True))
    assert share["SIREN ω₀=300"] > 0.01 > share["SIREN ω₀=30"]
    aliased = [words for words in found.warnings if words.startswith("Aliasing")]
    assert len(aliased) == 1
    assert "SIREN ω₀=300" in aliased[0]
    assert "SIREN ω₀=30 " not in aliased[0]


def test_frequencies_that_a_mapping_never_reaches_are_named() -> None:
    found = advise(tones(5, samples=64), [Candidate("single", 2.0), Candidate("single", 1.0)], run=HERE, **SMALL)
    covered = dict(zip(found.names, found.covered, strict=True))
    assert covered["single frequency f₀=2"] == pytest.approx(0.0, abs=1e-9)
    assert covered["single frequency f₀=1"] == pytest.approx(1.0)
    told = [words for words in found.warnings if "no harmonic" in words]
    assert len(told) == 1
    assert "single frequency f₀=2: 100 %" in told[0]
    assert "The strongest is 5 cycles" in told[0]


def test_slow_atoms_are_warned_of() -> None:
    found = advise(tones(20, samples=64), [Candidate("relu"), *sirens(60)], run=HERE, **SMALL)
    assert found.slow[found.names.index("ReLU MLP")] > 0.2 > found.slow[found.names.index("SIREN ω₀=60")]
    assert any("ReLU MLP" in words and words.startswith("Uncovered") for words in found.warnings)


def test_the_best_at_the_end_of_its_range_asks_for_more() -> None:
    found = advise(tones(12), sirens(4, 16, 64), run=HERE, **SMALL)
    assert found.names[0] == "SIREN ω₀=64"
    assert "largest of its kind" in found.warnings[0]
    assert "siren=128" in found.warnings[0]


def test_channels_share_a_network_and_constant_ones_do_not_matter() -> None:
    colour = image(3)
    chosen = [*sirens(5, 20), Candidate("ffn", 1.0), Candidate("ffn", 4.0)]
    whole = advise(colour, chosen, steps=2, check=True, run=HERE, **SMALL)
    assert whole.trained is not None
    assert whole.trained.shape == (2, 4)
    assert np.isfinite(whole.trained).all()
    with_blank = torch.cat([colour.values, torch.full((16, 20, 1), 0.7)], -1)
    padded = advise(dataclasses.replace(colour, values=with_blank), chosen, steps=2, run=HERE, **SMALL)
    assert np.allclose(padded.predicted, whole.predicted)


def test_volumes_and_flat_arrays() -> None:
    r = coordinate_grid((6, 6, 6))
    volume = Signal(torch.sin(r.sum(1) * 5).reshape(6, 6, 6, 1), "volume")
    row = Signal(torch.sin(coordinate_grid((80,)) * 20).reshape(1, 80, 1), "row")
    for signal in (volume, row):
        found = advise(signal, sirens(5, 20), run=HERE, **SMALL)
        assert np.isfinite(found.predicted).all()
        assert found.between.sum(1) == pytest.approx(1.0, abs=0.2)


def test_regression_on_a_window_is_that_of_a_linear_network() -> None:
    """f = w·r has the kernel r·r': with one weight, everything has a closed form."""
    signal = Signal(coordinate_grid((64,)) - 0.5, "ramp")
    line = Family.initialised(functools.partial(nn.Linear, 1, 1, bias=False), name="line")
    kernels = SignalKernels(signal, (16, 64), 64, 0)
    found = kernels.outcomes(line, 1, HERE, lambda count: None)[0]
    start = line.draw(1, seed=0, run=dataclasses.replace(HERE, precision="float64")).member(0).params["weight"].item()
    r, ridges = coordinate_grid((64,))[:, 0], 64 / TIMES
    order = torch.randperm(64, generator=generator_for(torch.device("cpu"), 0, "held out"))
    left, kept = order[:32], order[32:]
    missing = (r - 0.5) - start * r
    slope = (r[kept] @ missing[kept]) / ((r[kept] @ r[kept]) + ridges)  # (t,)
    expected = (slope[:, None] * r[left] - missing[left]).square().mean(1)
    assert torch.allclose(found["errors"][-1], expected)
    share = float((r @ (r - 0.5 - (r - 0.5).mean())) ** 2 / (r @ r) / (r - 0.5 - (r - 0.5).mean()).square().sum())
    assert found["learned"].tolist() == pytest.approx((share * (r @ r >= ridges).double()).tolist(), abs=1e-9)
    assert float(found["pace"]) == pytest.approx(1 / abs(float(-missing @ r / 64)))


def test_energy_of_a_wave_lies_on_its_frequency() -> None:
    fine = torch.cos(2 * math.pi * 6 * (torch.arange(32) + 0.5) / 32)[:, None].double()  # 6 cycles over 16 samples
    found = _spectrum(fine, [16], 64)
    assert float(found["frequencies"][int(found["spectrum"].argmax())]) == 24  # 64 samples to the side
    assert float(found["beyond"]) == pytest.approx(0.0, abs=1e-12)
    beyond = _spectrum(torch.cos(2 * math.pi * 12 * (torch.arange(32) + 0.5) / 32)[:, None].double(), [16], 64)
    assert float(beyond["beyond"]) == pytest.approx(1.0)


def test_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dataclasses.replace(HERE, folder=tmp_path)
    first = advise(image(), sirens(5, 20), steps=3, check=True, run=run, **SMALL)

    def none(self: Trials, key: str, outcome: object) -> None:
        raise AssertionError(f"{key} was computed again")

    monkeypatch.setattr(Trials, "write", none)
    again = advise(image(), sirens(5, 20), steps=3, check=True, run=run, **SMALL)
    assert np.array_equal(again.predicted, first.predicted)
    assert first.trained is not None
    assert again.trained is not None
    assert np.array_equal(again.trained, first.trained)
    with pytest.raises(AssertionError, match="computed again"):
        advise(image(), sirens(5, 21), run=run, **SMALL)


@pytest.mark.parametrize(
    ("signal", "settings", "message"),
    [
        (Signal(torch.rand(8, 1)), {}, "must have at least 64 samples to rank networks, got 8"),
        (Signal(torch.full((100, 1), 0.3)), {}, "must vary, got one value everywhere"),
        (tones(3), {"points": 5000}, "points must be from 64 to 4,096, got 5000"),
        (tones(3), {"draws": 0}, "draws must be at least 1, got 0"),
        (tones(3), {"steps": 0}, "steps must be at least 1, got 0"),
        (tones(3), {"rate": -1.0}, "rate must be a positive number, got -1.0"),
    ],
)
def test_what_cannot_be_ranked_is_a_sentence(signal: Signal, settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advise(signal, sirens(5, 20), **{**SMALL, **settings}, run=HERE)


def test_a_network_that_diverges_is_last() -> None:
    found = advise(tones(3, 7), sirens(5, 20, 40), run=HERE, **SMALL)
    worst = dataclasses.replace(found, iterations=(100,), trained=np.array([[3.0, 2.0, np.nan]]))
    assert worst.agreement() == {100: pytest.approx(1.0)}
    assert "diverged" in worst.table()


def test_the_result_is_saved_drawn_and_reported(tmp_path: Path) -> None:
    found = advise(image(), [*sirens(5, 20, 60), Candidate("relu")], steps=2, check=True, run=HERE, **SMALL)
    found.save(tmp_path / "advise")
    again = Advice.load(tmp_path / "advise")
    assert again.sentence() == found.sentence()
    assert again.table() == found.table()
    assert again.warnings == found.warnings
    page = write_report([found], tmp_path / "report.html").read_text(encoding="utf-8")
    for words in ("SIREN ω₀=20", "Predicted ranking", "Predicted PSNR against ω₀ and σ", "Predicted and trained PSNR"):
        assert words in page
    one = advise(image(), sirens(20), run=HERE, **SMALL)
    assert one.trained is None
    assert list(one.headline()) == ["predicted_psnr:siren=20"]
    assert list(one.tables()) == ["networks"]
    assert one.agreement() == {}
    assert one.sentence().startswith("For image and 100 iterations, use SIREN ω₀=20")


def test_what_was_saved_as_advice_before_it_was_a_measurement_still_loads(tmp_path: Path) -> None:
    found = advise(image(), sirens(5, 20), run=HERE, **SMALL)
    assert found.provenance["measurement"] == "advise"
    assert found.provenance["data"] == {"name": "image", "shape": [16, 20, 1]}
    before = dataclasses.replace(found, provenance={**found.provenance, "measurement": "advice"})
    again = load(before.save(tmp_path / "advice"))
    assert isinstance(again, Advice)
    assert again.measurement == "advice"
    assert again.table() == found.table()
    assert "which network to use for this signal" not in write_report([again], tmp_path / "report.html").read_text(
        encoding="utf-8"
    )


def test_warnings_are_told_once() -> None:
    found = advise(tones(12), sirens(4, 16, 64), run=HERE, **SMALL)
    assert len(set(found.warnings)) == len(found.warnings) > 0
    assert "warnings" not in found.provenance
