"""`biascope edit`: what a user types, what is printed and written, what merging then gives, and what is refused."""

import csv
import functools
import json
import re
import shlex
from pathlib import Path

import asking
import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from biascope import __version__
from biascope.cli import merge as merge_commands
from biascope.cli.edit import about_vectors, edit
from biascope.editing import tuning as task_tuning
from biascope.editing.encoder_source import VIT, encoder_of, headless_vit, vit_input
from biascope.editing.encoders.encoder import Encoder
from biascope.editing.study import usual_rates
from biascope.editing.tasks import task_of
from biascope.families import weights
from biascope.families.network import Network
from biascope.measures.task_addition import TaskAddition
from biascope.measures.task_negation import TaskNegation
from biascope.papers.task_arithmetic2023.vit_pretraining import save_vit
from biascope.results import registry as measurement
from biascope.runs.digest import fingerprint
from biascope.runs.randomness import forked_rng

TINY = VIT | {"depth": 1, "width": 32, "heads": 2, "mlp": 64, "image_size": 16, "patch": 8}
SIZES = (40, 20, 40)
QUICK = ("--steps", "6", "--samples", "40,20,40", "--device", "cpu", "--rate", "0.003", "--linearised-rate", "0.01")
SMALL = (*QUICK, "--weights", "tiny.safetensors", "--data-root", ".")
CURVES = ("--points", "20", "--grid", "3")
app = typer.Typer()
app.command()(edit)
said, refused = functools.partial(asking.said, app), functools.partial(asking.refused, app)


def save_task(name: str, seed: int) -> None:
    """Three classes of grey images that differ by where they are bright."""
    generator = np.random.default_rng(seed)
    centres = generator.integers(80, 170, (3, 8, 8))
    labels = np.arange(120) % 3
    images = np.clip(centres[labels] + generator.integers(-110, 110, (120, 8, 8)), 0, 255).astype(np.uint8)
    np.savez(f"{name}.npz", x_train=images[:80], y_train=labels[:80], x_test=images[80:], y_test=labels[80:])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tasks and a small ViT in the working folder."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("one", "two", "other")):
        save_task(name, seed)
    with forked_rng(0):
        network = Network.of(headless_vit(**TINY))
    save_vit(Encoder(network, vit_input(16), "tiny", "image"), "tiny.safetensors", settings=TINY)
    return tmp_path


def test_all_four_measurements_in_one_report(folder: Path) -> None:
    what = ("--what", "addition,negation,disentanglement,localisation", "--control", "other")
    output = said("vit", "--tasks", "one,two", *what, *SMALL, *CURVES, "--out", "run")
    run = folder / "run"
    added, negated = (measurement.load(run / name) for name in ("task_addition", "task_negation"))
    assert isinstance(added, TaskAddition)
    assert isinstance(negated, TaskNegation)
    assert added.tasks == negated.tasks == ("one", "two")
    assert added.methods == ("non-linear", "post-hoc", "linearised")
    assert negated.control_task == "other"
    assert added.subject == "small ViT at tiny"
    assert added.provenance["fine_tuning"]["rates"] == {"non-linear": 0.003, "linearised": 0.01}
    row = added.table()["linearised"]
    shown = next(line for line in output.splitlines() if line.startswith("  linearised"))
    for name in ("single", "absolute", "normalised"):
        percent = row[name].in_percent()
        assert f"{percent.value:.1f} ({percent.low:.1f} to {percent.high:.1f})" in shown
    assert shown.endswith(f"{added.chosen[0, 2]:.2f}")
    for result in (added, negated, measurement.load(run / "disentanglement")):
        assert result.sentence() in output
    mapped = measurement.load(run / "disentanglement")
    assert mapped.control is not None
    assert mapped.terms.shape == (3, 2, 3, 3)
    local = measurement.load(run / "eigenfunction_localisation")
    assert local.names == ("one", "two")
    assert local.states == ("pre-trained",)  # the ViT at random weights has other sizes than this one
    page = (run / "report.html").read_text(encoding="utf-8")
    for title in (
        "Editing small ViT at tiny",
        "Task addition",
        "Task negation",
        "Weight disentanglement",
        "Local energy",
    ):
        assert title in page
    assert f"Report: {Path('run') / 'report.html'}" in output
    with (run / "addition.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert float(rows[1]["merged"]) == pytest.approx(added.merged[0, 0, 1], abs=1e-4)
    with (run / "negation.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["control"]) == pytest.approx(negated.control[0, 2, 1], abs=1e-4)


@pytest.mark.usefixtures("unrendered_pictures")
def test_saved_vectors_merge_into_the_encoder_that_was_measured(folder: Path) -> None:
    output = said("vit", "--tasks", "one,two.npz", "--save-vectors", *SMALL, "--out", "run")
    found = measurement.load("run/task_addition")
    assert isinstance(found, TaskAddition)
    assert 0 < found.chosen[0, 0] < 1
    assert found.merged[0, 0].tolist() != found.pretrained[0].tolist()  # the test can tell
    coefficients = json.loads(Path("run/vectors/coefficients.json").read_text())
    assert coefficients.pop("biascope") == __version__
    assert coefficients == {way: [found.chosen[0, i]] for i, way in enumerate(found.methods)}
    command = re.search(r"To merge: biascope merge (.*)", output)
    assert command is not None
    done = CliRunner().invoke(merge_commands.app, shlex.split(command[1]), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    merged = encoder_of("vit", weights_file="run/vectors/merged.safetensors")
    heads = weights.load("run/vectors/heads.safetensors")
    for place, name in enumerate(("one", "two")):
        x, y = task_of(name, merged, sizes=SIZES, root=".").whole("test")
        with torch.no_grad():
            outputs = merged.network(x) @ heads[f"{name}.weight"].T + heads[f"{name}.bias"]
        assert float((outputs.argmax(1) == y).double().mean()) == pytest.approx(found.merged[0, 0, place], abs=0.026)
    start = encoder_of("vit", weights_file="run/vectors/base.safetensors").network
    assert fingerprint(start.params) == fingerprint(encoder_of("vit", weights_file="tiny.safetensors").network.params)


@pytest.mark.parametrize(
    "name", ["addition.csv", "vectors/coefficients.json", "vectors/non-linear/seed-0/two.safetensors"]
)
def test_a_file_of_someone_else_is_refused_before_the_work(folder: Path, name: str) -> None:
    (folder / "run" / name).parent.mkdir(parents=True)
    (folder / "run" / name).write_text('{"mine": 1}')
    words = ("vit", "--tasks", "one,two", "--save-vectors", *SMALL, "--out", "run")
    refused(folder, rf"^run/{name} would be replaced, but was not written by Biascope\.", *words)
    assert (folder / "run" / name).read_text() == '{"mine": 1}'


@pytest.mark.usefixtures("unrendered_pictures")
def test_the_same_command_goes_on_and_seeds_are_added(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = (word for word in SMALL if word not in ("--linearised-rate", "0.01"))
    words = ("vit", "--tasks", "one,two", "--tunings", "non-linear", *own, "--out", "run", "--json")
    plain, fits = task_tuning.fit, []

    def counted(*args, **settings):
        if len(fits) == 1 and stop:
            raise KeyboardInterrupt
        fits.append(settings["seed"])
        return plain(*args, **settings)

    stop = True
    monkeypatch.setattr(task_tuning, "fit", counted)
    assert CliRunner().invoke(app, list(words)).exit_code != 0
    stop = False
    fits.clear()
    first = json.loads(said(*words))
    assert fits == [0]  # the other task was done
    fits.clear()
    second = json.loads(said(*words))
    assert fits == []
    assert first["results"][0]["numbers"] == second["results"][0]["numbers"]
    assert Path(first["report"]) == Path("run/report.html")
    said(*words, "--seeds", "2")
    assert fits == [1, 1]
    found = measurement.load("run/task_addition")
    assert isinstance(found, TaskAddition)
    assert found.single.shape == (2, 2, 2)
    absolute = found.absolute[:, 0]
    mean = found.table()["non-linear"]["absolute"]
    assert mean.low < min(absolute) <= max(absolute) < mean.high  # also where two seeds agree


def test_localisation_takes_no_tuning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args, **settings):
        raise AssertionError("localisation is about the weights before fine-tuning")

    monkeypatch.setattr(task_tuning, "fit", never)
    words = ("--pair", "other,one", "--what", "localisation", *SMALL, "--points", "6")
    assert "samples of other. The rest lies on one." in said("vit", "--tasks", "one,two,other", *words)
    found = measurement.load("biascope-runs/edit-vit@tiny/eigenfunction_localisation")
    assert found.energy.shape == (1, 3, 12)


@pytest.mark.usefixtures("without_pictures")
def test_from_random_weights(folder: Path) -> None:
    words = ("--steps", "1", "--samples", "8,4,4", "--tunings", "non-linear", "--data-root", ".", "--device", "cpu")
    assert "small ViT at random weights" in said("vit", "--tasks", "one", "--random", *words)
    found = measurement.load("biascope-runs/edit-vit-random/task_addition")
    assert isinstance(found, TaskAddition)
    assert found.methods == ("non-linear", "post-hoc")
    assert found.provenance["fine_tuning"]["rates"] == {"non-linear": usual_rates("vit")["non-linear"]}


def test_what_cannot_be_done_is_one_sentence_and_nothing_is_written(folder: Path) -> None:
    def bad(message: str, *words: str, encoder: str = "vit", tasks: str = "one,two") -> None:
        refused(folder, message, encoder, "--tasks", tasks, *words, *SMALL)

    refused(
        folder, r"^An encoder must be one of efficientnet_lite0, .*, got resnet\. Check", "resnet", "--tasks", "one"
    )
    bad(r"^data set must be one of .*, got 'three'\.", tasks="one,three")
    bad(r"^--tasks and --what must name different .*, got a duplicate\. Pass", tasks="one,one.npz")
    bad(r"^--tasks and --what must .*, got none\.", tasks=",")
    bad(r"^--what must be among addition, .*, got 'sum'\. Pass --what addition\.$", "--what", "sum")
    bad(r"^--what disentanglement needs two tasks, got only one\. Pass", "--what", "disentanglement", tasks="one")
    bad(r"^--what localisation needs two tasks", "--what", "localisation", tasks="one")
    bad(r"^--what negation needs a control task, got none\. Pass --control", "--what", "negation")
    bad(
        r"^--what negation needs a task besides the control task one",
        "--what",
        "negation",
        "--control",
        "one",
        tasks="one",
    )
    bad(r"^--control is for negation and disentanglement, got other for addition\.", "--control", "other")
    bad(
        r"^--pair is for .* two of the tasks one, two, got 'one,other'",
        "--what",
        "disentanglement",
        "--pair",
        "one,other",
    )
    bad(r"^--pair is for disentanglement and localisation, .* for addition\.", "--pair", "one,two")
    bad(r"^--grid and --points must be at least 2, got 1 and None\.", "--grid", "1")
    bad(r"^--seeds must be at least 1, got 0\.", "--seeds", "0")
    bad(r"^Only one of --random and --weights", "--random")
    what = ("--what", "localisation", "--data-root", ".")
    refused(
        folder, r"^--what localisation already compares with random", "vit", "--tasks", "one,two", "--random", *what
    )
    bad(r"^--save-vectors needs task vectors", "--save-vectors", "--what", "localisation")
    bad(r"^--tunings must be among non-linear and linearised, got 'slow'\.", "--tunings", "slow")
    bad(r"^--linearised-rate must be positive and belong to one of --tunings", "--tunings", "non-linear")
    bad(r"^image_size must be at least 32 and is for efficientnet_lite0", "--image-size", "64")
    few = ("vit", "--tasks", "one", "--random", "--data-root", ".")
    refused(folder, r"^--samples must be positive numbers of training, validation and test", *few, "--samples", "40,20")
    refused(folder, r"^--samples must be whole numbers separated by commas, got 'many'", *few, "--samples", "many")
    refused(folder, r"^--steps must be at least 1, got 0\. Pass --steps 500\.$", *few, "--steps", "0")
    refused(folder, r"^device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got 'tpu'", *few, "--device", "tpu")
    refused(folder, r"^--rate must be positive", *few, "--rate", "-1")
    refused(folder, r"weights must lie at .*vit\.safetensors, but are not there\. Pass", *few[:3], "--data-root", ".")
    (folder / "short.safetensors").write_bytes((folder / "tiny.safetensors").read_bytes()[:-1])
    refused(folder, "damaged: the file is truncated", *few[:3], "--weights", "short.safetensors", *few[4:])


def test_the_words_for_merging_can_be_typed_as_they_are() -> None:
    folder = Path("my runs")
    file = folder / "non-linear" / "one.safetensors"
    words = shlex.split(about_vectors(folder, [file], {"non-linear": [0.35, 0.5]}).partition("biascope ")[2])
    assert words[:4] == ["merge", "apply", "my runs/base.safetensors", str(file)]
    assert words[4:] == ["--weight", "0.35", "--out", "my runs/merged.safetensors"]
    assert about_vectors(folder, [file], None).endswith("also measure addition)")
    assert about_vectors(folder, [], {"linearised": [0.35]}) == "Task vectors: my runs"
