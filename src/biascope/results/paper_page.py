"""SHOW: findings of papers' figures -> pictures and one self-contained HTML file; the page is ``templates/paper.html``."""

from __future__ import annotations

import base64
import contextlib
import io
import warnings
from pathlib import Path

from biascope import __version__
from biascope.results.claim import DOCUMENT, FigureOfPaper, Finding, Record
from biascope.results.wording import natural_order
from biascope.runs.files import write_atomically

_BACKGROUND = {False: "#ffffff", True: "#14171d"}  # by whether it is dark; the colours of the page
_WIDTH = 1400  # pixels of the widest picture


def picture(figure: FigureOfPaper, finding: Finding, *, dark: bool = False) -> bytes:
    """The picture of a finding as PNG."""
    drawn = figure.draw(finding, dark)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)  # of an unusual name
        sharpness = min(200.0, _WIDTH / float(drawn.get_size_inches()[0]))
        drawn.savefig(buffer, format="png", dpi=sharpness, facecolor=_BACKGROUND[dark])
    return buffer.getvalue()


def write_page(folder: Path) -> Path:
    """Write ``report.html`` with every finding in a reproduce folder, whole or not at all.

    It shows what the files say: pictures, claims and the verdicts of the day they were written.

    Args:
        folder: Where ``finding.json`` files lie, at any depth; those that cannot be read are named on the page.

    Returns:
        The path of the page.
    """
    from jinja2 import Environment, StrictUndefined

    findings, problems = [], []
    for path in sorted(folder.rglob(DOCUMENT), key=lambda path: natural_order(str(path.relative_to(folder)))):
        try:
            _, record = Record.parsed(path.read_bytes(), path.relative_to(folder))
        except (OSError, ValueError) as error:
            problems.append(str(error))
            continue
        pictures = {}
        for theme, name in (("light", "picture.png"), ("dark", "picture-dark.png")):
            with contextlib.suppress(OSError):
                pictures[theme] = base64.b64encode((path.parent / name).read_bytes()).decode()
        findings.append((record, pictures))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((Path(__file__).parent / "templates" / "paper.html").read_text(encoding="utf-8"))
    page = folder / "report.html"
    write_atomically(page, template.render(findings=findings, problems=problems, version=__version__).encode())
    return page
