"""Samples as a user names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from biascope.tasks.samples import samples_of


def test_samples_without_labels_are_taken_where_none_are_needed(tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", x_train=np.arange(64, dtype=np.uint8).reshape(4, 1, 4, 4))
    with pytest.raises(ValueError, match="must have labels"):
        samples_of("bare", sizes=(4,), root=tmp_path)
    found = samples_of("bare", sizes=(4,), root=tmp_path, labelled=False)
    assert found.splits["train"][1].tolist() == [0, 0, 0, 0]
    assert float(found.splits["train"][0].mean()) == pytest.approx(0, abs=1e-6)
