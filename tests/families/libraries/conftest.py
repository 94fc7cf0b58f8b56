"""Tests of models of libraries need the extra `hub`; where it is missing they skip and say so."""

import os
import warnings

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _their_warnings() -> object:
    """Libraries warn of what is coming in their next versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module="biascope")
        yield
