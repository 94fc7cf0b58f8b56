"""What processes that are forked need not do again: import every module of the package, read its options, compile its templates."""

import importlib
import pkgutil

import matplotlib.figure  # noqa: F401
import scipy.stats  # noqa: F401
import torch._dynamo  # noqa: F401
from typer.testing import CliRunner

import biascope
from biascope.cli import app
from biascope.results.page import _environment

for module in pkgutil.walk_packages(biascope.__path__, "biascope."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for template in _environment().list_templates(extensions=["html"]):
    _environment().get_template(template)
CliRunner().invoke(app, ["list"])
