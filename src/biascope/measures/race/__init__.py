"""A race of architectures on the user's data: all see the same batches, and candidates that are almost surely not best drop out."""

# a candidates · l looks · W windows of a curve

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.derivatives.gradients import forward_flops
from biascope.families.family import Family
from biascope.measures.race.result import Race
from biascope.measures.race.rule import best_with, merits_of
from biascope.results.registry import check_samples, measurement
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.rehearsal import Expectation, Stage
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.evaluation import evaluation
from biascope.training.fit import Trajectory, fit
from biascope.training.recipe import Recipe
from biascope.training.sweep import windows

#: The training of which a race runs the first part, where the user names no other.
RECIPE = Recipe("adam", rate=1e-3, schedule="cosine", epochs=20, batch=128)
LOOKS = (
    0.01,
    0.02,
    0.03,
    0.05,
    0.07,
    0.1,
    0.14,
    0.2,
    0.3,
    0.5,
    0.7,
    1.0,
)  # shares of the training at which the race is judged
HELD_OUT = 1 / 8  # of the samples, on which candidates are judged
LEAST_SAMPLES = 32
TESTED_STEPS = 1100  # iterations of the whole trainings that the rule was tested on
LEAST_STEPS = 20  # iterations before the first look: by then the running statistics of BatchNorm are those of the data to nine tenths


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def narrow() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Tanh(), nn.Linear(1, 2))

    x, y = torch.randn(512, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(512) % 2
    data = Arrays({"train": (x + y[:, None, None, None], y)}, name="noise, brighter or not")
    families = [Family.initialised(wide, name="wide"), Family.initialised(narrow, name="narrow")]
    return (families, data), {"recipe": Recipe("adam", rate=1e-2, epochs=8, batch=32), "share": 0.3}


@measurement(
    title="Which candidate learns the data best",
    paper="geometry2025",
    result=Race,
    example=_example,
    command="biascope match --race",
)
def race(
    families: Sequence[Family],
    data: Arrays,
    *,
    recipe: Recipe = RECIPE,
    share: float = 0.1,
    sure: float = 0.95,
    seed: int = 0,
    run: Run | None = None,
) -> Race:
    """Predict which of several architectures will be the most accurate, from a small share of their training.

    Definition:
        All candidates are trained by one recipe, on the same batches in the same order. An eighth of the samples is held out. After
        equal numbers of iterations, candidates are evaluated on it. The merit of a candidate is minus the logarithm of its held-out
        cross-entropy.

        The model of the race: merits at the end of training differ from these by independent normal errors. Their standard
        deviation is ``0.02/s`` of the progress, where s is the share of training. The progress is
        ``log(loss of guessing / loss of the leader)``. The sampling error of the held-out loss is added. So each candidate has a
        probability of being best.

        A candidate drops out when that probability is below ``(1 − sure)/candidates``, or when its loss is not finite. The race ends
        when one candidate is best with probability ``sure``, or when the share of training is spent.

    Estimated by:
        One training of each candidate. The constant 0.02 was chosen on four data sets, and the rule was tested on two others
        (docs/match.md). There it decided no race, and choosing the largest network was as good.

    Args:
        families: Candidates, two or more with different names.
        data: Samples with classes; the split ``train`` is used.
        recipe: The full training. The race is its first part and keeps its schedule.
        share: Largest share of the training to spend, above 0 and at most 1.
        sure: Probability at which the race is decided.
        seed: Random seed for weights and for the order of samples.
        run: Folder (resumable), device, precision.

    Returns:
        Losses and probabilities at every evaluation, drop-outs, and the size of each candidate.

    Raises:
        ValueError: If there is nothing to race, candidates and data do not fit, or every candidate diverges.

    Example:
        >>> (families, data), settings = _example()
        >>> result = race(families, data, run=Run(device="cpu", progress=False), **settings)
        >>> result.names[result.order[0]]
        'wide'

    Reference:
        Ru, Lyle, Schut, Fil, van der Wilk, Gal (2021). Speedy performance estimation for neural architecture search. NeurIPS
        (losses early in training as a forecast). Jamieson, Talwalkar (2016). Non-stochastic best arm identification and
        hyperparameter optimization. AISTATS (candidates that drop out on the way).
    """
    run = run or Run()
    _check(families, data, share, sure)
    data = with_held_out(data.to(run), seed)
    total = recipe.total_steps(data.sizes["train"])
    looks = _looks(total, share)
    racing, out_at = list(range(len(families))), np.full(len(families), -1)
    losses: list[Tensor] = [torch.zeros(0)] * len(families)
    judged = np.full(len(families), np.nan)
    guessing = loss_of_guessing(data.splits["held_out"][1])
    merits, chance = (np.full((len(families), len(looks)), np.nan) for _ in range(2))
    last = 0
    with contextlib.ExitStack() as stack:
        runners = [stack.enter_context(_runner(family, data, recipe, seed, run)) for family in families]
        advance = stack.enter_context(run.tracked("race", looks[-1] * len(families)))
        for place, until in enumerate(looks):
            for index in racing:
                losses[index], judged[index] = runners[index].judged(until)
                advance(until - (looks[place - 1] if place else 0))
            finite = [
                index for index in racing if bool(torch.isfinite(losses[index]).all()) and math.isfinite(judged[index])
            ]
            if not finite:
                raise ValueError(
                    f"At least one candidate must keep a finite loss, but all diverged by iteration {until}. "
                    "Pass a smaller rate."
                )
            merits[finite, place] = merits_of(judged[finite])
            chance[:, place] = 0.0
            chance[finite, place] = best_with(judged[finite], guessing, until / total, data.sizes["held_out"])
            last = place
            staying = [index for index in finite if chance[index, place] >= (1 - sure) / len(families)]
            for index in set(racing) - set(staying):
                out_at[index] = until
                runners[index].forget()
            racing = staying
            if chance[:, place].max() >= sure:
                break
        if chance[:, last].max() >= sure or looks[-1] == total:
            for index in racing:
                runners[index].forget()
    spent = looks[last]
    curve, ends = windows(torch.stack([_padded(each.double(), spent) for each in losses], 1))
    device, dtype = run.torch_device, master_dtype(run)
    zeros = torch.zeros(1, *data.shape, device=device, dtype=dtype)
    return Race(
        names=tuple(family.name for family in families),
        looks=np.array(looks[: last + 1]),
        merits=merits[:, : last + 1],
        chances=chance[:, : last + 1],
        curves=curve.T.numpy(),
        steps=ends.numpy(),
        out_at=out_at,
        diverged=np.array([not bool(torch.isfinite(each).all()) for each in losses]),
        parameters=np.array([family.num_parameters for family in families]),
        flops=np.array([forward_flops(family.template.to(device, dtype), zeros) for family in families]),
        layers=np.array([family.num_layers for family in families]),
        total=total,
        sure=float(sure),
        data=data.name,
        provenance={
            "warnings": [
                *_length_warning(total, spent),
                *(warning for family in families for warning in _batchnorm_warning(family)),
            ]
        },
    )


def expected_time(
    families: Sequence[Family],
    data: Arrays,
    *,
    recipe: Recipe = RECIPE,
    share: float = 0.1,
    sure: float = 0.95,
    seed: int = 0,
    run: Run | None = None,
) -> Expectation:
    """How long :func:`race` takes at most, when no candidate drops out, from timing a few iterations of each."""
    run = run or Run()
    _check(families, data, share, sure)
    data = with_held_out(data.to(run), seed)
    looks = _looks(recipe.total_steps(data.sizes["train"]), share)
    stages = []
    for family in families:
        taken = []
        for until in (1, min(4, looks[-1])):
            begin = time.perf_counter()
            _trained(family, data, recipe, seed, run, until)
            taken.append(time.perf_counter() - begin)
        pace = max(taken[1] - taken[0], 0.0) / max(min(4, looks[-1]) - 1, 1)
        # Every look sets up the training anew.
        seconds = taken[0] * len(looks) + pace * looks[-1]
        stages.append(Stage(f"{family.name}: training", looks[-1], 0, sum(taken), seconds))
    return Expectation(sum(stage.seconds or 0.0 for stage in stages), tuple(stages), whole=False)


def _check(families: Sequence[Family], data: Arrays, share: float, sure: float) -> None:
    """Refuse what cannot be raced, before any work."""
    names = [family.name for family in families]
    if len(families) < 2 or len(set(names)) < len(names):
        raise ValueError(f"Candidates must be two or more with different names, got {names}. Add or rename some.")
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}. Pass share=0.1.")
    if not 0.5 < sure < 1:
        raise ValueError(f"sure must be a probability above 0.5 and below 1, got {sure}. Pass sure=0.95.")
    if data.sizes.get("train", 0) < LEAST_SAMPLES:
        raise ValueError(
            f"A race needs at least {LEAST_SAMPLES} training samples to hold some out, got {data.sizes.get('train', 0)}. "
            "Pass more samples."
        )
    labels = data.splits["train"][1]
    if labels.is_floating_point() or labels.dim() != 1 or len(torch.unique(labels)) < 2:
        kind = "numbers" if labels.is_floating_point() else "one class"
        raise ValueError(
            f"A race needs samples of two or more classes, got labels that are {kind}. Pass data with classes."
        )
    classes = int(labels.max()) + 1
    for family in families:
        check_samples(family, data)
        outputs = family.tried(
            data.batch("train", torch.zeros(1, dtype=torch.long))[0].cpu(), "give outputs", "Fix the network."
        )
        count = 1 if outputs.dim() == 1 else outputs.shape[-1]
        if outputs.dim() > 2 or (count < classes and not (count == 1 and classes == 2)):
            raise ValueError(
                f"{family.name} must have an output for each of the {classes} classes, got outputs of shape "
                f"{tuple(outputs.shape[1:])}. Build it with outputs={classes}."
            )


def _length_warning(total: int, spent: int) -> list[str]:
    """A sentence where the race is so short that its probabilities are not proven."""
    if total >= TESTED_STEPS / 2 and spent >= LEAST_STEPS:
        return []
    return [
        f"The rule was tested on trainings of {TESTED_STEPS:,} iterations, but this race ended after {spent:,} of {total:,}. Its "
        "probabilities are not validated. Pass more samples or epochs."
    ]


def _batchnorm_warning(family: Family) -> list[str]:
    """A sentence where the held-out loss of a candidate may be worse than it is."""
    layers = family.template.module.modules()
    if not any(isinstance(each, nn.modules.batchnorm._BatchNorm) and each.track_running_stats for each in layers):
        return []
    return [
        f"{family.name} has BatchNorm, whose running statistics lag early in training. Its held-out loss may jump, and it may drop "
        "out too early. Do not exclude it because of a race alone."
    ]


def with_held_out(data: Arrays, seed: int) -> Arrays:
    """The training samples in two splits: ``train``, and ``held_out`` for judging, chosen at random.

    Example:
        >>> with_held_out(Arrays({"train": (torch.zeros(80, 3), torch.zeros(80).long())}), seed=0).sizes
        {'train': 70, 'held_out': 10}
    """
    x, y = data.splits["train"]
    order = torch.randperm(len(y), generator=generator_for(torch.device("cpu"), seed, "held out")).to(y.device)
    kept = max(1, round(HELD_OUT * len(y)))
    splits = {"train": order[kept:].sort().values, "held_out": order[:kept].sort().values}
    parts = {name: (x[places.to(x.device)], y[places]) for name, places in splits.items()}
    return Arrays(parts, data.dtype, data.name)


def loss_of_guessing(labels: Tensor) -> float:
    """The cross-entropy of always saying how frequent the classes are.

    Example:
        >>> round(loss_of_guessing(torch.tensor([0, 1, 0, 1])), 4)
        0.6931
    """
    shares = torch.bincount(labels.long()).double() / len(labels)
    return float(-(shares[shares > 0] * shares[shares > 0].log()).sum())


def _looks(total: int, share: float) -> list[int]:
    """The iterations after which the race is judged; the last spends the share."""
    last = max(1, round(share * total))
    return sorted({step for each in LOOKS if LEAST_STEPS <= (step := round(each * total)) < last} | {last})


class _Runner:
    """One candidate's training, in parts: what is done is kept, and a later part goes on where the last ended."""

    def __init__(self, family: Family, data: Arrays, recipe: Recipe, seed: int, run: Run, folder: Path | None) -> None:
        self._work = family, data, recipe, seed, run
        self._trials = Trials(
            "race", run, code=(_trained, evaluation), at=data, family=family, data=data, recipe=recipe, seed=seed
        )
        home = self._trials.folder or folder
        assert home is not None, "without a folder of the run there is a temporary one"
        self._state = home / "unfinished.safetensors"

    def judged(self, until: int) -> tuple[Tensor, float]:
        """The loss of each iteration so far, and that on the samples held out."""
        key = f"until-{until}"
        if not self._trials.done(key):
            _, data, _, _, run = self._work
            found = _trained(*self._work, until, self._state)
            held_out = evaluation(found.networks, data, "held_out", run=run).loss[0]
            self._trials.write(key, {"losses": found.losses[:, 0].contiguous(), "held_out": held_out})
        kept = self._trials.read(key)
        return kept["losses"], float(kept["held_out"])

    def forget(self) -> None:
        """Its state is not needed any more; its losses stay."""
        self._state.unlink(missing_ok=True)


@contextlib.contextmanager
def _runner(family: Family, data: Arrays, recipe: Recipe, seed: int, run: Run) -> Iterator[_Runner]:
    with contextlib.ExitStack() as stack:
        folder = None if run.folder is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield _Runner(family, data, recipe, seed, run, folder)


def _trained(
    family: Family, data: Arrays, recipe: Recipe, seed: int, run: Run, until: int, unfinished: Path | None = None
) -> Trajectory:
    """One candidate trained so far; the order of samples depends on the seed alone, so that all see the same."""
    quiet = dataclasses.replace(run, progress=False)
    own = seed_of(seed, "race")
    start = family.draw(1, seed=own, run=dataclasses.replace(quiet, precision=_master(run))).member(0)
    start = start.to(run.torch_device, master_dtype(run))
    return fit(start, data, recipe, seed=own, run=quiet, until=until, unfinished=unfinished)


def _master(run: Run) -> str:
    """Weights are kept in float32 where products are taken in half precision."""
    return "float32" if run.precision in ("bfloat16", "float16") else run.precision


def _padded(values: Tensor, length: int) -> Tensor:
    """A curve filled up with nan."""
    return torch.cat([values, values.new_full((length - len(values),), torch.nan)])
