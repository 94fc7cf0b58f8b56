"""The check of language models: against sums word by word, and what it refuses."""

import numpy as np
import pytest
import torch
from networks_under_test import CPU64
from torch import Tensor, nn

from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.measures.merge_check.next_words import merge_check_texts
from biascope.measures.merge_check.result import MergeCheck
from biascope.results.registry import load
from biascope.tasks.task import Arrays

WORDS = 7


class Running(nn.Module):
    """Logits of the next word from the mean of the words so far."""

    def __init__(self, blind: bool = True) -> None:
        super().__init__()
        self.blind = blind
        self.table, self.out = nn.Embedding(WORDS, 5), nn.Linear(5, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids.long()).tanh()
        count = torch.arange(1, rows.shape[1] + 1)[:, None]
        seen = rows.cumsum(1) / count if self.blind else rows.mean(1, keepdim=True).expand_as(rows)
        out: Tensor = self.out(seen)
        return out


def drawn(seed: int, blind: bool = True) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network.of(Running(blind).double())


def texts(seed: int, count: int = 40, length: int = 6) -> Arrays:
    """Texts of two to six words."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (count, length), generator=generator)
    ends = torch.randint(2, length + 1, (count, 1), generator=generator)
    ids[torch.arange(length) >= ends] = -1
    return Arrays({"samples": (ids, torch.full((count,), -1))}, name=f"texts {seed}")


BASE = drawn(0)
ENDS: dict[str, Params] = {
    name: {key: value + 0.6 * drawn(seed).params[key] for key, value in BASE.params.items()} for seed, name in ((1, "a"), (2, "b"))
}  # fmt: skip
VECTORS = {name: TaskVector.between(BASE.params, end) for name, end in ENDS.items()}
TEXTS = {"a": texts(5), "b": texts(6, count=25)}


def checked(**how: object) -> MergeCheck:
    return merge_check_texts(BASE, VECTORS, TEXTS, **{"alphas": (0.5, 1.0), "resamples": 60, "run": CPU64, **how})  # type: ignore[arg-type]


def log_probabilities(params: Params, ids: Tensor) -> Tensor:
    return BASE(ids[None], params)[0].log_softmax(-1)


def test_sums_word_by_word() -> None:
    found = checked()
    for place, name in enumerate(("a", "b")):
        for at, alpha in enumerate((0.0, 0.5, 1.0)):
            mixed = {
                key: value + alpha * sum(end[key] - value for end in ENDS.values())
                for key, value in BASE.params.items()
            }
            changed, divergence, surprise, own_surprise = [], [], [], []
            for row in TEXTS[name].splits["samples"][0]:
                ids = row[row >= 0]
                own, merge = (log_probabilities(params, ids[:-1]) for params in (ENDS[name], mixed))
                for one, other, word in zip(own, merge, ids[1:], strict=True):
                    changed.append(float(one.argmax() != other.argmax()))
                    divergence.append(float((one.exp() * (one - other)).sum()))
                    surprise.append(-float(other[word]))
                    own_surprise.append(-float(one[word]))
            assert found.words[place] == len(changed)
            assert found.apart[place, at] == pytest.approx(np.mean(changed))
            assert found.divergence is not None
            assert found.divergence[place, at] == pytest.approx(np.mean(divergence))
            assert found.surprise is not None
            assert found.surprise[place, at] == pytest.approx(np.mean(surprise))
            assert found.perplexities[place][1].value == pytest.approx(np.exp(np.mean(own_surprise)))


def test_intervals_come_from_whole_texts() -> None:
    """Texts of one word repeated are as uncertain as their number, not as that of their words."""
    rows = torch.arange(24)[:, None] % WORDS
    few, many = (
        Arrays({"samples": (rows.expand(-1, length).contiguous(), torch.zeros(24))}, name="x") for length in (2, 12)
    )
    network = Network.of(nn.Embedding(WORDS, WORDS).double())  # a word from the last one alone
    ends = [
        {"weight": network.params["weight"] + torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(seed))}
        for seed in (0, 1)
    ]
    vectors = {name: TaskVector.between(network.params, end) for name, end in zip("ab", ends, strict=True)}
    short, long = (
        merge_check_texts(network, vectors, dict.fromkeys("ab", each), alphas=(0.5,), resamples=200, run=CPU64)
        for each in (few, many)
    )
    assert short.words == (24, 24)
    assert long.words == (264, 264)
    np.testing.assert_allclose(short.apart, long.apart)
    np.testing.assert_allclose(short.resampled, long.resampled)


def test_what_is_said(tmp_path) -> None:
    found = checked()
    sentence = found.sentence()
    assert "of the next words of a and b on their own texts" in sentence
    assert "next words change (95 % CI" in sentence
    assert "over texts" in sentence
    assert sentence.count("nats a token") == 2
    assert "predictions" not in sentence
    assert "accuracy" not in sentence
    assert "likeliest next word" in found.story().meaning
    headline = found.headline()
    assert headline["divergence:a"].value == pytest.approx(found.divergences[0].value)
    assert {f"{key}:a" for key in ("perplexity", "perplexity_of_base", "perplexity_of_merge", "predicted_loss")} <= set(
        headline
    )
    assert found.tables()["models"][0]["next_words"] == found.words[0]
    assert set(found.plots()) >= {"agreement_by_coefficient", "cross_effects"}
    assert load(found.save(tmp_path / "result")).sentence() == sentence


def test_models_that_are_the_base_are_undecided_and_none_of_few_is_not_none_of_all() -> None:
    still = {name: TaskVector.between(BASE.params, BASE.params) for name in "ab"}
    found = merge_check_texts(BASE, still, TEXTS, alphas=(1.0,), resamples=20, run=CPU64)
    assert found.grade == "undecided"
    assert found.losses[0].high > 0.02
    assert "next words change" in found.sentence()


def test_finished_work_is_found_again(tmp_path, monkeypatch) -> None:
    import dataclasses

    run = dataclasses.replace(CPU64, folder=tmp_path)
    first = checked(run=run)
    monkeypatch.setattr("biascope.measures.merge_check.next_words._Look._summed", None)
    np.testing.assert_array_equal(checked(run=run).apart, first.apart)


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="its outputs change with later words of a text"):
        merge_check_texts(drawn(0, blind=False), VECTORS, TEXTS, run=CPU64)
    flat = Network.of(nn.Sequential(nn.Embedding(WORDS, 5), nn.Flatten(), nn.Linear(30, 2)).double())
    moved = TaskVector.between(flat.params, {key: value + 1 for key, value in flat.params.items()})
    with pytest.raises(ValueError, match="must give logits of the next word at each position"):
        merge_check_texts(flat, {"a": moved, "b": moved}, TEXTS, run=CPU64)
    with pytest.raises(ValueError, match="must start from the weights of the model"):
        merge_check_texts(drawn(3), VECTORS, TEXTS, run=CPU64)
    with pytest.raises(ValueError, match="at least two models"):
        merge_check_texts(BASE, {"a": VECTORS["a"]}, TEXTS, run=CPU64)
    with pytest.raises(ValueError, match="Every model must have texts, but 'b' has none"):
        merge_check_texts(BASE, VECTORS, {"a": TEXTS["a"]}, run=CPU64)
    with pytest.raises(ValueError, match="alphas must be finite"):
        checked(alphas=(float("nan"),))
