"""A torchvision whose compiled operators do not load stops no import, and is told once."""

import importlib.util
import os
import subprocess
import sys

import pytest

from biascope.families.libraries.packages import _numbers

PROGRAM = """
import warnings
from biascope.families.libraries.packages import define_operators_of_torchvision
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    define_operators_of_torchvision()
    define_operators_of_torchvision()
assert len(told) <= 1, told
import torchvision.models
torchvision.models.get_model("squeezenet1_1")
"""


def test_torchvision_can_be_imported_whatever_torch_it_was_built_for() -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    path = os.pathsep.join(each for each in sys.path if each)
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env={**os.environ, "PYTHONPATH": path})


def test_versions_are_compared_by_their_numbers() -> None:
    assert _numbers("5.23.0") > _numbers("5.3") > _numbers("4.99.9+cpu")
