"""The scripts of `examples`: each runs in seconds, prints what a reader understands, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "examples"
#: What each script needs beside Biascope, and words that it prints.
SCRIPTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "measure_lora": (("transformers", "peft"), ("base: the gradient spreads over", "with the adapter: the gradient")),
    "merge_two_checkpoints": ((), ("the merged model keeps",)),
    "observe_loop": ((), ("step   0: effective rank", "step 200: effective rank", "The loss fell")),
    "observe_trainer": (("transformers", "accelerate"), ("distance: 0.00 at step 0", "at step 60", "in 60 steps.")),
    "scan_timm": (("timm",), ("Effective rank: ", "report.html")),
    "scan_transformer": (("transformers",), ("attention eager", "12 of 12 checks", "mean gradient of bert")),
}
# Torchvision may be built for another torch, which stops the import of these libraries.
PROGRAM = """
import runpy, sys, warnings
from biascope.families.libraries.packages import define_operators_of_torchvision
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    define_operators_of_torchvision()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_every_script_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == SCRIPTS.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_prints_what_a_reader_understands(name: str, tmp_path: Path) -> None:
    needed, words = SCRIPTS[name]
    for package in needed:
        pytest.importorskip(package)
    script = FOLDER / f"{name}.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 40
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(script)],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for each in words:
        assert each in done.stdout
