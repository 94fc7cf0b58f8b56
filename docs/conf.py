"""Sphinx configuration of the documentation site; ``make docs`` builds it without network access."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tutorials' networks are small: a second thread is only waited for

import matplotlib

import biascope

sys.path.insert(0, str(Path(__file__).parent))
import make_reference

matplotlib.use("Agg")

project = "Biascope"
author = "The Biascope developers"
copyright = "2026, The Biascope developers"
release = version = biascope.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # a module with hyphens in its name: MathJax and its fonts from the package
]
exclude_patterns = ["_build", "tutorials/*.rst", "**/.ipynb_checkpoints"]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "tasklist"]
myst_heading_anchors = 4

autosummary_generate = True
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "abort_on_example_error": True,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib",),
}

html_theme = "furo"
html_title = f"Biascope {version}"
html_static_path = ["_static"]
html_css_files = ["biascope.css"]
html_js_files = ["filter.js"]
html_copy_source = False


def setup(app: object) -> None:
    """Write the pages that are generated from the code before Sphinx reads any."""
    make_reference.write(Path(__file__).parent)
