"""Biascope: a microscope for inductive bias.

It shows what a neural network finds easy to learn, before and during training. Data flows one way, and the modules read
in that order; a module imports only from those above it::

    randomness    keyed random streams             estimate   a number with its uncertainty
    run           how work is carried out          cluster    where: in this process, or on Ray
    files         written whole or not at all       weights    named parameters, on disk too
    identity      what kept work depends on: parts, code, outputs
    trials        units of work that are kept as they finish, and sweeps of them in planned stacks
    task_vector   what fine-tuning did, as a vector
    checkpoint · checkpoint_writer · task_stream   models on disk, slice by slice
      WHO         initialisation   a builder's random draws, recorded and replayed for a stack
                  readout          one scalar of several outputs       gradient_hooks   hooks that derivatives leave out
                  recomputation    forward passes without gradient checkpointing
                  unregistered     what a module holds beside its parameters and buffers
                  family           Network · Family: an architecture and a law over its weights
      WHERE       probe            inputs, fixed or sampled afresh     bases   orthonormal bases of input space
                  task             what is to be learned, served in batches to every member of a stack
                  image_tasks      poisoned, flipped, side by side
                  geometry_tasks   circles, labels along a direction, data of a given covariance
                  pattern_tasks    inputs made of patterns, coloured digits     image_patches   patches of images, and their labels
                  coordinates      signals on grids, and the task of learning them
      HOW         rewritten_layers   layers made fast              tangent   derivatives of a Network
                  separateness     whether outputs repeat, each input by itself
                  linearization    a network as a linear function of its weights
                  layer_uses, layer_gradients   how weights enter a forward pass, sample by sample
                  layer_rules, kernel_plan      one rule per layer for the tangent kernel, proven and chosen by cost
                  kernel_proof     gradients of single samples that a tangent kernel must agree with
                  gram_panel · gram   the tangent kernel on samples, exact, by panels that can be resumed
                  stem             the first layer split off       autotune, member_threads, gradient_ways   the fastest way
                  channel_responses   what the first convolution answers to patches, and what the rest makes of it
                  moments          sums over gradients that stream and merge
                  operators        GradientCovariance                  mixed_derivative, mixed_gram   of inputs and weights
                  geometry_matrices   covariances and geometries, and how alike they are
                  tangent_operator   the tangent kernel without its matrix: products, alignment, rank
                  spectrum         eigenpairs with residuals
                  sampling         the covariance of a family, in resumable groups
                  slopes           whether a derivative is the slope of the forward pass
                  identities       what must hold on a user's own network (selftest)
                  pooling_models   closed forms of what pooling does
                  geometry_models  closed forms of average geometry and its evolution
                  pattern_ratios   which patterns channels detect, the constants of PSI, certificates
                  pattern_theory   networks that shatter, gradient descent on two points
                  harmonics        which frequencies a network on coordinates can reach, and which copies it makes
                  sine_expansion   nested sines as sums of sines       kernel_arithmetic   when kernels allow task arithmetic
                  recipe           optimiser, schedule, loss           training_steps   one step, alone or in a stack
                  training_pause   a training that goes on after an interruption
                  cuda_graph       a step on a GPU, recorded and replayed         pattern_lookup   pattern networks trained as tables
                  evaluation       accuracy and loss on a split
                  geometry_evolution   what an instant of training does to input gradients
                  training         fit: the only training loop         training_plan    the fastest way to train many
                  training_sweep   many trainings, resumable           observer   for a training loop of the user's own
                  task_heads · task_tuning · task_inference   encoders tuned to tasks, and what they say once edited
                  meta_learning    initial weights that learn a signal in a few steps
                  signal_fitting   a signal as a network
                  pooling_simulation   the pooling theory, simulated
      WHAT        result           named arrays, estimates, provenance           wording   lists in plain words
                  draw · frequency_plane · kernel_pictures · geometry_pictures   pictures of arrays
                  pattern_pictures · patch_pictures      of detectors       signal_pictures   of dictionaries
                  merge_pictures · check_pictures   of edited models             check_verdict   on a merge, in words
                  covariance_result, directional_result, comparison, match_result, pattern_result, channel_result,
                  dictionary_result, advice_result, editing_result, merge_result,
                  check_result     what is known, alone and side by side
                  claim            published against measured, a verdict
                  measurement      the register
      SHOW        report_plane · report     live planes and one HTML file
                  model_source, data_source, patch_source, signal_source   networks, samples, patches and signals
                                   as a user names them
                  encoder_source, task_source, unlabelled_source   pre-trained encoders, their tasks, samples without labels
                  task_study       encoders with heads and task vectors          vit_pretraining   an encoder of our own
                  matching         which architecture fits a data set
                  signal_candidates · signal_kernels · signal_advice   which network fits a signal
                  merging · model_heads · merge_source · merge_check   models edited and compared on disk; whether to merge them
                  scanning         the main job
                  reproduction_page · reproduction   the papers' figures, run and judged
                  printing · data_commands · measure_commands · kernel_commands · match_commands
                  pattern_commands · signal_commands · merge_commands · editing_commands · reproduce_commands
                  cli              the commands

Leaves hang on this spine: ``networks/`` (one file, one architecture), ``encoders/`` (pre-trained ones), ``measures/`` (one file, one
measurement), ``data/`` (one file, one data set or format) and ``papers/`` (one paper; one function, one figure with its claims).

Example:
    >>> import biascope
    >>> family = biascope.Family.initialised(biascope.network("logistic_regression"), name="logistic regression")
    >>> result = biascope.measure("anisotropy_directions", family, biascope.Probe.gaussian((1, 32, 32)), draws=64)
    >>> print(result.sentence())
    logistic regression moves equally freely in all 1024 directions: it has no preferred ones.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. Imported when first used, so that `import biascope` and `biascope --help` stay instant.
_HOMES = {
    "Estimate": "results.estimate",
    "Run": "runs.run",
    "Network": "families.family",
    "Family": "families.family",
    "Probe": "tasks.probe",
    "Basis": "tasks.bases",
    "Task": "tasks.task",
    "Arrays": "tasks.task",
    "along_directions": "tasks.task",
    "samples_of": "tasks.samples",
    "Recipe": "training.recipe",
    "Trajectory": "training.fit",
    "fit": "training.fit",
    "Observer": "training.observer",
    "input_gradient": "derivatives.gradients",
    "input_difference": "derivatives.gradients",
    "linearize": "derivatives.linearize",
    "tangent_gram": "kernels.gram",
    "TangentKernel": "kernels.products",
    "alignment": "kernels.products",
    "GradientCovariance": "derivatives.operators",
    "Matrix": "derivatives.operators",
    "LinearOperator": "derivatives.operators",
    "Spectrum": "derivatives.spectrum",
    "eigenpairs": "derivatives.spectrum",
    "subspace_similarity": "derivatives.spectrum",
    "GradientSampler": "derivatives.covariance",
    "gradient_covariance": "derivatives.covariance",
    "selftest": "kernels.selftest",
    "Result": "results.result",
    "CovarianceResult": "measures.covariance",
    "common_directions": "measures.covariance",
    "write_report": "results.report",
    "family_of": "families.source",
    "Scan": "scanning",
    "scan": "scanning",
}

__all__ = [
    "Arrays",
    "Basis",
    "CovarianceResult",
    "Estimate",
    "Family",
    "GradientCovariance",
    "GradientSampler",
    "LinearOperator",
    "Matrix",
    "Network",
    "Observer",
    "Probe",
    "Recipe",
    "Result",
    "Run",
    "Scan",
    "Spectrum",
    "TangentKernel",
    "Task",
    "Trajectory",
    "__version__",
    "alignment",
    "along_directions",
    "common_directions",
    "eigenpairs",
    "family_of",
    "fit",
    "gradient_covariance",
    "input_difference",
    "input_gradient",
    "linearize",
    "load",
    "measure",
    "network",
    "samples_of",
    "scan",
    "selftest",
    "subspace_similarity",
    "tangent_gram",
    "write_report",
]

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from biascope.derivatives.covariance import GradientSampler, gradient_covariance
    from biascope.derivatives.gradients import input_difference, input_gradient
    from biascope.derivatives.linearize import linearize
    from biascope.derivatives.operators import GradientCovariance, LinearOperator, Matrix
    from biascope.derivatives.spectrum import Spectrum, eigenpairs, subspace_similarity
    from biascope.families.family import Family, Network
    from biascope.families.source import family_of
    from biascope.kernels.gram import tangent_gram
    from biascope.kernels.products import TangentKernel, alignment
    from biascope.kernels.selftest import selftest
    from biascope.measures.covariance import CovarianceResult, common_directions
    from biascope.results.estimate import Estimate
    from biascope.results.report import write_report
    from biascope.results.result import Result
    from biascope.runs.run import Run
    from biascope.scanning import Scan, scan
    from biascope.tasks.bases import Basis
    from biascope.tasks.probe import Probe
    from biascope.tasks.samples import samples_of
    from biascope.tasks.task import Arrays, Task, along_directions
    from biascope.training.fit import Trajectory, fit
    from biascope.training.observer import Observer
    from biascope.training.recipe import Recipe


def network(name: str) -> Callable[..., nn.Module]:
    """The builder of one of the papers' networks, by name."""
    from biascope.networks import builder

    return builder(name)


def measure(name: str, /, *args: Any, **settings: Any) -> Any:
    """Run a measurement by name: ``measure("average_geometry", family, probe, draws=400)``."""
    return importlib.import_module("biascope.results.registry").find(name)(*args, **settings)


def load(folder: Path | str) -> Result:
    """A saved result."""
    result: Result = importlib.import_module("biascope.results.registry").load(folder)
    return result


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"biascope.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'biascope' has no attribute {name!r}")
