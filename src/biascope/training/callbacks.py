"""An :class:`Observer` in the training loops of Lightning and transformers, and the loggers that people use."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from biascope.training.observer import Observer

Log = Callable[[str, float, int], object]


def lightning_callback(*, network: Callable[[Any], nn.Module] | None = None, **settings: Any) -> Any:
    """An :class:`Observer` as a callback of Lightning: ``Trainer(callbacks=[lightning_callback(at=(0, 100))])``.

    It counts steps of the optimiser, also where gradients are accumulated or a training is resumed. Of several processes, the first
    one observes; each must hold all weights. Numbers of hooks go to the loggers of the trainer unless ``log`` is given. The observer
    is the attribute ``observer`` of the callback from the start of the training on.

    Args:
        network: Which part of the LightningModule is observed, ``lambda module: module.model``; by default all of it.
        settings: Settings of the observer: ``at``, ``hooks``, ``log``, ``threshold``, ``keep``, ``folder``.

    Raises:
        ImportError: If Lightning is not installed.
        ValueError: In training, if ``training_step`` returns no loss.
    """
    _require_settings(settings)
    lightning = _lightning()

    class ObserverCallback(lightning.Callback):  # type: ignore[misc, name-defined] # known where it is installed
        observer: Observer | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._sum: Tensor | None = None
            self._step: int = trainer.global_step
            if trainer.is_global_zero:
                module = pl_module if network is None else network(pl_module)
                to_loggers = functools.partial(_log_to, trainer)
                self.observer = Observer(module, **{"log": to_loggers, **settings, "start": trainer.global_step})

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.observer is None:
                return
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if not isinstance(loss, Tensor):
                raise ValueError("training_step must return a loss to be observed, got none. Return the loss from it.")
            # Lightning has divided the loss by the number of accumulated batches already.
            self._sum = loss.detach() if self._sum is None else self._sum + loss.detach()
            if trainer.global_step > self._step:
                self.observer(self._sum)
                self._sum, self._step = None, trainer.global_step

    return ObserverCallback()


def trainer_callback(*, network: Callable[[Any], nn.Module] | None = None, **settings: Any) -> Any:
    """An :class:`Observer` as a callback of transformers: ``Trainer(callbacks=[trainer_callback(at=(0, 100))])``.

    It counts steps of the optimiser, also where gradients are accumulated or a training is resumed. Of several processes, the first
    one observes. The loss is the mean of the losses that the model itself gives in a step. Numbers of hooks go where ``log`` says;
    without it they are on the attribute ``observer`` of the callback alone, which is there from the start of the training on.

    Args:
        network: Which part of the model is observed, ``lambda model: model.bert``; by default all of it.
        settings: Settings of the observer: ``at``, ``hooks``, ``log``, ``threshold``, ``keep``, ``folder``.

    Raises:
        ImportError: If transformers is not installed.
        ValueError: In training, if the model gives no loss.
    """
    _require_settings(settings)
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "trainer_callback needs transformers, which is not installed. Run pip install transformers."
        ) from error

    class ObserverCallback(transformers.TrainerCallback):  # type: ignore[misc, name-defined] # known where it is installed
        observer: Observer | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if not state.is_world_process_zero:
                return
            self._losses: list[Tensor] = []
            module = model if network is None else network(model)
            self.observer = Observer(module, **{**settings, "start": state.global_step})
            # Trainer tells callbacks a loss that is averaged over several steps, so the model is asked.
            self._listening = model.register_forward_hook(self._listen)

        def _listen(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
            if module.training and isinstance(loss, Tensor):
                self._losses.append(loss.detach())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.observer is None:
                return
            if not self._losses:
                raise ValueError(
                    "The model must give its loss to be observed, but gives none. Pass labels with its inputs."
                )
            self.observer(sum(self._losses[1:], self._losses[0]) / len(self._losses))
            self._losses = []

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.observer is not None:
                self._listening.remove()

    return ObserverCallback()


def logger(kind: str, **settings: Any) -> Log:
    """What writes numbers of hooks to a tool, for ``log`` of an observer: ``Observer(module, log=logger("wandb", project="mine"))``.

    Args:
        kind: ``"wandb"``, ``"trackio"`` or ``"tensorboard"``.
        settings: What the tool takes when a run begins: ``project`` and ``name``, or ``log_dir`` of TensorBoard.

    Raises:
        ImportError: If the tool is not installed.
        ValueError: If there is no such tool.
    """
    packages = {"wandb": "wandb", "trackio": "trackio", "tensorboard": "torch.utils.tensorboard"}
    if kind not in packages:
        raise ValueError(f"A logger must be one of {', '.join(packages)}, got {kind!r}. Pass logger('tensorboard').")
    try:
        tool = importlib.import_module(packages[kind])
    except ImportError as error:
        raise ImportError(f"logger({kind!r}) needs {kind}, which is not installed. Run pip install {kind}.") from error
    if kind == "tensorboard":
        add: Log = tool.SummaryWriter(**settings).add_scalar
        return add
    run = tool.init(**settings)
    return lambda name, value, step: run.log({name: value}, step=step)


def _require_settings(settings: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(Observer).parameters if name not in ("module", "start")]
    for name in settings:
        if name not in known:
            raise ValueError(f"An observer has no setting {name!r}. It takes: {', '.join(known)}.")


def _log_to(trainer: Any, name: str, value: float, step: int) -> None:
    for logger in trainer.loggers:
        logger.log_metrics({name: value}, step=step)


def _lightning() -> Any:
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(package)
        except ImportError:
            continue
    raise ImportError("lightning_callback needs Lightning, which is not installed. Run pip install lightning.")
