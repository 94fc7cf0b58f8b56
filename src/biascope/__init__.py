"""Biascope: a microscope for inductive bias. It shows what a neural network finds easy to learn, before and during training.

What to do first, on one of the papers' networks and then on your own::

    import biascope
    biascope.scan("lenet", run=biascope.Run(folder="lenet"))  # writes lenet/report.html
    biascope.scan(build, input=(3, 32, 32))  # build() returns a new torch.nn.Module; shows .results

One measurement by itself is a function of its name, such as :func:`biascope.mean_gradient`:

    >>> import biascope
    >>> family = biascope.Family.initialised(biascope.network("logistic_regression"), name="logistic regression")
    >>> result = biascope.anisotropy_directions(family, biascope.Probe.gaussian((1, 32, 32)), draws=64)
    >>> print(result.sentence())
    The gradient of logistic regression spreads evenly over all 1,024 directions: no direction is preferred.

``dir(biascope)`` lists the public names. The code lies in thirteen folders, from who is measured to how it is shown; a folder imports
only from those above it::

    networks      architectures, one file each
    runs          how work is run, cached and repeated
    results       numbers, results, the register of measurements, pictures, pages
    families      WHO: networks and distributions over their weights, models as a user names them
    data          data sets on disk
    tasks         WHERE: probes, bases, samples, what is learned
    derivatives   HOW, with respect to inputs
    kernels       HOW, with respect to weights
    training      recipes, the training loop, sweeps
    editing       encoders, task vectors, merges
    measures      WHAT: one file or folder each
    papers        figures with claims, one folder each
    cli           the commands

A network, a data set, a measurement, a figure and a command are one file each, found by its folder.
"""

from __future__ import annotations

from functools import cache as _cache
from typing import TYPE_CHECKING

__version__ = "0.2.0"

# Every public name that is not a function of this file: those of the library, and the measurements. Type checkers read these lines,
# and so does `_homes`. A name is imported when it is first used, so that `import biascope` and `biascope --help` stay instant.
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from torch import nn

    from biascope.derivatives.covariance import GradientSampler as GradientSampler
    from biascope.derivatives.covariance import gradient_covariance as gradient_covariance
    from biascope.derivatives.gradients import input_difference as input_difference
    from biascope.derivatives.gradients import input_gradient as input_gradient
    from biascope.derivatives.linearize import linearize as linearize
    from biascope.derivatives.operators import GradientCovariance as GradientCovariance
    from biascope.derivatives.operators import LinearOperator as LinearOperator
    from biascope.derivatives.operators import Matrix as Matrix
    from biascope.derivatives.spectrum import Spectrum as Spectrum
    from biascope.derivatives.spectrum import eigenpairs as eigenpairs
    from biascope.derivatives.spectrum import subspace_similarity as subspace_similarity
    from biascope.families.family import Family as Family
    from biascope.families.network import Network as Network
    from biascope.families.source import family_of as family_of
    from biascope.kernels.gram import tangent_gram as tangent_gram
    from biascope.kernels.products import TangentKernel as TangentKernel
    from biascope.kernels.products import alignment as alignment
    from biascope.kernels.selftest import selftest as selftest
    from biascope.measures.advise import advise as advise
    from biascope.measures.aliasing import aliasing as aliasing
    from biascope.measures.anisotropy_directions import anisotropy_directions as anisotropy_directions
    from biascope.measures.average_geometry import average_geometry as average_geometry
    from biascope.measures.channel_patterns import channel_patterns as channel_patterns
    from biascope.measures.complexity import complexity as complexity
    from biascope.measures.covariance import CovarianceResult as CovarianceResult
    from biascope.measures.covariance.compare import common_directions as common_directions
    from biascope.measures.dictionary import dictionary as dictionary
    from biascope.measures.directional_bias import directional_bias as directional_bias
    from biascope.measures.disentanglement import disentanglement as disentanglement
    from biascope.measures.eigenfunction_localisation import eigenfunction_localisation as eigenfunction_localisation
    from biascope.measures.equivariance import equivariance as equivariance
    from biascope.measures.explain import explain as explain
    from biascope.measures.feature_elimination import feature_elimination as feature_elimination
    from biascope.measures.geometry_evolution import geometry_evolution as geometry_evolution
    from biascope.measures.geometry_motion import geometry_motion as geometry_motion
    from biascope.measures.guessing import guessing as guessing
    from biascope.measures.kernel_rotation import kernel_rotation as kernel_rotation
    from biascope.measures.linearized_training import linearized_training as linearized_training
    from biascope.measures.mean_gradient import mean_gradient as mean_gradient
    from biascope.measures.memory import memory as memory
    from biascope.measures.merge_check import merge_check as merge_check
    from biascope.measures.pattern_statistics import pattern_statistics as pattern_statistics
    from biascope.measures.pooling_theory import pooling_theory as pooling_theory
    from biascope.measures.recovery import recovery as recovery
    from biascope.measures.sample_score import sample_score as sample_score
    from biascope.measures.scan import Scan as Scan
    from biascope.measures.scan import scan as scan
    from biascope.measures.sensitivity import sensitivity as sensitivity
    from biascope.measures.tangent_kernel import tangent_kernel as tangent_kernel
    from biascope.measures.task_addition import task_addition as task_addition
    from biascope.measures.task_negation import task_negation as task_negation
    from biascope.results.estimate import Estimate as Estimate
    from biascope.results.report import write_report as write_report
    from biascope.results.result import Result as Result
    from biascope.runs.run import Run as Run
    from biascope.tasks.bases import Basis as Basis
    from biascope.tasks.probe import Probe as Probe
    from biascope.tasks.samples import samples_of as samples_of
    from biascope.tasks.task import Arrays as Arrays
    from biascope.tasks.task import Task as Task
    from biascope.tasks.task import along_directions as along_directions
    from biascope.training.fit import Trajectory as Trajectory
    from biascope.training.fit import fit as fit
    from biascope.training.observer import Observer as Observer
    from biascope.training.observer import hook as hook
    from biascope.training.recipe import Recipe as Recipe


def network(name: str) -> Callable[..., nn.Module]:
    """The builder of one of the papers' networks, by name."""
    from biascope.networks import builder

    return builder(name)


def measure(name: str, /, *args: Any, **settings: Any) -> Any:
    """Run a measurement by name: ``measure("average_geometry", family, probe, draws=400)``.

    Settings have the names that the command line and reports have: ``epochs=5`` stands for a recipe of 5 epochs. Every measurement
    is also a function, ``biascope.average_geometry(family, probe, draws=400)``, whose arguments and result editors know.
    """
    from biascope.results.registry import find

    found = find(name)
    return found(*args, **found.grouped(settings))


def load(folder: Path | str) -> Result:
    """A saved result."""
    from biascope.results import registry

    return registry.load(folder)


@_cache
def _homes() -> dict[str, str]:
    """The module of each name that this file imports for type checkers alone."""
    import ast

    with open(__file__, encoding="utf-8") as file:
        imports = (node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.ImportFrom))
    return {name.asname: str(node.module) for node in imports for name in node.names if name.asname == name.name}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one that this finds

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        from biascope.results import registry

        if name in _homes():
            return getattr(import_module(_homes()[name]), name)
        if name == "__all__":
            return [each for each in __dir__() if each not in registry.names()]
        if not name.startswith("_") and name in registry.names():
            return registry.find(name)
        raise AttributeError(f"module 'biascope' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names: those of ``__all__``, and every measurement."""
    from biascope.results.registry import names

    own = (name for name, value in globals().items() if callable(value) and not name.startswith("_"))
    return sorted({"__version__", *own, *_homes(), *names()})
