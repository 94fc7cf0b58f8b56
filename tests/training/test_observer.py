"""Observer in a user's own loop and in the tools that people train with: fakes of their interfaces, and the tools where installed."""

import csv
import math
import re
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import biascope
from biascope.families.network import Network
from biascope.families.weights import load
from biascope.results.estimate import Estimate
from biascope.tasks.probe import Probe
from biascope.training.callbacks import lightning_callback
from biascope.training.observer import _WAITING, Observer, hook

CPU = biascope.Run(device="cpu", progress=False)
PROBE = Probe.gaussian((1, 28, 28), num=2, fresh=True)


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 10))


def data(count: int = 6, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(size, 1, 28, 28, generator=generator)  # noqa: E731
    return [(draw(), torch.randint(10, (size,), generator=generator)) for _ in range(count)]


def loader(count: int) -> Any:
    """Batches as they are: a list would be several loaders to Lightning."""
    return torch.utils.data.DataLoader(data(count), batch_size=None)  # type: ignore[arg-type]


def train(module: nn.Module, note: Callable[[torch.Tensor], None], steps: int = 6) -> list[float]:
    optimiser, losses = torch.optim.SGD(module.parameters(), lr=0.1), []
    for x, y in data(steps):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimiser.step()
        note(loss)
        losses.append(loss.item())
    return losses


def rank_hook() -> Callable[[int, Network], Any]:
    return hook("average_geometry", PROBE, number="effective_rank", draws=4, run=CPU)


def test_a_training_is_the_same_with_an_observer_and_without() -> None:
    ways = []
    for observed in (False, True):
        torch.manual_seed(0)
        module = small()
        observer = Observer(module, at=range(0, 100, 2), hooks={"rank": rank_hook()}) if observed else lambda loss: None
        losses = train(module, observer)
        ways.append((losses, {name: tensor.clone() for name, tensor in module.state_dict().items()}, torch.rand(3)))
    assert ways[0][0] == ways[1][0]
    assert all(torch.equal(ways[0][1][name], ways[1][1][name]) for name in ways[0][1])
    assert torch.equal(ways[0][2], ways[1][2])  # nor is the global random state moved


def test_losses_of_every_kind_are_recorded_as_they_are() -> None:
    module = small()
    observer = Observer(module, threshold=0.3)
    reused = torch.tensor(0.5, requires_grad=True)
    observer(reused)
    with torch.no_grad():
        reused.fill_(7.0)  # as a CUDA graph does at its next replay
    for loss in (
        torch.tensor([0.25]),
        0.125,
        np.float32(2.0),
        torch.tensor(math.inf),
        torch.tensor(1, dtype=torch.long),
    ):
        observer(loss)
    found = observer.trajectory()
    assert found.losses.flatten().tolist() == [0.5, 0.25, 0.125, 2.0, math.inf, 1.0]
    assert (int(found.first_below), int(found.diverged_at)) == (2, 5)
    assert repr(observer) == "Observer(Sequential, 6 iterations)"


def test_losses_on_a_device_are_not_waited_for() -> None:
    """A tensor of the meta device has no value: reading one raises."""
    observer = Observer(small(), at=(3,), hooks={"step": lambda step, network: step})
    loss = torch.zeros((), device="meta")
    with pytest.raises(RuntimeError):
        loss.item()
    for _ in range(_WAITING - 1):
        observer(loss)
    assert observer.step == _WAITING - 1
    assert observer.seen["step"] == {3: 3}
    with pytest.raises(
        (RuntimeError, NotImplementedError)
    ):  # the block is read together, which keeps its memory bounded
        observer(loss)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_losses_on_a_gpu_are_not_waited_for_and_are_right() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    observer = Observer(small().cuda())
    loss = torch.zeros((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(_WAITING - 1):
            loss += 1
            observer(loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for _ in range(2):
        loss += 1
        observer(loss)
    assert observer.trajectory().losses.flatten().tolist() == [float(step) for step in range(1, _WAITING + 2)]


@pytest.mark.gpu
def test_weights_that_are_kept_do_not_stay_on_the_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    module = small().cuda()
    found = Observer(module, at=(0,)).trajectory()
    assert {tensor.device.type for tensor in found.at(0).params.values()} == {"cpu"}
    assert torch.equal(found.at(0).params["1.weight"], module[1].weight.detach().cpu())  # type: ignore[index]


def test_a_resumed_training_goes_on_counting(tmp_path: Path) -> None:
    module = small()
    observer = Observer(module, at=(0, 10, 12), threshold=100.0, folder=tmp_path, start=10)
    train(module, observer, 3)
    found = observer.trajectory()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-10.safetensors", "step-12.safetensors"]
    assert sorted(found.checkpoints) == [10, 12]
    assert found.losses.shape == (13, 1)
    assert found.losses[:10].isnan().all()
    assert found.losses[10:].isfinite().all()
    assert (int(found.first_below), int(found.diverged_at)) == (11, -1)
    saved = load(tmp_path / "step-12.safetensors")
    assert torch.equal(saved["1.weight"], found.at(12).params["1.weight"])


def test_a_range_without_end_costs_nothing() -> None:
    observer = Observer(small(), at=range(0, 10**15, 10**6), keep=False)
    observer(1.0)
    assert observer.trajectory().checkpoints == {}


BAD: dict[str, Callable[[], object]] = {
    "a function for a module": lambda: Observer(lambda x: x),  # type: ignore[arg-type]
    "a negative iteration": lambda: Observer(small(), at=(-1,)),
    "half an iteration": lambda: Observer(small(), at=(0.5,)),  # type: ignore[arg-type]
    "one iteration, no list": lambda: Observer(small(), at=5),  # type: ignore[arg-type]
    "iterations in words": lambda: Observer(small(), at="all"),  # type: ignore[arg-type]
    "a list of hooks": lambda: Observer(small(), hooks=[print]),  # type: ignore[arg-type]
    "a number for a hook": lambda: Observer(small(), hooks={"rank": 3}),  # type: ignore[dict-item]
    "a writer for log": lambda: Observer(small(), log=object()),  # type: ignore[arg-type]
    "a threshold of nan": lambda: Observer(small(), threshold=math.nan),
    "a start in words": lambda: Observer(small(), start="10"),  # type: ignore[arg-type]
    "losses of a batch": lambda: Observer(small())(torch.zeros(4)),
    "no loss": lambda: Observer(small())(None),  # type: ignore[arg-type]
    "a setting that is none": lambda: lightning_callback(every=3),
    "a measurement that is none": lambda: hook("average_geometri", PROBE),
    "a measurement of several": lambda: hook("merge_check", PROBE),
    "a measurement without inputs": lambda: hook("average_geometry"),
    "a setting of a measurement that is none": lambda: hook("average_geometry", PROBE, drawz=4),
    "a number that is none": lambda: hook("average_geometry", PROBE, number="rank", draws=4)(0, Network.of(small())),
    "a measurement of a distribution": lambda: hook("mean_gradient", PROBE, draws=4)(0, Network.of(small())),
}


@pytest.mark.parametrize("call", BAD.values(), ids=BAD.keys())
def test_a_wrong_argument_is_one_sentence(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as told:
        call()
    assert "\n" not in str(told.value)
    assert str(told.value).endswith((".", "?"))


def test_a_hook_measures_the_network_as_the_measurement_does() -> None:
    module = small()
    observer = Observer(
        module, at=(0, 4), hooks={"rank": rank_hook(), "whole": hook("average_geometry", PROBE, draws=4)}
    )
    train(module, observer, 4)
    for step, trained in ((0, observer.trajectory().at(0)), (4, Network.of(module))):
        family = biascope.Family.point(trained.as_module())
        expected = biascope.average_geometry(family, PROBE, draws=4, run=CPU).headline()["effective_rank"]
        assert observer.seen["rank"][step] == expected
        assert observer.seen["whole"][step].headline()["effective_rank"].value == pytest.approx(expected.value)
    assert float(observer.seen["rank"][0]) != float(observer.seen["rank"][4])


class StraightThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x.flatten(1))
        return h + (torch.tanh(3 * h) - h).detach()


def test_a_hook_warns_once_of_derivatives_that_are_wrong() -> None:
    look, network = hook("average_geometry", PROBE, draws=4, run=CPU), Network.of(StraightThrough())
    with pytest.warns(UserWarning, match="gradient"):
        look(0, network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look(1, network)


def test_every_number_of_a_hook_is_logged_and_nothing_else() -> None:
    logged: list[tuple[str, float, int]] = []
    hooks = {
        "estimate": lambda step, network: Estimate(0.5, 0.1),
        "tensor": lambda step, network: torch.tensor(2.0),
        "flag": lambda step, network: True,
        "dict": lambda step, network: {"a": 1, "b": np.float64(3.0), "c": "words"},
        "words": lambda step, network: "words",
        "array": lambda step, network: np.zeros(3),
        "none": lambda step, network: None,
        "geometry": hook("average_geometry", PROBE, draws=4, run=CPU),
    }
    observer = Observer(small(), at=(0,), hooks=hooks, log=lambda *entry: logged.append(entry))
    found = {name: value for name, value, step in logged if step == 0}
    headline = observer.seen["geometry"][0].headline()
    expected = {"estimate": 0.5, "tensor": 2.0, "flag": 1.0, "dict/a": 1.0, "dict/b": 3.0}
    assert found == expected | {f"geometry/{key}": number.value for key, number in headline.items()}
    assert {type(value) for value in found.values()} == {float}
    assert observer.seen["words"] == {0: "words"}


# The interfaces of other tools as far as an observer meets them. The tests below also run with the tools where they are installed.


class FakeWriter:
    """``torch.utils.tensorboard.SummaryWriter``."""

    def __init__(self, log_dir: str | None = None) -> None:
        self.rows: list[tuple[str, float, int | None]] = []

    def add_scalar(
        self,
        tag: str,
        scalar_value: float,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        self.rows.append((tag, scalar_value, global_step))


class FakeRun:
    """What ``wandb.init`` returns."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], int | None]] = []

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.rows.append((data, step))


class FakeLightningModule(nn.Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise NotImplementedError


class FakeCallback:
    """``lightning.Callback``."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Does nothing."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Does nothing."""


class FakeLogger:
    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((metrics, step))


class FakeTrainer:
    """``lightning.Trainer``, automatic optimisation: a loss is divided by the number of accumulated batches, and returned so."""

    is_global_zero = True

    def __init__(
        self, max_epochs: int = 1, callbacks: Any = (), accumulate_grad_batches: int = 1, start: int = 0, **_: Any
    ) -> None:
        self.callbacks, self.parts, self.global_step, self.epochs = (
            callbacks,
            accumulate_grad_batches,
            start,
            max_epochs,
        )
        self.loggers = [FakeLogger()]

    def fit(self, module: Any, loader: Any) -> None:
        optimiser = module.configure_optimizers()
        for callback in self.callbacks:
            callback.on_train_start(self, module)
        for _ in range(self.epochs):
            for index, batch in enumerate(loader):
                loss = module.training_step(batch, index)
                if loss is not None:
                    loss = loss / self.parts
                    loss.backward()
                if (index + 1) % self.parts == 0:
                    optimiser.step()
                    optimiser.zero_grad()
                    self.global_step += 1
                outputs = None if loss is None else {"loss": loss.detach()}
                for callback in self.callbacks:
                    callback.on_train_batch_end(self, module, outputs, batch, index)


def fake_package(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(content)
    return module


@pytest.fixture(params=["fake", "installed"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """A tool by its package: a fake of its interface, or the tool itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def given(name: str) -> Any:
        if request.param == "installed":
            pytest.importorskip({"torch.utils.tensorboard": "tensorboard"}.get(name, name))
            return __import__(name, fromlist=["_"])
        tools = {
            "torch.utils.tensorboard": {"SummaryWriter": FakeWriter},
            "wandb": {"init": lambda **settings: FakeRun()},
            "lightning": {
                "Trainer": FakeTrainer,
                "Callback": FakeCallback,
                "LightningModule": FakeLightningModule,
                "pytorch": fake_package("lightning.pytorch", Callback=FakeCallback),
            },
        }
        package = fake_package(name, **tools[name])
        monkeypatch.setitem(sys.modules, name, package)
        if name == "lightning":
            monkeypatch.setitem(sys.modules, "lightning.pytorch", package.pytorch)
        return package

    return given


PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text("utf-8")
SECTIONS = [part for part in re.split(r"^#+ ", PAGE, flags=re.MULTILINE) if "Observer(" in part or "_callback(" in part]
EXAMPLES = {
    part.splitlines()[0]: code for part in SECTIONS for code in re.findall(r"```python\n(.*?)```", part, re.DOTALL)
}


def ready() -> dict[str, Any]:
    """What the examples of docs/training.md take as given, with a quicker hook."""
    module = small()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    return {"biascope": biascope, "module": module, "optimiser": optimiser, "batches": data(101), "rank": rank_hook()}


def test_there_is_an_example_of_every_tool() -> None:
    assert list(EXAMPLES) == ["Your own loop", "TensorBoard", "Weights & Biases", "Lightning", "transformers"]


def test_the_example_of_a_plain_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = ready()
    exec(EXAMPLES["Your own loop"], space)
    assert sorted(space["observer"].seen["rank"]) == [0, 100]
    assert sorted(path.name for path in Path("runs/checkpoints").iterdir()) == [
        "step-0.safetensors",
        "step-100.safetensors",
    ]
    assert space["observer"].trajectory().losses.shape == (101, 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_example_of_tensorboard_runs(tool: Callable[[str], Any]) -> None:
    tool("torch.utils.tensorboard")
    space = ready()
    exec(EXAMPLES["TensorBoard"], space)
    train(space["module"], space["observer"], 101)
    seen = {step: float(number) for step, number in space["observer"].seen["rank"].items()}
    assert sorted(seen) == [0, 100]
    if isinstance(writer := space["writer"], FakeWriter):
        assert writer.rows == [("rank", value, step) for step, value in seen.items()]
        return
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer.close()
    events = EventAccumulator("runs/tensorboard")
    events.Reload()
    written = {event.step: event.value for event in events.Scalars("rank")}
    assert written == {step: pytest.approx(value, rel=1e-6) for step, value in seen.items()}


@pytest.mark.filterwarnings("ignore")  # of the tool's own dependencies
def test_the_example_of_weights_and_biases_runs(tool: Callable[[str], Any]) -> None:
    wandb = tool("wandb")
    space = ready()
    exec(EXAMPLES["Weights & Biases"], space)
    train(space["module"], space["observer"], 101)
    seen = {step: float(number) for step, number in space["observer"].seen["rank"].items()}
    assert sorted(seen) == [0, 100]
    if isinstance(space["run"], FakeRun):
        assert space["run"].rows == [({"rank": value}, step) for step, value in seen.items()]
        return
    space["run"].log({"next": 0}, step=101)  # a step is complete when the next one begins
    assert space["run"].summary["rank"] == pytest.approx(seen[100])
    wandb.finish()
    assert list(Path("wandb").glob("offline-run-*/*.wandb"))


def lightning_parts(lightning: Any, returns: bool = True) -> Any:
    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = small()
            self.seen: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.seen.append(loss.item())
            return loss if returns else None

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    return Model()


QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": True}


@pytest.mark.filterwarnings("ignore")  # of the tool's own dependencies
def test_the_example_of_lightning_runs(tool: Callable[[str], Any]) -> None:
    lightning = tool("lightning")
    space = ready() | {"loader": loader(101), "lightning_module": lightning_parts(lightning)}
    exec(EXAMPLES["Lightning"], space)
    observer = space["callback"].observer
    assert sorted(observer.seen["rank"]) == [0, 100]
    losses = observer.trajectory().losses.flatten().tolist()
    assert losses == pytest.approx(space["lightning_module"].seen, rel=1e-6)
    (logger,) = space["trainer"].loggers
    if isinstance(logger, FakeLogger):
        assert [step for _, step in logger.rows] == [0, 100]


@pytest.mark.filterwarnings("ignore")
def test_lightning_counts_steps_of_the_optimiser(tool: Callable[[str], Any], tmp_path: Path) -> None:
    lightning = tool("lightning")
    model, callback = lightning_parts(lightning), lightning_callback(at=(0, 1, 3), network=lambda module: module.model)
    trainer = lightning.Trainer(max_epochs=1, callbacks=[callback], accumulate_grad_batches=2, **QUIET)
    trainer.fit(model, loader(6))
    found = callback.observer.trajectory()
    pairs = torch.tensor(model.seen, dtype=torch.float64).reshape(3, 2)
    torch.testing.assert_close(found.losses[:, 0], pairs.mean(1), rtol=1e-6, atol=1e-6)
    assert torch.equal(found.at(3).params["1.weight"], model.model[1].weight.detach())
    assert not torch.equal(found.at(1).params["1.weight"], found.at(0).params["1.weight"])


@pytest.mark.filterwarnings("ignore")
def test_lightning_without_a_loss_is_told_in_one_sentence(tool: Callable[[str], Any]) -> None:
    lightning = tool("lightning")
    trainer = lightning.Trainer(max_epochs=1, callbacks=[lightning_callback(at=(0,))], **QUIET)
    with pytest.raises(ValueError, match=r"^training_step must return a loss to be observed, got none\. Return"):
        trainer.fit(lightning_parts(lightning, returns=False), loader(2))


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_training_of_lightning_goes_on_counting(tool: Callable[[str], Any], tmp_path: Path) -> None:
    lightning = tool("lightning")
    if lightning.Trainer is FakeTrainer:
        callback = lightning_callback(at=(5, 7), keep=True)
        lightning.Trainer(callbacks=[callback], start=5).fit(lightning_parts(lightning), loader(2))
    else:
        first = lightning.Trainer(max_epochs=1, **QUIET)
        first.fit(lightning_parts(lightning), loader(5))
        first.save_checkpoint(tmp_path / "last.ckpt")
        callback = lightning_callback(at=(5, 7), hooks={"one": lambda step, network: 1.0})
        from lightning.pytorch.loggers import CSVLogger

        second = lightning.Trainer(max_epochs=2, callbacks=[callback], **QUIET | {"logger": CSVLogger(tmp_path)})
        second.fit(lightning_parts(lightning), loader(5), ckpt_path=tmp_path / "last.ckpt", weights_only=False)
        (table,) = tmp_path.rglob("metrics.csv")
        rows = list(csv.DictReader(table.open()))
        assert [(row["one"], row["step"]) for row in rows] == [("1.0", "5"), ("1.0", "7")]
    assert sorted(callback.observer.trajectory().checkpoints) == [5, 7]


def test_without_lightning_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=r"^lightning_callback needs Lightning, which is not installed\. Run pip install"
    ):
        lightning_callback()


def test_only_the_first_of_several_processes_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", fake_package("lightning.pytorch", Callback=FakeCallback))
    monkeypatch.setitem(sys.modules, "lightning", fake_package("lightning"))
    trainer = FakeTrainer(callbacks=[callback := lightning_callback(at=(0,))])
    trainer.is_global_zero = False
    trainer.fit(lightning_parts(fake_package("lightning", LightningModule=FakeLightningModule)), data(2))
    assert callback.observer is None
