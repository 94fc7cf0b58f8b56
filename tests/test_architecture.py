"""The shape of the code base: import arrows, file sizes, names, and what works without optional packages."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import biascope

SOURCE = Path(biascope.__file__).parent
# A module imports only from those before it. The order of the map in biascope/__init__.py.
SPINE = [
    "randomness",
    "estimate",
    "run",
    "cluster",
    "files",
    "weights",
    "identity",
    "trials",
    "task_vector",
    "checkpoint",
    "checkpoint_writer",
    "task_stream",
    "initialisation",
    "readout",
    "recomputation",
    "unregistered",
    "gradient_hooks",
    "family",
    "probe",
    "bases",
    "task",
    "image_tasks",
    "geometry_tasks",
    "pattern_tasks",
    "image_patches",
    "coordinates",
    "rewritten_layers",
    "tangent",
    "separateness",
    "linearization",
    "layer_uses",
    "layer_gradients",
    "layer_rules",
    "kernel_proof",
    "kernel_plan",
    "gram_panel",
    "gram",
    "stem",
    "channel_responses",
    "autotune",
    "member_threads",
    "gradient_ways",
    "moments",
    "operators",
    "geometry_matrices",
    "tangent_operator",
    "mixed_derivative",
    "mixed_gram",
    "spectrum",
    "sampling",
    "slopes",
    "identities",
    "pooling_models",
    "geometry_models",
    "pattern_ratios",
    "pattern_theory",
    "harmonics",
    "sine_expansion",
    "kernel_arithmetic",
    "recipe",
    "cuda_graph",
    "pattern_lookup",
    "training_pause",
    "training_steps",
    "evaluation",
    "geometry_evolution",
    "training",
    "training_plan",
    "training_sweep",
    "task_heads",
    "task_tuning",
    "task_inference",
    "meta_learning",
    "signal_fitting",
    "observer",
    "pooling_simulation",
    "wording",
    "result",
    "draw",
    "frequency_plane",
    "kernel_pictures",
    "geometry_pictures",
    "pattern_pictures",
    "patch_pictures",
    "signal_pictures",
    "merge_pictures",
    "check_pictures",
    "check_verdict",
    "covariance_result",
    "directional_result",
    "comparison",
    "match_result",
    "pattern_result",
    "channel_result",
    "dictionary_result",
    "advice_result",
    "editing_result",
    "merge_result",
    "check_result",
    "claim",
    "measurement",
    "report_plane",
    "report",
    "model_source",
    "data_source",
    "patch_source",
    "signal_source",
    "encoder_source",
    "task_source",
    "unlabelled_source",
    "task_study",
    "vit_pretraining",
    "matching",
    "signal_candidates",
    "signal_kernels",
    "signal_advice",
    "merging",
    "model_heads",
    "merge_source",
    "merge_check",
    "scanning",
    "reproduction_page",
    "reproduction",
    "printing",
    "data_commands",
    "measure_commands",
    "kernel_commands",
    "match_commands",
    "pattern_commands",
    "signal_commands",
    "merge_commands",
    "editing_commands",
    "reproduce_commands",
    "cli",
]
# Which leaves a module may import; the others see none.
LEAVES_SEEN = {
    "model_source": {"networks"},
    "data_source": {"data"},
    "patch_source": {"data"},
    "signal_source": {"data"},
    "encoder_source": {"encoders", "networks", "data"},
    "task_source": {"encoders", "data"},
    "unlabelled_source": {"encoders", "data"},
    "merge_source": {"encoders"},
    "editing_commands": {"data"},
    "vit_pretraining": {"encoders", "networks", "data"},
    "scanning": {"networks"},
    "reproduction": {"papers"},
    "reproduce_commands": {"papers"},
    "data_commands": {"data"},
    "cli": {"networks"},
}
FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "base", "core", "misc", "manager", "tools"}
LEAVES = {path.parent.name + "/" + path.stem: path for path in SOURCE.glob("*/*.py")}


def own_imports(path: Path) -> set[str]:
    """Modules of ours that a file imports at run time, as dotted names below biascope."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("biascope."):
            found.add(node.module.removeprefix("biascope."))
        elif isinstance(node, ast.ImportFrom) and node.module == "biascope":
            found |= {
                alias.name
                for alias in node.names
                if (SOURCE / f"{alias.name}.py").exists() or (SOURCE / alias.name).is_dir()
            }
    return found


def test_the_order_names_every_module_of_the_spine() -> None:
    assert sorted(SPINE) == sorted(path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__")


def test_the_map_in_the_docstring_names_every_module() -> None:
    missing = [name for name in SPINE if not re.search(rf"\b{name}\b", biascope.__doc__ or "")]
    assert not missing


@pytest.mark.parametrize("name", SPINE)
def test_a_module_imports_only_from_those_above_it(name: str) -> None:
    above = set(SPINE[: SPINE.index(name)])
    leaves = LEAVES_SEEN.get(name, set())
    imported = {module.split(".")[0] for module in own_imports(SOURCE / f"{name}.py")}
    assert imported <= above | leaves, f"{name} imports {imported - above}"


def test_results_and_pictures_stand_on_nothing_of_ours_but_estimates() -> None:
    assert own_imports(SOURCE / "result.py") <= {"estimate", "files"}
    assert own_imports(SOURCE / "draw.py") == set()
    assert own_imports(SOURCE / "frequency_plane.py") <= {"draw"}
    assert own_imports(SOURCE / "kernel_pictures.py") <= {"draw"}


def test_measures_never_import_one_another_nor_networks() -> None:
    for path in (SOURCE / "measures").glob("*.py"):
        assert not {module for module in own_imports(path) if module.split(".")[0] in ("measures", "networks")}, path


def test_the_report_never_sees_networks() -> None:
    assert not own_imports(SOURCE / "report.py") & {"family", "networks", "model_source", "sampling"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_well_named(path: Path) -> None:
    assert path.stem not in FORBIDDEN
    assert len(path.relative_to(SOURCE).parts) <= 2


def test_one_screen_of_public_names_that_all_exist() -> None:
    assert len(biascope.__all__) <= 40
    assert all(getattr(biascope, name) is not None for name in biascope.__all__)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_and_the_register_do_not_import_torch() -> None:
    run_python(
        "import sys, biascope.cli, biascope.networks, biascope.results.registry as m; m.names(); assert 'torch' not in sys.modules"
    )


def test_measuring_needs_neither_drawing_nor_command_line_packages() -> None:
    run_python(
        """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'matplotlib', 'jinja2', 'typer', 'rich', 'PIL', 'click'}:
            raise ImportError(name)
sys.meta_path.insert(0, Hide())
import biascope
from biascope.results.registry import find, names
for name in names():
    args, settings = find(name).example()
    result = find(name)(*args, **settings)
    result.sentence(), repr(result), result._repr_html_()
"""
    )
