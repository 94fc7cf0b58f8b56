"""An observer in transformers' Trainer, and loggers."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from biascope.training.callbacks import logger, trainer_callback


def test_it_counts_the_steps_of_a_trainer_and_notes_their_losses(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    os.environ["HF_HUB_OFFLINE"] = "1"
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=20, num_labels=2
    )
    rows = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(index % 2)} for index in range(16)]
    seen: list[tuple[str, float, int]] = []
    callback = trainer_callback(
        at=(0, 2, 4),
        hooks={"length": lambda step, network: sum(float(each.norm()) for each in network.params.values())},
        log=lambda *told: seen.append(told),
        keep=False,
    )
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    with __import__("warnings").catch_warnings():
        __import__("warnings").simplefilter("ignore")  # the library's own
        transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()
    assert list(callback.observer.seen["length"]) == [0, 2, 4]
    assert [step for _, _, step in seen] == [0, 2, 4]
    losses = callback.observer.trajectory().losses
    assert len(losses) == 4
    assert bool(((losses > 0) & (losses < 5)).all())
    assert not model._forward_hooks


def test_a_logger_that_there_is_not_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="logger\\('tensorboard'\\)"):
        logger("paper")
    monkeypatch.setitem(__import__("sys").modules, "trackio", None)
    with pytest.raises(ImportError, match="pip install trackio"):
        logger("trackio")


def test_numbers_go_to_the_run_of_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = []

    class Run:
        def log(self, row: dict[str, float], step: int) -> None:
            rows.append((row, step))

    module = type("module", (), {"init": staticmethod(lambda **settings: rows.append(settings) or Run())})
    monkeypatch.setitem(__import__("sys").modules, "wandb", module)
    logger("wandb", project="mine")("rank", 3.0, 7)
    assert rows == [{"project": "mine"}, ({"rank": 3.0}, 7)]
