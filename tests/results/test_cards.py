"""Cards side by side: differences are told at the stated rate, in the rows that have them, and never across ways of measuring."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from biascope.results.cards import Cards
from biascope.results.differences import separations
from biascope.results.document import as_document
from biascope.results.estimate import SHARE, Estimate, Number, proportion
from biascope.results.report import write_report
from biascope.results.result import Result
from biascope.results.story import Compared, Story

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = ("bending", "reach", "wobble", "guess")


@dataclass(frozen=True)
class Row(Result):
    """A number of a network."""

    number: Number

    def headline(self) -> dict[str, Number]:
        return {"number": self.number}

    def sentence(self) -> str:
        return f"{self.subject} has {self.number.value:.3g}."

    def plots(self, dark: bool = False) -> dict[str, Figure]:
        return {}

    def story(self) -> Story:
        noun = f"the {self.measurement}"
        more = f"there is more {self.measurement}"
        return Story(compared=Compared.first_number(self, noun, more, unit="units", alike=self.provenance["alike"]))


def row(
    network: str, name: str, estimate: Estimate, *, alike: str = "64 points", seed: int = 0, law: str = "initialised"
) -> Row:
    provenance = {
        "measurement": name,
        "probe": "4 fresh N(0, 1²) inputs of shape 1×8×8 per network",
        "settings": {"seed": seed},
        "family": {"name": network, "law": law},
        "alike": alike,
    }
    return Row(estimate.named(name), provenance=provenance)


def cards(results: Sequence[Row], trained: bool = False) -> Cards:
    return Cards.of(results, [result.story() for result in results], trained)


def drawn(means: Mapping[str, Sequence[float]], generator: np.random.Generator, draws: int = 16) -> list[Row]:
    """Networks whose numbers in each row have these means and a deviation of 1, measured on a few draws."""
    results = []
    for seed, (network, row_means) in enumerate(means.items()):
        for name, mean in zip(ROWS, row_means, strict=True):
            sample = mean + generator.standard_normal(draws)
            estimate = Estimate.from_error(sample.mean(), sample.std(ddof=1) / math.sqrt(draws), draws)
            results.append(row(network, name, estimate, seed=seed))
    return results


@pytest.mark.parametrize(("networks", "seeds"), [(2, 250), (5, 60)])
def test_equal_networks_get_a_sentence_at_the_stated_rate(networks: int, seeds: int) -> None:
    generator = np.random.default_rng(networks)
    means = {f"net {index}": [3.0] * len(ROWS) for index in range(networks)}
    nothing = ["No difference between these networks exceeds its interval."]
    wrong = sum(cards(drawn(means, generator)).sentences() != nothing for _ in range(seeds)) / seeds
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / seeds)
    if networks == 2:  # Bonferroni gives little away there
        assert wrong >= 0.02


def test_networks_that_differ_in_one_row_get_that_sentence_alone() -> None:
    generator = np.random.default_rng(1)
    right = 0
    for _ in range(40):
        means = {"one": [3.0, 3.0, 3.0, 3.0], "two": [3.0, 3.0, 5.5, 3.0]}
        said = cards(drawn(means, generator)).sentences()
        first = said[0].startswith("The wobble is larger for two (")
        right += (
            first
            and len(said) == 2
            and said[1] == ("No difference exceeds its interval in the bending, the reach and the guess.")
        )
    assert right >= 36


def test_many_networks_are_summed_up() -> None:
    def said(*values: float, error: float = 0.1) -> list[str]:
        estimates = [Estimate.from_error(value, error, 40) for value in values]
        return cards(
            [row(f"net{place}", "bending", each, seed=place) for place, each in enumerate(estimates)]
        ).sentences()

    (alone,) = said(1.0, 1.1, 9.0, 1.2, 0.9)
    assert alone.startswith(
        "The bending is larger for net2 (9.00, 95 % CI 8.80 to 9.20) than for all 4 others (0.90 to 1.20)"
    )
    assert alone.endswith(": there is more bending.")
    (least,) = said(7.0, 7.1, 1.0, 7.2)
    assert least.startswith(
        "The bending is smaller for net2 (1.00, 95 % CI 0.80 to 1.20) than for all 3 others (7.00 to 7.20)"
    )
    (halves,) = said(1.0, 1.1, 9.0, 9.1)
    assert halves.startswith(
        "The bending is larger for net3 and net2 (9.00 to 9.10) than for net1 and net0 (1.00 to 1.10)"
    )
    (chain,) = said(1.0, 1.3, 1.6, 1.9)
    assert chain.startswith("The bending is larger for net3 (")
    assert chain.endswith("3 of 6 pairs differ.")


def test_the_clearest_differences_come_first_and_five_sentences_are_enough() -> None:
    names = [f"row {place}" for place in range(8)]
    results = [row("one", name, Estimate.from_error(1.0, 0.1, 40)) for name in names]
    results += [row("two", name, Estimate.from_error(3.0 + place, 0.1, 40), seed=1) for place, name in enumerate(names)]
    said = cards(results).sentences()
    assert [words.split(" is ")[0] for words in said] == [f"The row {place}" for place in (7, 6, 5, 4, 3)]


def test_ways_of_measuring_are_columns_of_their_own() -> None:
    precise = Estimate.from_error(1.0, 0.01, 40), Estimate.from_error(5.0, 0.01, 40)
    apart = cards([row("one", "bending", precise[0]), row("two", "bending", precise[1], alike="16 points", seed=1)])
    assert [column.title for column in apart.columns] == [f"Bending ({points} points)" for points in (64, 16)]
    assert (apart.sentences(), apart.comparisons, apart.level()) == ([], 0, "")
    assert [cell.value for cell in apart.cells("one")] == ["1.000", "–"]
    assert apart.cells("one")[1].why.startswith("Measured in another way")
    third = row("three", "bending", precise[1], seed=2)
    (words,) = cards(
        [row("one", "bending", precise[0]), row("two", "bending", precise[1], alike="16 points", seed=1), third]
    ).sentences()
    assert words.startswith("The bending (64 points) is larger for three (")
    some = cards([row("one", "bending", precise[0]), row("two", "reach", precise[1], seed=1)])
    assert some.cells("two")[0].why.startswith("No result")


def test_a_shared_seed_is_told_but_not_of_checkpoints() -> None:
    results = [row(name, "bending", Estimate.from_error(value, 0.1, 40)) for name, value in (("a", 1.0), ("b", 2.0))]
    (words,) = cards(results).warnings()
    assert words.startswith("a and b were drawn with the same seed")
    assert cards(results, trained=True).warnings() == []


def test_checkpoints_tell_the_change_from_the_first_to_the_last() -> None:
    names = ("net at step 2", "net at step 9", "net at step 30")
    results = [
        row(name, "bending", Estimate.from_error(value, 0.1, 40)) for name, value in zip(names, (3, 1, 2), strict=True)
    ]
    results += [row(name, "reach", Estimate.from_error(2.0, 0.1, 40)) for name in names]
    whole = cards(results, trained=True)
    assert whole.subjects == names
    assert whole.comparisons == 2
    assert whole.sentences({name: name.removeprefix("net at ") for name in names}) == [
        "From step 2 to step 30, the bending falls from 3.00, 95 % CI 2.80 to 3.20 to 2.00, 95 % CI 1.80 to 2.20."
    ]


@pytest.mark.parametrize("comparisons", [3, 190, 1330])
def test_intervals_are_widened_by_the_law_that_gave_them(comparisons: int) -> None:
    """Against a number without error, the interval of a difference is that of the other number."""
    level = 1 - 0.05 / comparisons
    exact = Estimate.exact(0.0)
    student = [Estimate.from_error(5.0, 0.4, 12, confidence) for confidence in (0.95, level)]
    reach = student[1].high - 5.0
    assert separations([student[0], exact], comparisons)[0, 1] == pytest.approx(5.0 / reach)
    positive = [Estimate.of_positive(5.0, 0.1, 9.0, confidence) for confidence in (0.95, level)]
    above = Estimate.exact(9.0)
    assert separations([above, positive[0]], comparisons)[0, 1] == pytest.approx(4.0 / (positive[1].high - 5.0))
    assert separations([positive[0], exact], comparisons)[0, 1] == pytest.approx(5.0 / (5.0 - positive[1].low))


def test_bounds_and_unknown_spreads_show_no_difference_that_they_do_not_have() -> None:
    number = Estimate.from_error(9.0, 0.1, 40)
    bound = Estimate.from_error(2.0, 0.1, 40).open_above()  # at least 2
    assert separations([number, bound])[0, 1] == 0
    assert separations([bound, Estimate.from_error(1.0, 0.1, 40)], 10)[0, 1] > 1
    assert separations([number, Estimate(1.0)])[0, 1] == 0
    assert separations([Estimate.exact(2.0), Estimate.exact(1.0)])[0, 1] == math.inf
    assert separations([Estimate.exact(1.0 + 1e-12), Estimate.exact(1.0)])[0, 1] == 0
    alike = Estimate(1.0, math.nan, 0.9, 1.0)
    assert 1 < separations([alike, Estimate.exact(0.6)], 100)[0, 1] < separations([alike, Estimate.exact(0.6)])[0, 1]


def test_the_table_is_printed_in_a_readable_width_and_kept_as_json() -> None:
    generator = np.random.default_rng(0)
    means = {f"network {index}": [3.0 + index] * len(ROWS) for index in range(20)}
    whole = cards(drawn(means, generator))
    lines = list(whole.lines())
    assert max(map(len, lines)) <= 100
    assert sum("network 13" in line for line in lines) == 2  # in two parts
    table = json.loads(as_document(card=whole.as_dict()))["card"]
    assert [column["measurement"] for column in table["columns"]] == list(ROWS)
    assert len(table["rows"]) == 20
    assert table["comparisons"] == 4 * 190
    values = [entry["numbers"][0]["value"] for entry in table["rows"]]
    assert values == sorted(values)


def test_names_lead_to_the_networks_compared(tmp_path: Path) -> None:
    share = proportion(0.9, 100).named("share", SHARE)
    results = [
        row(name, "bending", Estimate.from_error(value, 0.1, 40), seed=value) for name, value in (("b", 2), ("a", 1))
    ]
    results.append(Row(share, provenance=row("a", "guess", Estimate(1.0)).provenance))
    text = write_report(results, tmp_path / "report.html").read_text(encoding="utf-8")
    table = text.partition('id="comparison-table"')[2].partition("</table>")[0]
    assert table.index('<a href="#subject-2">a</a>') < table.index('<a href="#subject-1">b</a>')
    assert 'id="subject-2"' in text
    assert "90.0 %" in table
    assert 'title="No result: ' in table
    assert "The bending is larger for b (" in text.partition('id="comparison"')[0]
