import shutil
from pathlib import Path

import numpy as np
import pytest
from asking import Asking


@pytest.fixture
def ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, without_pictures: None
) -> Asking:
    """The command line in a folder with a file of odd models, small images and small signals; pictures are left out."""
    shutil.copy(Path(__file__).parents[1] / "odd_models.py", tmp_path / "odd.py")
    generator = np.random.default_rng(0)
    x, y = generator.uniform(size=(36, 1, 4, 4)).astype(np.float32), np.arange(36) % 3
    np.savez(tmp_path / "images.npz", x_train=x[:24], y_train=y[:24], x_test=x[24:], y_test=y[24:])
    np.save(tmp_path / "signal.npy", generator.uniform(size=(8, 8)))
    return Asking(monkeypatch, capsys, tmp_path)


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a command may take longer than half a minute, after which it prints a line."""
    monkeypatch.setattr("biascope.runs.progress.LINE_EVERY", float("inf"))
