"""What every figure of a paper keeps to at the smallest effort."""

from biascope.results.finding import FigureOfPaper, Finding
from biascope.runs.run import Run

# Figures that tests of their own paper run, with more checks: once is enough.
RUN_ELSEWHERE = {
    "dictionaries2022": {
        *("5.5", "5.6", "5.7", "C.2", "C.2 draws"),  # test_dictionaries2022_energy.py
        *(
            "5.2",
            "5.3",
            "5.4",
            "C.1",
            "Section 5.2",
            "Theorem 5.1",
            "Equation 5.7",
        ),  # test_dictionaries2022_failures.py
    },
    "patterns2021": {
        *(
            "theorem 5.1",
            "remark E.1",
            "theorem 6.1",
            "theorem 6.1 error",
            "theorem 7.1",
        ),  # test_patterns2021_theory.py
        "2",  # test_patterns2021_digits.py
    },
}


def checked(found: FigureOfPaper, run: Run) -> Finding:
    """The finding of a figure at smoke effort, from start to picture."""
    finding = found("smoke", run)
    assert finding.statistics
    assert finding.settings
    if found.paper == "geometry2025":  # a setting "epochs: ViT" stands for all networks that this effort leaves out
        known = {name.partition(":")[0] for name in finding.settings} | {"normalising layers"}  # LeNet has none
        assert {name.partition(":")[0] for name in found.published} <= known, "compared by name with the published ones"
    for dark in (False, True):
        assert found.show(finding, dark).axes
    decided = {claim.statistic for claim in found.claims} & set(finding.statistics)
    assert decided or found.number == "5", "at smoke at least one claim has its number"
    return finding
