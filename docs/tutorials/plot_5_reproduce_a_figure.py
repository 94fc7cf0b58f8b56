"""
Reproduce a figure and read its verdict
=======================================

**Question.** A paper says something about its figure. Does it hold when someone else measures it?

**Answer.** Biascope runs the figure again and gives every claim one of four verdicts: reproduced, not reproduced,
inconclusive, or not run.
"""

# %%
# A figure and its claims
# -----------------------
#
# A *claim* is one sentence of a paper with the number that decides it and a tolerance. We take figure 4 of *Neural
# anisotropy directions* (2020). It shows what pooling does to the training of a linear model. A claim whose tolerance
# is newer than its number says so, and decides nothing.

import tempfile
from collections import Counter

import matplotlib.pyplot as plt

from biascope import Run, papers
from biascope.papers.reproduce import reproduce
from biascope.papers.verdicts import committed, judged, standings

figure = papers.figure("nads2020", "4")
print(figure.title, "\n")
for claim in figure.claims:
    print(
        f"- {claim.statement}\n  paper: {claim.printed}; agrees if {claim.allowed}; needs {claim.minimum_effort} effort or more\n"
    )

# %%
# Run it at smoke effort
# ----------------------
#
# There are three efforts. *Smoke* takes seconds and shows that everything runs. *Laptop* takes minutes on a CPU.
# *Paper* has the published sizes and needs a GPU. Results are saved in a folder; here it is temporary.

with tempfile.TemporaryDirectory() as folder:
    run = reproduce("nads2020", "4", effort="smoke", run=Run(folder=folder, progress=False))
    smoke = run.standings()
print(f"{run.record.seconds:.0f} s on {run.record.device}")
picture = figure.show(run.finding, False)
picture.set(facecolor="white", dpi=180)
_ = plt.figure(picture)  # pyplot displays it

# %%
# Why smoke decides nothing
# -------------------------
#
# Every number has been measured, but each claim names a minimum effort. Below it, the verdict is *inconclusive*,
# however good or bad the number looks. Otherwise one could pick the small run that happens to agree.


def listed(each):
    return f"{each.verdict.upper():15} measured {each.measured!r}; agrees if {each.claim.allowed}\n{'':15} {each.claim.statement}"


print(*map(listed, smoke), sep="\n")

# %%
# The committed verdicts
# ----------------------
#
# The results of larger runs are part of Biascope. Verdicts are computed from these numbers whenever they are shown.
# The interval decides:
#
# - *reproduced*: the whole interval agrees with the claim;
# - *not reproduced*: no part of the interval agrees;
# - *inconclusive*: the interval straddles the tolerance, the number agrees but its interval is unknown, or the effort is too
#   small;
# - *not run*: the number has not been measured.

for each in judged(figure, committed(figure).values()):
    print(
        listed(each),
        f"{'':15} {each.record.effort} effort on {each.record.device}\n",
        sep="\n",
    )

# %%
# Notes say what to know beside a verdict, for example why a printed formula does not agree.

for record in committed(figure).values():
    print(*record.notes, sep="\n")

# %%
# All papers at once
# ------------------
#
# Good and bad verdicts are counted alike.

verdicts = ("reproduced", "inconclusive", "not reproduced", "not run")
everything = standings()
counts = {
    paper: Counter(each.verdict for each in everything if each.figure.paper == paper)
    for paper in papers.names()
}
picture, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
left = dict.fromkeys(counts, 0)
for verdict, colour in zip(
    verdicts, ("tab:green", "tab:olive", "tab:red", "0.8"), strict=True
):
    widths = [count[verdict] for count in counts.values()]
    axis.barh(list(counts), widths, left=list(left.values()), color=colour, label=verdict)
    left = {paper: left[paper] + count[verdict] for paper, count in counts.items()}
    print(f"{verdict:15} {sum(widths):4} of {len(everything)} claims")
axis.set(xlabel="claims")
axis.invert_yaxis()
_ = axis.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.4, 1.0))

# %%
# **What to conclude**
#
# - A verdict belongs to one claim, one tolerance and one effort. Read these three together.
# - *Not reproduced* means that our number contradicts the claim as we read it. The notes and the errata give the
#   reason where it is known.
#
# **What not to conclude**
#
# - *Not reproduced* does not mean that the paper is wrong. Software, unstated details or our reading may differ.
# - *Inconclusive* is not "almost reproduced". It says nothing in either direction.
# - Counts of verdicts do not grade papers. Claims differ in number and difficulty.
#
# Read more: :doc:`/reproduce`, :doc:`/errata` and the :doc:`gallery </gallery/README>`. On the command line:
#
# .. code-block:: bash
#
#    biascope reproduce nads2020 4 --effort smoke
#    biascope reproduce --status
