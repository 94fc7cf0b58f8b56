from pathlib import Path

import pytest

from biascope.papers import merging


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source checkout with documentation; its results are those of the registered paper."""
    (tmp_path / "checkout" / "docs").mkdir(parents=True)
    monkeypatch.setattr(merging, "checkout", lambda: tmp_path / "checkout")
    return tmp_path / "checkout"
