import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks_under_test import CPU, CPU64, batchnorm_convnet, global_states, network_of, normal
from torch import nn

from biascope.derivatives.linearize import linearize
from biascope.editing.heads import Head, fitted_head, headed
from biascope.editing.tuning import TUNINGS, tuned_vectors, tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.networks import builder
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

RECIPE = tuning_recipe(steps=12, rate=0.02, batch=16)


def tanh_encoder() -> Network:
    return network_of(lambda: nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 5)), readout=None)


def task_of(shift: float, seed: int = 0, name: str = "task") -> Arrays:
    x = normal(90, 4, seed=seed) + shift
    y = ((x[:, 0] - shift) * (x[:, 1] - shift) > 0).long()
    return Arrays({"train": (x[:60], y[:60]), "validation": (x[60:], y[60:])}, torch.float64, name)


def tuned(
    encoder: Network, head: Head, task: Arrays, recipe: Recipe, *, way: str = "non-linear", seed: int, run: Run
) -> TaskVector:
    """The task vector of one task, tuned in one way."""
    return tuned_vectors(encoder, {"signs": head}, {"signs": task}, recipe, tunings=[way], seed=seed, run=run)[way][
        "signs"
    ]


def test_the_recipe_is_the_published_one() -> None:
    recipe = tuning_recipe(steps=2000)
    assert (recipe.optimiser, recipe.rate, recipe.weight_decay, recipe.clip) == ("adamw", 1e-5, 0.1, 1.0)
    assert (recipe.schedule, recipe.warmup, recipe.batch, recipe.batchnorm) == ("cosine", 200, 128, "eval")


@pytest.mark.parametrize("decay_to", ["zero", "start"])
@pytest.mark.parametrize("way", TUNINGS)
def test_it_takes_the_steps_that_a_plain_loop_takes(way: str, decay_to: str) -> None:
    """AdamW with decoupled decay, clipped gradients, warm-up and cosine, as torch has them; decay may pull to the first weights."""
    encoder, task = tanh_encoder(), task_of(0.0)
    head = Head(3 * normal(2, 5, seed=1), torch.zeros(2, dtype=torch.float64))
    recipe = dataclasses.replace(
        RECIPE, steps=7, warmup=2, batch=60, decay_to=decay_to
    )  # whole batches: no order of samples
    found = tuned(encoder, head, task, recipe, way=way, seed=0, run=CPU64)
    module = headed(linearize(encoder) if way == "linearised" else encoder, head).as_module()
    optimiser = torch.optim.AdamW(module.parameters(), lr=1.0, weight_decay=0.1 if decay_to == "zero" else 0.0)
    starts = [parameter.detach().clone() for parameter in module.parameters()]
    clipped = 0
    for step in range(7):
        share = (step + 1) / 2 if step < 2 else (1 + np.cos(np.pi * (step - 2) / 5)) / 2
        optimiser.param_groups[0]["lr"] = 0.02 * share
        optimiser.zero_grad()
        F.cross_entropy(module(task.splits["train"][0]), task.splits["train"][1]).backward()
        clipped += bool(torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0) > 1)
        if decay_to == "start":
            with torch.no_grad():
                for parameter, start in zip(module.parameters(), starts, strict=True):
                    parameter -= 0.02 * share * 0.1 * (parameter - start)
        optimiser.step()
    assert clipped  # the test can tell
    ends = found.applied(encoder.params)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(ends[name.removeprefix("encoder.")], parameter.detach(), atol=1e-9)


def test_a_task_vector_has_the_encoders_names_and_makes_the_task_easier() -> None:
    encoder, task = tanh_encoder(), task_of(0.5)
    head = fitted_head(encoder, task, run=CPU64)
    recipe = tuning_recipe(steps=150, rate=0.02, batch=30)
    x, y = task.splits["train"]
    start = F.cross_entropy(headed(encoder, head)(x), y)
    for way in TUNINGS:
        vector = tuned(encoder, head, task, recipe, way=way, seed=0, run=CPU64)
        assert vector.deltas.keys() == encoder.params.keys()
        assert vector.source == f"signs, {way}, seed 0"
        edited = vector.applied(encoder.params)
        network = (linearize(encoder) if way == "linearised" else encoder).with_params(edited)
        assert F.cross_entropy(headed(network, head)(x), y) < 0.7 * start


def test_an_encoder_that_is_linear_in_its_weights_is_tuned_alike_both_ways() -> None:
    encoder, task = network_of(functools.partial(nn.Linear, 4, 5), readout=None), task_of(0.5)
    head = fitted_head(encoder, task, normalise=True, run=CPU64)
    one, two = (tuned(encoder, head, task, RECIPE, way=way, seed=0, run=CPU64) for way in TUNINGS)
    np.testing.assert_allclose(one.deltas["weight"], two.deltas["weight"], atol=1e-12)
    encoder = tanh_encoder()
    head = fitted_head(encoder, task, run=CPU64)
    one, two = (tuned(encoder, head, task, RECIPE, way=way, seed=0, run=CPU64) for way in TUNINGS)
    assert 0.1 < one.cosine(two) < 0.999


@pytest.mark.parametrize("linearised", [False, True])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batchnorm_keeps_its_statistics(linearised: bool, mode: str) -> None:
    encoder = network_of(batchnorm_convnet, readout=None)
    x = normal(32, 1, 6, 6)
    task = Arrays({"train": (x, torch.arange(32) % 2)}, torch.float64)
    head = Head(normal(2, 2, seed=1), torch.zeros(2, dtype=torch.float64))
    start = headed(linearize(encoder) if linearised else encoder, head)
    end = fit(start, task, dataclasses.replace(RECIPE, batchnorm=mode), seed=0, run=CPU64).networks
    assert all(torch.equal(end.buffers[name], buffer) for name, buffer in start.buffers.items())
    assert not torch.equal(end.params["encoder.1.weight"], start.params["encoder.1.weight"])


def test_attention_is_tuned_both_ways() -> None:
    build = functools.partial(builder("vit"), image_size=8, patch=4, depth=2, heads=2, width=8, mlp=16, outputs=6)
    encoder = network_of(build, readout=None)
    task = Arrays({"train": (normal(24, 1, 8, 8), torch.arange(24) % 3)}, torch.float64)
    head = Head(normal(3, 6, seed=1), torch.zeros(3, dtype=torch.float64), normalised=True)
    vectors = tuned_vectors(encoder, {"a": head}, {"a": task}, dataclasses.replace(RECIPE, steps=3), run=CPU64)
    assert vectors["non-linear"]["a"].norm > 0
    assert vectors["linearised"]["a"].norm > 0


def test_what_was_tuned_is_kept_and_only_what_is_missing_is_tuned(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU, folder=tmp_path)
    encoder = network_of(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh()), readout=None).to(
        torch.device("cpu"), torch.float32
    )
    tasks = {"a|b/c": task_of(1.0), "second": task_of(-1.0, 1)}
    heads = {name: fitted_head(encoder, task, run=CPU) for name, task in tasks.items()}
    first = tuned_vectors(encoder, heads, {"a|b/c": tasks["a|b/c"]}, RECIPE, run=run)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("group-*.safetensors")}
    assert len(files) == 2
    both = tuned_vectors(encoder, heads, tasks, RECIPE, run=run)
    assert len(list(tmp_path.rglob("group-*.safetensors"))) == 4
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in files.items())
    for tuning in ("non-linear", "linearised"):
        one, two = first[tuning]["a|b/c"], both[tuning]["a|b/c"]
        assert all(torch.equal(one.deltas[name], two.deltas[name]) for name in one.deltas)
    tuned_vectors(encoder, heads, tasks, RECIPE, seed=1, tunings=("non-linear",), run=run)
    assert len(list(tmp_path.rglob("group-*.safetensors"))) == 6
    others = {**heads, "second": fitted_head(encoder, tasks["second"], normalise=True, run=CPU)}
    tuned_vectors(encoder, others, tasks, RECIPE, tunings=("non-linear",), run=run)
    assert len(list(tmp_path.rglob("group-*.safetensors"))) == 7  # another head is another training
    alone = tuned(encoder, heads["second"], tasks["second"], RECIPE, seed=0, run=CPU)
    kept = both["non-linear"]["second"]
    assert all(torch.equal(alone.deltas[name], kept.deltas[name]) for name in kept.deltas)
    assert kept.source == "second, non-linear, seed 0"


def test_the_seed_is_the_order_of_samples_and_global_states_stay() -> None:
    encoder, task = tanh_encoder(), task_of(0.5)
    head, before = fitted_head(encoder, task, run=CPU64), global_states()
    one, same, other = (tuned(encoder, head, task, RECIPE, seed=seed, run=CPU64) for seed in (0, 0, 1))
    assert torch.equal(one.deltas["0.weight"], same.deltas["0.weight"])
    assert not torch.equal(one.deltas["0.weight"], other.deltas["0.weight"])
    assert global_states() == before


def test_what_is_missing_is_told_in_one_sentence() -> None:
    encoder, task = tanh_encoder(), task_of(0.5)
    head = Head(normal(2, 5), torch.zeros(2))
    with pytest.raises(ValueError, match="'a' has none"):
        tuned_vectors(encoder, {}, {"a": task}, RECIPE, run=CPU)
    with pytest.raises(ValueError, match="tunings must be among"):
        tuned_vectors(encoder, {"a": head}, {"a": task}, RECIPE, tunings=("post-hoc",), run=CPU)
    with pytest.raises(ValueError, match="lacks 'train'"):
        tuned(encoder, head, Arrays({"test": task.splits["train"]}), RECIPE, seed=0, run=CPU)
    with pytest.raises(ValueError, match="diverged"):
        tuned(encoder, head, task, dataclasses.replace(RECIPE, rate=1e300), seed=0, run=CPU64)
