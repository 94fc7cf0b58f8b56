"""Tests of models of libraries need the extra `hub`; where it is missing they skip and say so."""

import os
import warnings

import pytest

from biascope.families.libraries.packages import define_operators_of_torchvision

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True, scope="session")
def _told_once() -> None:
    """That torchvision's operators do not load is said once for each process; test_packages.py looks at the words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        define_operators_of_torchvision()


@pytest.fixture(autouse=True)
def _their_warnings() -> object:
    """Libraries warn of what is coming in their next versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module="biascope")
        yield
