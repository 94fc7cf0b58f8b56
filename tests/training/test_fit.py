"""The one training loop, against plain PyTorch loops."""

import dataclasses
import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.task import Arrays, Relabelled, along_directions
from biascope.training.evaluation import evaluation
from biascope.training.fit import CHECK_EVERY, batches, fit
from biascope.training.observer import Observer
from biascope.training.plan import training_plan
from biascope.training.recipe import Recipe, loss_of
from biascope.training.steps import WAYS

CPU = Run(device="cpu", precision="float64")


def small_network(norm: bool = True, dropout: float = 0.0, outputs: int = 2) -> nn.Module:
    layers = [nn.Conv2d(1, 3, 3, padding=1, stride=2), nn.BatchNorm2d(3) if norm else nn.Identity(), nn.ReLU()]
    layers += [nn.Conv2d(3, 4, 3, dilation=2), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(4, outputs))


def stack_and_task(members=3, samples=80, noise=0.5, run=CPU, **network):
    family = Family.initialised(functools.partial(small_network, **network), name="small")
    vectors = bases.fourier((1, 10, 10)).vectors[1 : members + 1]
    task = along_directions(vectors, (1, 10, 10), noise=noise, train=samples, test=64, seed=0, run=run)
    return family.draw(members, seed=0, run=run), task


def plain_loop(network: Network, task, recipe: Recipe, seed: int):
    """What one would write in PyTorch."""
    module = network.as_module().train()
    kinds = {"sgd": torch.optim.SGD, "gd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    own = {"momentum": recipe.momentum} if recipe.optimiser in ("sgd", "gd") else {"betas": recipe.betas}
    optimiser = kinds[recipe.optimiser](module.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay, **own)
    total, losses = recipe.total_steps(task.sizes["train"]), []
    for step, indices in enumerate(batches(task.sizes["train"], recipe, total, seed, torch.device("cpu"))):
        optimiser.param_groups[0]["lr"] = recipe.rate_at(step, total)
        x, y = task.batch("train", indices)
        optimiser.zero_grad()
        outputs, signs = module(x), (2 * y - 1).double()
        loss = {
            None: lambda: F.cross_entropy(outputs, y),  # noqa: B023
            "cross_entropy": lambda: F.cross_entropy(outputs, y),  # noqa: B023
            "logistic": lambda: F.soft_margin_loss(outputs[:, 0], signs),  # noqa: B023
            "hinge": lambda: (1 - outputs[:, 0] * signs).clamp(min=0).mean(),  # noqa: B023
            "squared": lambda: F.mse_loss(outputs[:, 0], signs),  # noqa: B023
        }[recipe.loss]()
        loss.backward()
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), recipe.clip)
        optimiser.step()
        losses.append(float(loss.detach()))
    return module, losses


RECIPES = [
    Recipe("sgd", rate=0.3, momentum=0.9, weight_decay=1e-2, clip=0.4, schedule="linear", steps=50, batch=32),
    Recipe("sgd", rate=0.3, schedule="cosine", warmup=5, steps=50, batch=32),
    Recipe("adam", rate=0.01, schedule="constant", weight_decay=1e-2, steps=50, batch=32),
    Recipe("adamw", rate=0.01, schedule="cosine", weight_decay=1e-1, steps=50, batch=32),
    Recipe("gd", rate=0.2, momentum=0.5, steps=50),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.optimiser}-{recipe.schedule}")
@pytest.mark.parametrize("way", ["loop", "stack", "shifts"])
def test_a_stack_equals_plain_loops(recipe: Recipe, way: str) -> None:
    networks, task = stack_and_task()
    found = fit(networks, task, recipe, seed=3, run=CPU, way=way)
    for member in range(3):
        module, losses = plain_loop(networks.member(member), task.of_member(member), recipe, 3)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        ours = found.networks.member(member)
        for name, tensor in {**ours.params, **ours.buffers}.items():
            assert torch.allclose(tensor, state[name].detach(), rtol=0, atol=1e-6), name
        assert found.losses[:, member].tolist() == pytest.approx(losses, abs=1e-6)


def test_weight_decay_pulls_to_the_start_where_asked() -> None:
    # Without a gradient, weights that start at their anchor stay there, and with decay to zero they shrink.
    still = Arrays(
        {"train": (torch.zeros(8, 9, dtype=torch.float64), torch.zeros(8, dtype=torch.int64))}, torch.float64
    )
    network = Network.of(nn.Linear(9, 2, bias=False)).to(torch.device("cpu"), torch.float64)
    for optimiser in ("sgd", "adamw"):
        recipe = Recipe(optimiser, rate=0.1, schedule="constant", weight_decay=0.5, decay_to="start", steps=4, batch=8)
        kept = fit(network, still, recipe, seed=0, run=CPU).networks.params
        shrunk = fit(network, still, dataclasses.replace(recipe, decay_to="zero"), seed=0, run=CPU).networks.params
        for name, start in network.params.items():
            assert torch.equal(kept[name], start)
            assert torch.allclose(shrunk[name], 0.95**4 * start)


@pytest.mark.parametrize("way", ["loop", "stack"])
def test_every_member_has_its_own_anchor_of_weight_decay(way: str) -> None:
    networks, task = stack_and_task()
    recipe = Recipe("adamw", rate=0.01, weight_decay=0.5, decay_to="start", steps=12, batch=32)
    whole = fit(networks, task, recipe, seed=0, run=CPU, way=way).networks
    alone = fit(networks.member(1), task.of_member(1), recipe, seed=0, run=CPU).networks
    for name, tensor in alone.params.items():
        assert torch.allclose(whole.params[name][1], tensor, atol=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared"])
def test_losses_of_one_output_equal_plain_loops(loss: str) -> None:
    networks, task = stack_and_task(outputs=1)
    recipe = Recipe(rate=0.1, steps=20, batch=32, loss=loss)
    found = fit(networks, task, recipe, seed=0, run=CPU, way="stack")
    assert found.losses[:, 1].tolist() == pytest.approx(plain_loop(networks.member(1), task.of_member(1), recipe, 0)[1])


def test_frozen_batchnorm_keeps_its_statistics() -> None:
    networks, task = stack_and_task()
    for way in ("loop", "stack"):
        found = fit(networks, task, Recipe(steps=5, batchnorm="eval"), seed=0, run=CPU, way=way)
        for name, before in networks.buffers.items():
            assert torch.equal(found.networks.buffers[name], before)


def test_one_network_is_trained_and_left_unchanged() -> None:
    networks, task = stack_and_task()
    one = networks.member(0)
    before = {name: tensor.clone() for name, tensor in one.params.items()}
    found = fit(one, task.of_member(0), RECIPES[0], seed=3, run=CPU)
    assert all(torch.equal(one.params[name], tensor) for name, tensor in before.items())
    assert found.networks.members is None
    assert found.losses.shape == (50, 1)
    way = torch.cat([(found.networks.params[name] - before[name]).flatten() for name in before])
    assert float(found.distance) == pytest.approx(float(way.norm()))
    assert float(found.start_norm) == pytest.approx(float(torch.cat([t.flatten() for t in before.values()]).norm()))
    first, last = (torch.cat([t.flatten() for t in each.values()]) for each in (before, found.networks.params))
    assert float(found.turn) == pytest.approx(1 - float(F.cosine_similarity(first, last, dim=0)), abs=1e-6)


def test_the_order_of_samples_is_a_new_permutation_each_epoch() -> None:
    recipe = Recipe(epochs=2, batch=32)
    order = list(batches(80, recipe, recipe.total_steps(80), 0, torch.device("cpu")))
    assert [len(part) for part in order] == [32, 32, 16, 32, 32, 16]
    first, second = torch.cat(order[:3]), torch.cat(order[3:])
    assert torch.equal(first.sort().values, torch.arange(80))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("way", ["loop", "stack"])
def test_members_below_the_threshold_leave_and_the_others_are_not_disturbed(way: str) -> None:
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    task = Arrays({"train": (x, torch.tensor([1, 0]))}, torch.float64)
    start = Network.of(nn.Linear(1, 1, bias=False).double())
    weights = torch.tensor([[[3.0]], [[0.0]], [[-3.0]]], dtype=torch.float64)
    stack = dataclasses.replace(start, params={"weight": weights}, members=3)
    recipe = Recipe("gd", rate=1.0, schedule="constant", steps=400, loss="logistic", threshold=0.02, stop=True)
    found = fit(stack, task, recipe, seed=0, run=CPU, way=way)
    for member in range(3):
        losses = found.losses[:, member]
        first = int(found.first_below[member])
        assert losses[first - 1] < 0.02 <= losses[first - 2]
        trained = int(torch.isfinite(losses).sum())
        assert first <= trained <= first + CHECK_EVERY
        alone = fit(stack.member(member), task, dataclasses.replace(recipe, stop=False), seed=0, run=CPU)
        assert losses[:trained].tolist() == pytest.approx(alone.losses[:trained, 0].tolist())
        assert float(found.networks.params["weight"][member]) > 3.0
    assert found.first_below[0] < found.first_below[1] < found.first_below[2]
    assert (found.diverged_at == -1).all()


@pytest.mark.parametrize("way", ["loop", "stack"])
def test_divergence_is_recorded_and_does_not_spread(way: str) -> None:
    task = Arrays(
        {"train": (torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64))}, torch.float64
    )
    start = Network.of(nn.Linear(1, 1, bias=False).double())
    weights = torch.tensor([[[2.0]], [[1e200]]], dtype=torch.float64)
    stack = dataclasses.replace(start, params={"weight": weights}, members=2)
    recipe = Recipe("gd", rate=0.1, schedule="constant", steps=60, loss="squared")
    found = fit(stack, task, recipe, seed=0, run=CPU, way=way)
    assert found.diverged_at.tolist() == [-1, 1]
    assert float(found.losses[-1, 0]) < 1e-6


def test_observers_see_all_members_in_lock_step_and_checkpoints_are_kept() -> None:
    networks, task = stack_and_task()
    seen: dict[int, float] = {}
    recipe = Recipe(rate=0.1, steps=10, batch=32)
    name = next(iter(networks.params))
    for way in ("loop", "stack"):
        seen.clear()
        found = fit(
            networks,
            task,
            recipe,
            seed=0,
            run=CPU,
            way=way,
            keep_at=(0, 4),
            observe=lambda step, now: seen.update({step: float(now.params[name].sum())}),
        )
        assert sorted(seen) == [0, 1, 2, 4, 8, 10]
        assert torch.equal(found.at(0).params[name], networks.params[name])
        assert float(found.at(4).params[name].sum()) == seen[4] != seen[8]
        assert float(found.networks.params[name].sum()) == seen[10]
    with pytest.raises(ValueError, match="among the saved iterations: 0, 4"):
        found.at(5)


def test_dropout_is_seeded_and_differs_between_members() -> None:
    networks, _ = stack_and_task(dropout=0.5)
    twins = dataclasses.replace(
        networks,
        params={name: tensor[:1].expand(3, *tensor.shape[1:]).clone() for name, tensor in networks.params.items()},
    )
    same = along_directions(
        bases.fourier((1, 10, 10)).vectors[[1, 1, 1]], (1, 10, 10), train=80, test=8, seed=0, run=CPU
    )
    for way in ("loop", "stack"):
        state = torch.get_rng_state()
        first, again, other = (
            fit(twins, same, Recipe(steps=5), seed=seed, run=CPU, way=way).losses for seed in (0, 0, 1)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert not torch.equal(first[:, 0], first[:, 1])
        assert torch.equal(state, torch.get_rng_state())


def test_evaluation_counts_correct_answers() -> None:
    x = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]], dtype=torch.float64)
    task = Arrays({"test": (x, torch.tensor([1, 1, 0, 1]))}, torch.float64)
    start = Network.of(nn.Linear(1, 1, bias=False).double())
    for weight, accuracy in ((1.0, 0.75), (-1.0, 0.25)):
        network = start.with_params({"weight": torch.tensor([[weight]], dtype=torch.float64)})
        found = evaluation(network, task, "test", run=CPU)
        assert float(found.accuracy) == accuracy
        margins = weight * x.flatten() * torch.tensor([1, 1, -1, 1])
        assert float(found.loss) == pytest.approx(float(F.softplus(-margins).mean()))


def test_half_precision_products_keep_weights_whole() -> None:
    run = Run(device="cpu", precision="bfloat16")
    networks, task = stack_and_task(run=Run(device="cpu"))
    whole = fit(networks, task, Recipe(steps=3, rate=0.1), seed=0, run=Run(device="cpu"), way="stack")
    half = fit(networks, task, Recipe(steps=3, rate=0.1), seed=0, run=run, way="stack")
    name = next(iter(networks.params))
    assert half.networks.params[name].dtype == torch.float32
    assert not torch.equal(half.losses, whole.losses)
    assert torch.allclose(half.losses, whole.losses, atol=0.05)


def test_the_plan_never_exceeds_the_trials_and_names_a_way() -> None:
    run = Run(device="cpu")

    def sample(members):
        networks, task = stack_and_task(run=run)
        chosen = [0] * members
        cut = networks._cut(lambda tensor: tensor[chosen], members)
        return cut, task.select(chosen)

    for trials in (1, 5):
        plan = training_plan(sample, Recipe(steps=10, batch=8), trials, run)
        assert plan.way in WAYS
        assert 1 <= plan.members <= trials
        assert not plan.seconds <= 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimiser": "lion"}, "optimiser must be one of"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"loss": "l1"}, "loss must be one of"),
        ({"rate": -1.0}, "rate must be a positive number"),
        ({"rate": math.nan}, "rate must be a positive number"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"stop": True}, "needs a threshold"),
    ],
)
def test_a_wrong_recipe_is_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe(**change)


def test_wrong_calls_are_told_in_one_sentence() -> None:
    networks, task = stack_and_task()
    with pytest.raises(ValueError, match="as many members as there are networks"):
        fit(networks, task.select([0]), Recipe(), seed=0, run=CPU)
    with pytest.raises(ValueError, match="way must be one of"):
        fit(networks, task, Recipe(), seed=0, run=CPU, way="fast")
    with pytest.raises(ValueError, match="float16"):
        fit(networks, task, Recipe(), seed=0, run=Run(device="cpu", precision="float16"))


def test_squared_loss_takes_targets_and_classes() -> None:
    outputs = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    assert float(loss_of("squared", outputs, torch.tensor([0, 1]))) == pytest.approx(1.0)
    assert float(loss_of("squared", torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))) == pytest.approx(2.5)


def test_an_observer_in_ones_own_loop_records_what_fit_does(tmp_path) -> None:
    networks, task = stack_and_task()
    recipe = Recipe(rate=0.3, schedule="constant", steps=12, batch=32, threshold=0.6)
    ours = fit(networks.member(0), task.of_member(0), recipe, seed=0, run=CPU, keep_at=(0, 6))
    module = networks.member(0).as_module().train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.3)
    observer = Observer(
        module, at=(0, 6), threshold=0.6, folder=tmp_path, hooks={"mode": lambda step, net: net.module.training}
    )
    for indices in batches(80, recipe, 12, 0, torch.device("cpu")):
        x, y = task.of_member(0).batch("train", indices)
        optimiser.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimiser.step()
        observer(loss)
    theirs = observer.trajectory()
    assert torch.allclose(theirs.losses, ours.losses, atol=1e-9)
    assert torch.equal(theirs.first_below, ours.first_below)
    assert float(theirs.distance) == pytest.approx(float(ours.distance))
    for name, tensor in ours.at(6).params.items():
        assert torch.allclose(theirs.at(6).params[name], tensor, atol=1e-9)
    assert observer.seen["mode"] == {0: False, 6: False}
    assert module.training
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0.safetensors", "step-6.safetensors"]


def test_members_with_labels_of_their_own_learn_them_in_a_stack_as_alone():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    labels = {split: torch.randint(2, (3, 24), generator=generator) for split in ("train", "test")}
    base = Arrays({"train": (x, labels["train"][0]), "test": (x, labels["test"][0])}, torch.float64)
    task, run = Relabelled(base, labels), Run(device="cpu", precision="float64")
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), name="small")
    networks = family.draw(3, seed=0, run=run)
    recipe = Recipe("sgd", rate=0.1, momentum=0.9, epochs=20, batch=7, loss="logistic")
    stack, loop = (fit(networks, task, recipe, seed=0, run=run, way=way) for way in ("stack", "loop"))
    torch.testing.assert_close(stack.losses, loop.losses, rtol=1e-9, atol=1e-12)
    together = evaluation(stack.networks, task, "train", loss="logistic", run=run)
    for member in range(3):
        own = Arrays({"train": (x, labels["train"][member])}, torch.float64)
        alone = fit(networks.member(member), own, recipe, seed=0, run=run)
        torch.testing.assert_close(alone.losses[:, 0], stack.losses[:, member], rtol=1e-9, atol=1e-12)
        judged = evaluation(alone.networks, own, "train", loss="logistic", run=run)
        assert float(judged.accuracy) == float(together.accuracy[member])
    with pytest.raises(ValueError, match=r"^Labels of split 'train' must have a row of 24 for every member, got shape"):
        Relabelled(base, {"train": labels["train"][0]})


def test_weights_are_kept_also_after_all_members_have_left() -> None:
    networks, task = stack_and_task()
    recipe = Recipe("sgd", rate=1e12, schedule="constant", momentum=0.0, steps=80, batch=4)
    found = fit(networks, task, recipe, seed=0, run=CPU, keep_at=(80,), way="stack")
    assert bool((found.diverged_at > 0).all())
    for name, tensor in found.at(80).params.items():
        assert torch.equal(tensor.nan_to_num(), found.networks.params[name].nan_to_num())
