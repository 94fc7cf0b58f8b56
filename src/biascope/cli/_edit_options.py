"""Options of `biascope edit`: measurements and tasks, how to fine-tune, and the encoder to start from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli.options import Grid, MaybeRate, OptionGroup, Steps, Weights

if TYPE_CHECKING:
    from biascope.editing.encoders.encoder import Encoder
    from biascope.families.network import Network
    from biascope.training.recipe import Recipe

WHAT_HELP = "Measurements to run, separated by commas: addition, negation, disentanglement, localisation."
CONTROL_HELP = "Control task, preserved while others are negated. In disentanglement maps: samples outside both tasks."
PAIR_HELP = "Two tasks for disentanglement; for localisation, a task and one to compare with. The first two by default."
POINTS_HELP = "Points of each task. Default: 2048 in a disentanglement map, 200 in a localisation kernel."
MEASURES = {
    "addition": "task_addition",
    "negation": "task_negation",
    "disentanglement": "disentanglement",
    "localisation": "eigenfunction_localisation",
}


@dataclass(frozen=True)
class Choice:
    """Which measurements are run on which tasks.

    Attributes:
        what: Words for measurements.
        tasks: All that are needed, from what results call them to what the user does.
        tuned: Those to fine-tune on.
        control: The control task, perhaps empty.
        pair: Of disentanglement and localisation; empty where neither is asked for.
        points: Samples of each task, where given.
        grid: Coefficients along a side.
    """

    what: tuple[str, ...]
    tasks: dict[str, str]
    tuned: tuple[str, ...]
    control: str
    pair: tuple[str, ...]
    points: int | None
    grid: int


@dataclass(frozen=True)
class Question(OptionGroup):
    """Which measurements to run."""

    what: Annotated[str, typer.Option(help=WHAT_HELP)] = "addition"
    control: Annotated[str, typer.Option(help=CONTROL_HELP)] = ""
    pair: Annotated[str, typer.Option(help=PAIR_HELP)] = ""
    points: Annotated[int | None, typer.Option(help=POINTS_HELP)] = None
    grid: Grid = 20

    def about(self, tasks: str) -> Choice:
        """The chosen measurements and tasks, checked."""
        what, control, pair, points, grid = self.what, self.control, self.pair, self.points, self.grid
        words = tuple(dict.fromkeys(_words(what)))
        if unknown := [word for word in words if word not in MEASURES]:
            raise ValueError(f"--what must be among {', '.join(MEASURES)}, got {unknown[0]!r}. Pass --what addition.")
        names = {_label(name): name for name in _words(tasks)}
        if not words or not names or len(names) < len(_words(tasks)):
            problem = "a duplicate" if names else "none"
            raise ValueError(
                f"--tasks and --what must name different tasks and measurements, got {problem}. Pass --tasks mnist,gtsrb."
            )
        two = tuple(map(_label, _words(pair))) or tuple(names)[:2]
        of_pair = [word for word in words if word in ("disentanglement", "localisation")]
        if of_pair and len(names) < 2:
            raise ValueError(
                f"--what {of_pair[0]} needs two tasks, got only {next(iter(names))}. Pass --tasks {next(iter(names))},gtsrb."
            )
        if pair and (not of_pair or len(set(two)) != 2 or len(two) != 2 or not set(two) <= set(names)):
            needs = "is for disentanglement and localisation, and must name two of the tasks"
            raise ValueError(
                f"--pair {needs} {', '.join(names)}, got {pair!r} for {', '.join(words)}. Pass such a pair, or leave it out."
            )
        kept = _label(control) if control else ""
        if "negation" in words and not set(names) - {kept}:
            raise ValueError(
                f"--what negation needs a task besides the control task {kept}, got none. Pass another in --tasks."
            )
        if "negation" in words and not kept:
            raise ValueError("--what negation needs a control task, got none. Pass --control cifar10.")
        if kept and not {"negation", "disentanglement"} & set(words):
            raise ValueError(
                f"--control is for negation and disentanglement, got {control} for {', '.join(words)}. "
                "Add one to --what, or leave it out."
            )
        if grid < 2 or (points is not None and points < 2):
            raise ValueError(
                f"--grid and --points must be at least 2, got {grid} and {points}. Pass --grid 20 --points 2048."
            )
        needed = names | ({kept: control} if kept else {})
        tuned = tuple(names)
        if words == ("localisation",):  # it is about kernels at θ₀
            needed, tuned = {name: names[name] for name in two}, ()
        return Choice(words, needed, tuned, kept, two if of_pair else (), points, grid)


@dataclass(frozen=True)
class TuningOptions(OptionGroup):
    """How to fine-tune."""

    steps: Steps = 500
    rate: MaybeRate = None
    linearised_rate: Annotated[float | None, typer.Option(help="Learning rate of linearised fine-tuning.")] = None
    tunings: Annotated[str, typer.Option(help="How to fine-tune: non-linear, linearised, or both.")] = (
        "non-linear,linearised"
    )
    normalise: Annotated[
        bool, typer.Option("--normalise/--plain", help="Divide features by their length before the head, as CLIP does.")
    ] = True
    seeds: Annotated[
        int, typer.Option(help="Number of fine-tunings of each task, with different seeds, for intervals.")
    ] = 1

    def recipes(self, encoder: str) -> dict[str, Recipe]:
        """How to fine-tune, with the encoder's own rates where none are given."""
        from biascope.editing.study import usual_rates
        from biascope.editing.tuning import TUNINGS, tuning_recipe

        wanted = _words(self.tunings)
        if not wanted or not set(wanted) <= set(TUNINGS):
            raise ValueError(
                f"--tunings must be among {' and '.join(TUNINGS)}, got {self.tunings!r}. Pass --tunings non-linear."
            )
        given = dict(zip(TUNINGS, (self.rate, self.linearised_rate), strict=True))
        rates = usual_rates(encoder) | {tuning: each for tuning, each in given.items() if each is not None}
        for tuning, option in zip(TUNINGS, ("--rate", "--linearised-rate"), strict=True):
            if given[tuning] is not None and (tuning not in wanted or not 0 < rates[tuning] < 1e3):
                raise ValueError(
                    f"{option} must be positive and belong to one of --tunings, got {given[tuning]:g} with --tunings "
                    f"{self.tunings}. Leave it out."
                )
        if self.steps < 1:
            raise ValueError(f"--steps must be at least 1, got {self.steps}. Pass --steps 500.")
        if self.seeds < 1:
            raise ValueError(
                f"--seeds must be at least 1, got {self.seeds}. Pass --seeds 3 for intervals over fine-tunings."
            )
        return {tuning: tuning_recipe(steps=self.steps, rate=rates[tuning]) for tuning in TUNINGS if tuning in wanted}


@dataclass(frozen=True)
class EncoderOptions(OptionGroup):
    """Which weights an encoder starts from."""

    weights: Weights = None
    random: Annotated[bool, typer.Option("--random", help="Start from random weights.")] = False
    image_size: Annotated[
        int | None, typer.Option(help="Height and width of the images for an EfficientNet; 96 by default.")
    ] = None

    def check(self, choice: Choice) -> None:
        """Refuse what contradicts itself."""
        if self.random and self.weights is not None:
            raise ValueError(
                f"Only one of --random and --weights may be given, got both ({self.weights}). Leave one out."
            )
        if self.random and "localisation" in choice.what:
            raise ValueError(
                "--what localisation already compares with random weights, got --random too. Leave --random out."
            )

    def encoder(self, name: str, root: Path | None) -> Encoder:
        """The encoder of that name."""
        from biascope.editing.encoder_source import encoder_of

        return encoder_of(name, weights_file=self.weights, image_size=self.image_size, random=self.random, root=root)

    def untrained(self, name: str, root: Path | None, like: Network) -> Network | None:
        """The same with random weights; none where the weights at hand are of another size."""
        from biascope.families.weights import misfits

        fresh = dataclasses.replace(self, weights=None, random=True).encoder(name, root).network
        return None if misfits(fresh.params, like.params) else fresh

    def folder_name(self, name: str) -> str:
        """A readable name for the results of this encoder, and for no other."""
        from biascope.runs.files import path_words

        weights = "" if self.weights is None else f"@{path_words(self.weights, '.safetensors')}"
        return f"edit-{path_words(name)}{'-random' if self.random else ''}{weights}"

    def metadata(self, name: str, root: Path | None) -> dict[str, str]:
        """What stands beside the weights of a small ViT, its sizes, without which merged ones could not be read."""
        from biascope.data import data_root
        from biascope.families.checkpoint import Checkpoint

        path = self.weights or data_root(root) / "encoders" / "vit.safetensors"
        return {} if self.random or name.lower() != "vit" else dict(Checkpoint.open(path).metadata)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _label(name: str) -> str:
    """What to call a task in tables: of a path, its last part.

    Example:
        >>> _label("mnist"), _label("sets/digits.npz")
        ('mnist', 'digits')
    """
    return Path(name).name.removesuffix(".npz")
