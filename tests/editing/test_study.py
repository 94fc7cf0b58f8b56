"""An encoder with heads and task vectors of every seed: what is fitted, what is kept, and what is written for merging."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from networks_under_test import CPU, batchnorm_convnet, network_of, normal
from torch import nn

from biascope import __version__
from biascope.editing import study as task_study
from biascope.editing import tuning as task_tuning
from biascope.editing.heads import fitted_head
from biascope.editing.merge import merge
from biascope.editing.study import Study, save_vectors, study_of, usual_rates
from biascope.editing.tuning import tuned_vectors, tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.families.network import Network
from biascope.runs import files
from biascope.runs.digest import fingerprint
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

RECIPES = {
    "non-linear": tuning_recipe(steps=4, rate=0.02, batch=16),
    "linearised": tuning_recipe(steps=4, rate=0.05, batch=16),
}


def tanh_encoder() -> Network:
    return in_float32(lambda: nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 5)))


def in_float32(build: Callable[[], nn.Module]) -> Network:
    return network_of(build, readout=None).to(torch.device("cpu"), torch.float32)


def clouds(shift: float, name: str) -> Arrays:
    x = normal(60, 4, seed=round(shift), dtype=torch.float32) + shift
    y = (x[:, 0] > shift).long()
    return Arrays({"train": (x[:40], y[:40]), "validation": (x[40:], y[40:])}, name=name)


def tasks_named(*names: str) -> dict[str, Arrays]:
    return {name: clouds(place, name) for place, name in enumerate(names)}


def digests(study: Study) -> list[dict[str, dict[str, str]]]:
    return [
        {tuning: {task: fingerprint(each.deltas) for task, each in by.items()} for tuning, by in seed.items()}
        for seed in study.vectors
    ]


def test_heads_and_vectors_are_those_of_each_task_seed_and_tuning() -> None:
    encoder, tasks = tanh_encoder(), tasks_named("a", "b")
    study = study_of(encoder, tasks, recipes=RECIPES, seeds=[3, 5], name="tanh", run=CPU)
    heads = {name: fitted_head(encoder, task, run=CPU) for name, task in tasks.items()}
    assert study.name == "tanh"
    assert {name: head.identity for name, head in study.heads.items()} == {n: h.identity for n, h in heads.items()}
    assert study.heads["a"].penalty == heads["a"].penalty
    assert study.heads["a"].accuracy == heads["a"].accuracy > 0.7
    for place, seed in enumerate((3, 5)):
        for tuning, recipe in RECIPES.items():
            alone = tuned_vectors(encoder, heads, tasks, recipe, tunings=(tuning,), seed=seed, run=CPU)[tuning]
            assert digests(study)[place][tuning] == {name: fingerprint(v.deltas) for name, v in alone.items()}
    first, second = digests(study)
    assert first != second
    assert first["non-linear"] != first["linearised"]


def test_a_control_task_has_a_head_alone_and_features_may_be_normalised() -> None:
    tasks = tasks_named("a", "control")
    study = study_of(tanh_encoder(), tasks, recipes=RECIPES, seeds=[0], tuned=["a"], normalise=True, run=CPU)
    assert [sorted(by) for by in study.vectors[0].values()] == [["a"], ["a"]]
    assert sorted(study.heads) == ["a", "control"]
    assert all(head.normalised for head in study.heads.values())
    heads_alone = study_of(tanh_encoder(), tasks, recipes=RECIPES, seeds=[0], tuned=(), run=CPU)
    assert heads_alone.vectors == ()
    assert sorted(heads_alone.heads) == ["a", "control"]


def test_what_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, tasks, run = tanh_encoder(), tasks_named("a", "b"), Run(folder=tmp_path, device="cpu")
    whole = study_of(encoder, tasks, recipes=RECIPES, seeds=[0, 1], run=CPU)
    plain_fit, fits = task_tuning.fit, []

    def stopped(*args, **settings):
        if len(fits) == 3:
            raise KeyboardInterrupt
        fits.append(settings["seed"])
        return plain_fit(*args, **settings)

    monkeypatch.setattr(task_tuning, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        study_of(encoder, tasks, recipes=RECIPES, seeds=[0, 1], run=run)
    fits.clear()
    monkeypatch.setattr(task_tuning, "fit", lambda *a, **s: (fits.append(s["seed"]), plain_fit(*a, **s))[1])

    def refitted(*args, **settings):
        raise AssertionError("a head was fitted twice")

    monkeypatch.setattr(task_study, "fitted_head", refitted)
    resumed = study_of(encoder, tasks, recipes=RECIPES, seeds=[0, 1], run=run)
    assert fits == [0, 1, 1, 1, 1]  # of eight, three were done
    assert digests(resumed) == digests(whole)
    fits.clear()
    again = study_of(encoder, tasks, recipes=RECIPES, seeds=[0, 1], run=run)
    assert fits == []
    assert digests(again) == digests(whole)
    assert again.heads["b"].accuracy == whole.heads["b"].accuracy


def test_other_samples_have_other_heads(tmp_path: Path) -> None:
    run, settings = Run(folder=tmp_path, device="cpu"), {"recipes": RECIPES, "seeds": [0], "tuned": ()}
    first = study_of(tanh_encoder(), {"a": clouds(0, "a")}, run=run, **settings)
    second = study_of(tanh_encoder(), {"a": clouds(1, "a")}, run=run, **settings)
    unit = study_of(tanh_encoder(), {"a": clouds(1, "a")}, normalise=True, run=run, **settings)
    assert len({study.heads["a"].identity for study in (first, second, unit)}) == 3


def test_saved_vectors_merge_on_disk(tmp_path: Path) -> None:
    encoder = in_float32(batchnorm_convnet)
    x = normal(30, 1, 6, 6, dtype=torch.float32)
    y = (x.mean((1, 2, 3)) > 0).long()
    tasks = {name: Arrays({"train": (x + k, y), "validation": (x + k, y)}) for k, name in enumerate(("a", "b/c"))}
    study = study_of(encoder, tasks, recipes=RECIPES, seeds=[0, 1], name="small", run=CPU)
    files = save_vectors(study, tmp_path, coefficients={"non-linear": [0.25, 0.5]}, metadata={"settings": "{}"})
    assert files == [tmp_path / "non-linear" / "seed-0" / f"{name}.safetensors" for name in ("a", "b-c")]
    assert len(list(tmp_path.rglob("seed-?/*.safetensors"))) == 8
    kept = json.loads((tmp_path / "coefficients.json").read_text())
    assert kept == {"biascope": __version__, "non-linear": [0.25, 0.5]}
    base = Checkpoint.open(tmp_path / "base.safetensors")
    assert base.metadata["encoder"] == "small"
    assert base.metadata["settings"] == "{}"
    assert set(base.tensors) == set(encoder.module.state_dict())  # running statistics too
    assert TaskVector.load(files[0]).source == "a, non-linear, seed 0"
    merge(base, [(Checkpoint.open(file), 0.25) for file in files], tmp_path / "merged.safetensors")
    merged = weights.load(tmp_path / "merged.safetensors")
    both = study.vectors[0]["non-linear"]
    expected = (0.25 * both["a"] + 0.25 * both["b/c"]).applied(encoder.params)
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-6, atol=1e-7)
    for name, tensor in encoder.buffers.items():
        assert torch.equal(merged[name], tensor)
    heads = weights.load(tmp_path / "heads.safetensors")
    assert torch.equal(heads["b/c.weight"], study.heads["b/c"].weight)


def test_without_coefficients_none_are_written(tmp_path: Path) -> None:
    recipes = {"linearised": RECIPES["linearised"]}
    study = study_of(tanh_encoder(), tasks_named("a"), recipes=recipes, seeds=[0], run=CPU)
    assert save_vectors(study, tmp_path) == []
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == [
        "a.safetensors",
        "base.safetensors",
        "heads.safetensors",
    ]


def test_rates_are_those_of_the_encoder() -> None:
    assert usual_rates("vit") == {"non-linear": 1e-4, "linearised": 1e-4}
    assert usual_rates("folder/of/clip") == {"non-linear": 1e-5, "linearised": 1e-5}
    usual_rates("vit").clear()
    assert usual_rates("ViT")["non-linear"] == 1e-4


def test_what_does_not_fit_is_told() -> None:
    encoder, tasks = tanh_encoder(), tasks_named("a")
    with pytest.raises(ValueError, match=r"^tuned must name some of the tasks a, got 'b'\. Pass names of tasks\.$"):
        study_of(encoder, tasks, recipes=RECIPES, seeds=[0], tuned=["b"], run=CPU)
    with pytest.raises(ValueError, match="tunings must be among"):
        study_of(encoder, tasks, recipes={"slow": RECIPES["linearised"]}, seeds=[0], run=CPU)
    lacking = {"a": Arrays({"train": tasks["a"].splits["train"]})}
    with pytest.raises(ValueError, match="'a' must have the splits 'train', 'validation', but lacks 'validation'"):
        study_of(encoder, lacking, recipes=RECIPES, seeds=[0], run=CPU)


@pytest.mark.parametrize("name", ["base.safetensors", "coefficients.json", "linearised/seed-0/a.safetensors"])
def test_saved_vectors_replace_their_own_files_and_no_others(tmp_path: Path, name: str) -> None:
    recipes = {"linearised": RECIPES["linearised"]}
    study = study_of(tanh_encoder(), tasks_named("a"), recipes=recipes, seeds=[0], run=CPU)
    for _ in range(2):
        save_vectors(study, tmp_path, coefficients={"linearised": [0.5]})
    (tmp_path / "report.html").write_text(
        '<meta name="generator" content="biascope 0.2.0">'
    )  # says nothing of the others
    files._held_ours.cache_clear()
    (tmp_path / name).write_text('{"linearised": [0.25]}')
    with pytest.raises(ValueError, match=rf"{name} would be replaced, but was not written by Biascope"):
        save_vectors(study, tmp_path, coefficients={"linearised": [0.5]})
    assert (tmp_path / name).read_text() == '{"linearised": [0.25]}'
