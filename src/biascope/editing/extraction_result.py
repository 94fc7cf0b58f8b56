"""How much of a fine-tuned model an adapter of low rank keeps, layer by layer."""

# l layers · k ranks

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number
from biascope.results.result import Result
from biascope.results.story import Step, Story
from biascope.results.wording import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Extraction(Result):
    """The adapter of low rank that is nearest to what fine-tuning changed.

    Attributes:
        base: The checkpoint that was fine-tuned.
        model: The fine-tuned one.
        layers: Those that the adapter covers.
        ranks: ``(layer,)`` of the adapter.
        task_norms: ``(layer,)`` of ``τ = θ − θ₀``.
        kept: ``(layer,)`` ``1 − ‖τ − B A‖² / ‖τ‖²``, measured on the factors that were written.
        at_rank: ``(rank,)`` ranks for the next.
        energies: ``(layer, rank)`` the largest share of ``‖τ‖²`` that a matrix of this rank can keep.
        left_out: Other weights that fine-tuning changed.
        left_norms: ``(left,)`` of τ there.
        remarks: What else a user should know.
        file: The folder that was written.
    """

    base: str
    model: str
    layers: tuple[str, ...]
    ranks: np.ndarray
    task_norms: np.ndarray
    kept: np.ndarray
    at_rank: np.ndarray
    energies: np.ndarray
    left_out: tuple[str, ...]
    left_norms: np.ndarray
    remarks: tuple[str, ...]
    file: str

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("ranks", "task_norms", "kept"), ("layer",)),
        "at_rank": ("rank",),
        "energies": ("layer", "rank"),
        "left_norms": ("left",),
    }

    @property
    @override
    def subject(self) -> str:
        return f"{self.model} − {self.base} as an adapter"

    @property
    def kept_share(self) -> float:
        """Share of ``‖τ‖²`` that the adapter keeps, of the layers that it covers."""
        squares = np.square(self.task_norms)
        return float((squares * self.kept).sum() / squares.sum())

    @property
    def covered(self) -> float:
        """Share of ``‖τ‖²`` in the layers that the adapter covers; a head of the model's own does not count."""
        inside, outside = (float(np.square(norms).sum()) for norms in (self.task_norms, self.left_norms))
        return inside / (inside + outside)

    @property
    def at_ranks(self) -> np.ndarray:
        """``(rank,)`` the largest share of ``‖τ‖²`` that one rank for all layers can keep."""
        squares = np.square(self.task_norms)
        return np.asarray(squares @ self.energies / squares.sum())

    @override
    def headline(self) -> dict[str, Number]:
        return {
            "kept": Estimate.exact(self.kept_share).named("share of ‖τ‖² that the adapter keeps in its layers", SHARE),
            "covered": Estimate.exact(self.covered).named("share of ‖τ‖² in these layers", SHARE),
            **{
                f"kept_at_rank:{rank}": Estimate.exact(float(share)).named(f"share that rank {rank} can keep", SHARE)
                for rank, share in zip(self.at_rank, self.at_ranks, strict=True)
            },
        }

    @override
    def sentence(self) -> str:
        low, high = int(self.ranks.min()), int(self.ranks.max())
        ranks = f"rank {low}" if low == high else f"ranks {low} to {high}"
        worst = int(self.kept.argmin())
        words = [
            f"An adapter of {ranks} for {len(self.layers)} layers is written to {self.file}.",
            f"It keeps {percent(self.kept_share)} of ‖τ‖² there, where τ is {self.model} minus {self.base}, and least in "
            f"{self.layers[worst]} ({percent(float(self.kept[worst]))}).",
        ]
        if self.left_out:
            words.append(
                f"Not covered: {percent(1 - self.covered)} of ‖τ‖² is in {len(self.left_out)} other tensors, such as norms, biases, "
                f"embeddings and convolutions, most in {self.left_out[int(self.left_norms.argmax())]}."
            )
        return " ".join([*words, *self.remarks])

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Rank and kept share of every layer, the share that other ranks could keep, and what is not covered."""
        layers = [
            {
                "layer": layer,
                "rank": int(self.ranks[index]),
                "task_vector": float(self.task_norms[index]),
                "kept": float(self.kept[index]),
                **{f"rank_{rank}": float(self.energies[index, k]) for k, rank in enumerate(self.at_rank)},
            }
            for index, layer in enumerate(self.layers)
        ]
        left = zip(self.left_out, map(float, self.left_norms), strict=True)
        return {"layers": layers, "left_out": [{"tensor": name, "task_vector": norm} for name, norm in left]}

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "The share of ‖τ‖² says how near the adapter comes to the fine-tuned weights. What the rest does to predictions "
                "cannot be seen from weights. A small share at a high rank means that fine-tuning was not of low rank."
            ),
            next_steps=[
                Step(
                    "Add the adapter to its base, and compare the predictions with those of the fine-tuned model.",
                    f"biascope merge apply BASE {self.file}=1 --out merged",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        from biascope.results import draw

        reading = "Each line is a layer: the largest share of ‖τ‖² that a matrix of a rank can keep. The thick line is of all layers."
        figure = draw.blank(3.2, reading)
        axes = draw.panel(figure, dark)
        for energies in self.energies:
            axes.plot(self.at_rank, energies, color=draw.PALETTE[dark].muted, linewidth=0.6, alpha=0.6)
        axes.plot(
            self.at_rank, self.at_ranks, color=draw.PALETTE[dark].lines[0], linewidth=2.2, marker="o", markersize=3
        )
        axes.set_xscale("log", base=2)
        axes.set_xticks(self.at_rank, list(map(str, self.at_rank)))
        axes.minorticks_off()
        axes.set(ylim=(0, 1.03), xlabel="rank", ylabel="share of ‖τ‖² kept")
        return {"kept_by_rank": captioned("Share of the change that a rank keeps", figure)}
