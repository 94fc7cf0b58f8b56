"""`biascope merge check`: what a user types, what is printed and written, and what is refused."""

import csv
import functools
import json
from collections.abc import Callable
from pathlib import Path

import asking
import numpy as np
import pytest
import torch
from checkpoint_files import Trap
from networks_under_test import CPU, normal
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from biascope.cli.merge import app
from biascope.editing.candidates import candidates_of
from biascope.editing.encoder_source import encoder_of, headless_vit
from biascope.editing.reading import Reading
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.measures.merge_check.result import MergeCheck
from biascope.runs.randomness import forked_rng

pytestmark = pytest.mark.usefixtures("unrendered_pictures")

BUILDER = """
from torch import nn

def build(classes=3):
    layers = {"flat": nn.Flatten(), "first": nn.Linear(36, 8), "relu": nn.ReLU(), "last": nn.Linear(8, classes)}
    return nn.Sequential(nn.modules.container.OrderedDict(layers))

def pair():
    class Pair(nn.Linear):
        def forward(self, x):
            return x, x
    return Pair(1, 1)
"""


def images(seed: int, left: bool) -> np.ndarray:
    """Noise in the left or the right half of a grey picture."""
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 6, 6)).astype(np.uint8)
    pixels[:, :, 3 * left : 3 + 3 * left] = 128
    return pixels


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A base and models near it that read one half of the pictures each, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(BUILDER)
    base = {
        "first.weight": 0.3 * normal(8, 36, dtype=torch.float32),
        "first.bias": torch.zeros(8),
        "last.weight": normal(3, 8, seed=1, dtype=torch.float32),
        "last.bias": torch.zeros(3),
    }
    save_file(base, "base.safetensors")
    columns = torch.arange(36) % 6
    for seed, name in enumerate(("a", "b"), 5):
        half = (columns < 3) == (name == "a")
        move = 0.3 * normal(8, 36, seed=seed, dtype=torch.float32) * half
        save_file({**base, "first.weight": base["first.weight"] + move}, f"{name}.safetensors")
        x = images(seed, left=name == "a")
        np.savez(f"{name}.npz", x_train=x, x_test=x[::-1].copy(), y_train=np.arange(40) % 3, y_test=np.arange(40) % 3)
    np.savez("else.npz", x=images(9, left=True))
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without pictures, which take seconds."""

    def written(results, path, *, title):
        path.write_text(f'<meta name="generator" content="biascope 0">{title}')
        return path

    monkeypatch.setattr("biascope.results.report.write_report", written)


CHECK = (
    "check",
    "base.safetensors",
    "a.safetensors",
    "b.safetensors",
    "--model",
    "net.py:build",
    "--pixels",
    "0.502:0.3",
)
QUICK = ("--grid", "4", "--device", "cpu")
said = functools.partial(asking.said, app)


def refused(folder: Path, message: str, command: str, *words: str) -> None:
    asking.refused(app, folder, message, command, *QUICK, *words)


def only(output: str) -> dict:
    """The one result in what was printed as JSON."""
    (found,) = json.loads(output[output.index("{") :])["results"]  # after what is told on stderr
    return found


def distances(found: dict, model: str) -> list[float]:
    """From a merge to a model, by the coefficient of the merge."""
    return [row["distance"] for row in found["tables"]["coefficients"] if row["model"] == model]


def test_a_verdict_a_report_and_the_next_command(folder):
    output = said(*CHECK, *QUICK, "--data", "a.npz", "--data", "b.npz", "--control", "else.npz")
    found = MergeCheck.load(folder / "biascope-runs" / "check-base" / "result")
    assert found.models == ("a", "b")
    assert found.data == ("a (test)", "b (test)")
    assert found.control_data == "else (train)"
    assert found.grade in ("merge", "merge with a loss")  # each model touches what the other does not see
    assert found.apart[:, -1].max() == 0
    assert found.sentence() in output
    weight = f"{found.alpha.value:g}"
    assert f"biascope merge apply base.safetensors a.safetensors b.safetensors --weight {weight} --out" in output
    page = (folder / "biascope-runs" / "check-base" / "report.html").read_text(encoding="utf-8")
    captions = ("The merged model against each fine-tuned one", "Where two task vectors do not interfere")
    assert all(words in page for words in (*captions, "Effect of each task vector", "Cosine of task vectors"))
    assert "with the base</th>" in page  # a column of the models; the words before are links to the glossary
    with (folder / "biascope-runs" / "check-base" / "layers.csv").open(encoding="utf-8") as file:
        assert [row["layer"] for row in csv.DictReader(file)] == ["first", "last"]


def test_a_second_check_in_one_folder_says_what_it_replaces(folder, undrawn):
    words = (*CHECK, "--grid", "0", "--device", "cpu", "--data", "a.npz", "--data", "b.npz")
    assert "is replaced" not in said(*words)
    assert "is replaced" not in said(*words), "the same again"
    told = said(*words, "--samples", "20")
    assert "The earlier result in biascope-runs/check-base is replaced: merge check of a and b on base" in told
    assert "Pass another --out to keep both." in told


def test_conflicting_models_are_not_to_be_merged(folder, undrawn):
    base, a = load_file("base.safetensors"), load_file("a.safetensors")
    save_file({name: 2 * base[name] - a[name] for name in base}, "against.safetensors")
    words = [word.replace("b.safetensors", "against.safetensors") for word in CHECK]
    output = said(*words, *QUICK, "--data", "a.npz", "--json")
    assert json.loads(output)["command"] == ""
    found = only(output)
    assert found["facts"]["grade"] == "do not merge"
    (cosine,) = [number["value"] for number in found["numbers"] if number["key"] == "cosine"]
    assert cosine == pytest.approx(-1.0)
    assert "point against each other most in first (cosine −1.00)" in found["sentence"]
    assert [row["data"] for row in found["tables"]["models"]] == ["a (test)", "a (test)"]
    assert len(found["tables"]["coefficients"]) == 2 * 21
    assert found["provenance"]["settings"]["grid"] == 4


def test_the_cosine_with_the_base_is_printed_and_weight_decay_is_told(folder, undrawn):
    base = load_file("base.safetensors")
    for name in ("a", "b"):
        tuned = load_file(f"{name}.safetensors")
        near = {key: 0.8 * (base[key] + 0.1 * (tuned[key] - base[key])) for key in base}
        save_file(near, f"{name}.safetensors")
    words = (*CHECK, "--data", "a.npz", "--data", "b.npz", *QUICK)
    output = said(*words)
    assert "cosine of the task vector of a with base: -0.9" in output
    assert "Weight decay is part of the task vector of a" in output
    rows = only(said(*words, "--json"))["tables"]["models"]
    assert [round(row["base_cosine"]["value"], 1) for row in rows] == [-1.0, -1.0]


def test_a_saved_vector_is_as_good_as_a_model_and_the_same_command_continues(folder, undrawn):
    base, b = load_file("base.safetensors"), load_file("b.safetensors")
    TaskVector.between(base, b, source="b").save("vector.safetensors")
    words = [word.replace("b.safetensors", "vector.safetensors") for word in CHECK]
    last = ("--data", "a.npz", "--data", "b.npz", "--json")
    one = only(said(*CHECK, *QUICK, *last))
    kept = {path: path.stat().st_mtime_ns for path in (folder / "biascope-runs").rglob("trials/*/*.safetensors")}
    two = only(said(*words, *QUICK, *last))
    assert distances(two, "vector") == distances(one, "b")
    assert kept
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_heads_of_their_own(folder, undrawn):
    base, a, b = (load_file(f"{name}.safetensors") for name in ("base", "a", "b"))
    del base["last.weight"], base["last.bias"]
    save_file(base, "base.safetensors")
    save_file({**a, "last.weight": normal(5, 8, seed=3).float(), "last.bias": torch.zeros(5)}, "a.safetensors")
    output = said(*CHECK, *QUICK, "--data", "a.npz", "--data", "b.npz", "--head", "last")
    assert "--keep 'last.*' --out merged.safetensors" in output
    assert only(said(*CHECK, *QUICK, "--data", "a.npz", "--head", "last", "--features", "--json"))["facts"]["grade"]
    refused(folder, r"--head must name a linear layer of the network, one of first, last, got 'relu'", *CHECK, "--data", "a.npz",
            "--head", "relu")  # fmt: skip
    save_file({**b, "last.weight": torch.zeros(5, 7)}, "b.safetensors")
    refused(folder, r"b\.safetensors must have a matrix last\.weight with 8 columns, .* got \(5, 7\)", *CHECK, "--data", "a.npz",
            "--head", "last")  # fmt: skip


def test_a_named_network_takes_its_outputs_from_the_checkpoint(folder, undrawn):
    with forked_rng(0):
        from biascope.networks import builder

        state = builder("logistic_regression")(channels=1, image_size=8, outputs=4).state_dict()
    save_file(state, "base.safetensors")
    for name, step in (("a", 0.1), ("b", -0.1)):
        save_file(
            {key: each + step * normal(*each.shape).float() for key, each in state.items()}, f"{name}.safetensors"
        )
    words = ("check", "base.safetensors", "a.safetensors", "b.safetensors", "--model", "logistic_regression")
    last = (*QUICK, "--data", "a.npz", "--input", "1x8x8", "--json")
    assert only(said(*words, *last))["facts"]["grade"] == "do not merge"
    one = {key: each[:1] for key, each in state.items()}  # a single output: two classes by its sign
    for name in ("base", "a", "b"):
        save_file(
            {key: each[:1].clone() for key, each in load_file(f"{name}.safetensors").items()}, f"{name}.safetensors"
        )
    assert load_file("base.safetensors")["head.weight"].equal(one["head.weight"])
    assert only(said(*words, *last))["tables"]["coefficients"][-1]["coefficient"] == 1.0


def test_an_encoder_is_read_through_linear_probes(folder, undrawn):
    sizes = {"channels": 3, "image_size": 8, "patch": 4, "depth": 1, "heads": 2, "width": 16, "mlp": 16}
    with forked_rng(0):
        state = headless_vit(**sizes).state_dict()
    for seed, name in enumerate(("base", "a", "b")):
        near = {key: each + 0.05 * seed * normal(*each.shape, seed=seed).float() for key, each in state.items()}
        weights.save(near, f"{name}.safetensors", {"settings": json.dumps(sizes)})
    words = ("check", "base.safetensors", "a.safetensors", "b.safetensors", "--model", "vit", *QUICK)
    found = only(said(*words, "--data", "a.npz", "--control", "else.npz", "--json"))
    assert [row["samples"] for row in found["tables"]["models"]] == [40, 40]
    alone = [number["case"] for number in found["numbers"] if number["key"] == "control_change_alone"]
    assert alone == ["a", "b"]
    assert "of the predictions of linear probes on a and b" in found["sentence"]
    assert (
        "Predictions of a and b are those of linear probes, not of a last layer that was fine-tuned"
        in found["sentence"]
    )
    assert "The accuracy of this probe drops by at most" in found["sentence"]
    assert found["facts"]["probed"] == ["a", "b"]
    assert [row["read_by"] for row in found["tables"]["models"]] == ["linear probe", "linear probe"]
    spoken = [
        number["label"]
        for number in found["numbers"]
        if "prediction" in number["label"] or "accuracy" in number["label"]
    ]
    assert spoken
    assert all("its linear probe's" in label or "accuracy of linear probes" in label for label in spoken)
    refused(folder, "needs no classes", *words, "--data", "else.npz")
    assert only(said(*words, "--data", "else.npz", "--features", "--json"))["facts"]["compared"] == "features"
    refused(folder, r"a\.safetensors must have a matrix head\.weight with 16 columns, .* got none", *words, "--data", "a.npz",
            "--head", "head")  # fmt: skip
    half = {key: each.half() for key, each in load_file("b.safetensors").items()}
    weights.save(half, "b.safetensors", {"settings": json.dumps(sizes)})
    assert only(said(*words, "--data", "a.npz", "--json"))["facts"]["probed"] == ["a", "b"]


BERT = {
    "model_type": "bert",
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-5,
}


def bert(kind: str = "BertModel") -> nn.Module:
    import transformers

    settings = {name: value for name, value in BERT.items() if name != "model_type"}
    with forked_rng(0):
        return getattr(transformers, kind)(transformers.BertConfig(**settings, num_labels=3)).eval()


def write_bert(name: str, state: dict[str, torch.Tensor], **settings: str) -> None:
    """A folder as Hugging Face has it."""
    Path(name).mkdir(exist_ok=True)
    Path(name, "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]))
    Path(name, "config.json").write_text(json.dumps({**BERT, "architectures": ["BertModel"], **settings}))
    weights.save(state, Path(name, "model.safetensors"))


@pytest.fixture
def moods(folder):
    """Short texts with two labels."""
    Path("moods").mkdir()
    lines = "".join(f"{'sad' if k % 2 else 'glad'}\t{chr(97 + k % 26)} {chr(97 + k * 7 % 26)}\n" for k in range(30))
    for split in ("train", "test"):
        Path("moods", f"{split}.tsv").write_text(f"label\ttext\n{lines}")
    return folder


def test_a_folder_of_hugging_face_on_texts(hub, moods, undrawn):
    state = bert().state_dict()
    for seed, name in enumerate(("base", "a", "b")):
        write_bert(
            name, {key: each + 0.1 * seed * normal(*each.shape, seed=seed).float() for key, each in state.items()}
        )
    found = only(said("check", "base", "a", "b", "--data", "moods", *QUICK, "--json"))
    assert [row["model"] for row in found["tables"]["models"]] == ["a", "b"]
    assert found["tables"]["models"][0]["samples"] == 30
    assert found["facts"]["compared"] == "classes"
    assert found["facts"]["probed"] == ["a", "b"]


VIT = {"channels": 3, "image_size": 8, "patch": 4, "depth": 1, "heads": 2, "width": 16, "mlp": 16}


def vit_classifiers(layer: str = "head") -> tuple[list[str], Callable[[Path, str], torch.Tensor]]:
    """Three files of a small ViT, two with a last layer of their own; classes of images by a file and such a layer."""
    pixels = np.random.default_rng(3).integers(0, 255, (2, 60, 8, 8)).astype(np.uint8)
    np.savez("c.npz", x_train=pixels[0], x_test=pixels[1], y_train=np.arange(60) % 3, y_test=np.arange(60) % 3)
    with forked_rng(0):
        state = headless_vit(**VIT).state_dict()
    for seed, name in enumerate(("base", "a", "b")):
        own = {f"{layer}.weight": normal(2 + seed, 16, seed=seed).float(), f"{layer}.bias": torch.zeros(2 + seed)}
        near = {key: each + 0.1 * seed * normal(*each.shape, seed=seed).float() for key, each in state.items()}
        weights.save(near | (own if seed else {}), f"{name}.safetensors", {"settings": json.dumps(VIT)})

    def classes(file: Path, head: str) -> torch.Tensor:
        module = headless_vit(**VIT).eval()
        every = load_file(file)
        module.load_state_dict({key: each for key, each in every.items() if not key.startswith(layer)})
        pixels = torch.from_numpy(np.load("c.npz")["x_test"])[:, None]
        own = load_file(f"{head}.safetensors")
        features = module((pixels.expand(-1, 3, -1, -1) / 255 - 0.5) / 0.25)
        return (features @ own[f"{layer}.weight"].T + own[f"{layer}.bias"]).argmax(1)

    return ["base.safetensors", "a.safetensors", "b.safetensors", "--model", "vit", "--data", "c.npz"], classes


def bert_classifiers(prefix: str = "bert.") -> tuple[list[str], Callable[[Path, str], torch.Tensor]]:
    """The same for Hugging Face's BertForSequenceClassification: its last layer sees the pooled first token.

    Args:
        prefix: What the names of the base begin with; those of a ``BertModel`` with nothing.
    """
    module = bert()

    def pooled(every: dict[str, torch.Tensor]) -> torch.Tensor:
        every = {key.removeprefix("bert."): each for key, each in every.items()}
        module.load_state_dict({key: every[key] for key in module.state_dict()})
        texts = [line.split("\t")[1] for line in Path("moods/test.tsv").read_text().splitlines()[1:]]
        ids = encoder_of("base").prepare(texts)
        return module(ids, attention_mask=(ids != 0).long()).pooler_output

    shapes = {f"bert.{key}": each.shape for key, each in module.state_dict().items()}
    state = {key: 0.5 * normal(*shape, seed=seed).float() for seed, (key, shape) in enumerate(shapes.items())}
    write_bert("base", {prefix + key.removeprefix("bert."): each for key, each in state.items()})
    for seed, name in enumerate(("a", "b")):
        near = {key: each + 0.05 * normal(*each.shape, seed=9 + seed).float() for key, each in state.items()}
        weight = normal(3, 12, seed=seed).float()
        own = {"classifier.weight": weight, "classifier.bias": -weight @ pooled(near).mean(0).detach()}
        write_bert(name, near | own)

    def classes(file: Path, head: str) -> torch.Tensor:
        every, own = (
            load_file(file / "model.safetensors" if file.is_dir() else file),
            load_file(f"{head}/model.safetensors"),
        )
        return (pooled(every) @ own["classifier.weight"].T + own["classifier.bias"]).argmax(1)

    return ["base", "a", "b", "--data", "moods"], classes


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_classifiers_of_hugging_face_are_read_through_their_own_last_layer(hub, moods, undrawn, prefix):
    as_the_merged_file_predicts(functools.partial(bert_classifiers, prefix))


def test_models_on_an_encoder_are_read_through_their_own_last_layer(moods, undrawn):
    as_the_merged_file_predicts(vit_classifiers)


@torch.no_grad()
def as_the_merged_file_predicts(classifiers):
    """That a check says what the merged file predicts with the layer of each model on top."""
    words, classes = classifiers()
    printed = json.loads(said("check", *words, *QUICK, "--json"))
    (found,) = printed["results"]
    assert found["facts"]["probed"] == []
    assert "probe" not in json.dumps(found["sentence"])
    assert "own last layer" in found["sentence"]
    alpha = next(number["value"] for number in found["numbers"] if number["key"] == "coefficient")
    told = said("apply", *words[:3], "--weight", str(alpha), "--out", "merged.safetensors")
    assert "Kept apart as a head and not merged: " in told
    assert printed["command"] in (
        "",
        f"biascope merge apply {' '.join(words[:3])} --weight {alpha:g} --out merged{'' if words[0] == 'base' else '.safetensors'}",
    )
    for row, file in zip(found["tables"]["models"], words[1:3], strict=True):
        own, merged, base = (classes(Path(each), row["model"]) for each in (file, "merged.safetensors", words[0]))
        whole = classes(Path("merged-heads", f"{row['model']}.safetensors"), row["model"])
        assert torch.equal(whole, merged)
        assert row["predicted_loss"]["value"] == pytest.approx((own != merged).double().mean())
        assert row["distance_from_base"]["value"] == pytest.approx((own != base).double().mean())
    assert max(row["distance_from_base"]["value"] for row in found["tables"]["models"]) > 0.1


def test_a_last_layer_of_another_name_and_one_that_only_one_model_has(folder, undrawn):
    words, _ = vit_classifiers("readout")
    refused(folder, r"2 extra \(readout\.bias, readout\.weight\)", "check", *words)
    assert "own last layer, readout" in only(said("check", *words, *QUICK, "--head", "readout", "--json"))["sentence"]
    words, _ = vit_classifiers()
    b = load_file("b.safetensors")
    without = {key: each for key, each in b.items() if not key.startswith("head.")}
    weights.save(without, "b.safetensors", {"settings": json.dumps(VIT)})
    found = only(said("check", *words, *QUICK, "--json"))
    assert found["facts"]["probed"] == ["b"]
    assert "the predictions of a and b (linear probe) on their own samples" in found["sentence"]
    assert "Predictions of a are those of the model's own last layer, head, which is not merged" in found["sentence"]
    assert "Predictions of b are those of linear probes" in found["sentence"]


def test_classifiers_whose_last_layer_does_not_give_one_class(hub, moods, undrawn):
    words, _ = bert_classifiers()
    a, base = (load_file(f"{name}/model.safetensors") for name in ("a", "base"))
    write_bert("a", a, problem_type="multi_label_classification")
    refused(
        moods, "a must predict one class of each sample, but its config.json makes it a multi_label", "check", *words
    )
    write_bert("a", a | {"classifier.weight": a["classifier.weight"][:1], "classifier.bias": a["classifier.bias"][:1]})
    refused(
        moods, "a must predict one class of each sample, but its config.json makes it a regression", "check", *words
    )
    write_bert("a", a)
    write_bert("base", {key: each for key, each in base.items() if "pooler" not in key})
    found = only(said("check", *words, *QUICK, "--json"))
    assert found["facts"]["probed"] == []  # what the base does not compute is each model's own
    assert "the model's own last layer, classifier and pooler, which is not merged" in found["sentence"]


def test_batchnorm_statistics_of_an_encoder_are_told(hub, folder):
    with forked_rng(0):
        encoder = encoder_of("efficientnet_lite0", random=True).network
    state = encoder.params | encoder.buffers
    weights.save(state, "base.safetensors")
    for name in ("a", "b"):
        own = {"_fc.weight": normal(3, 1280).float(), "_fc.bias": torch.zeros(3)}
        moved = {"_bn1.running_mean": torch.ones(1280)} if name == "a" else {}
        weights.save(state | own | moved, f"{name}.safetensors")
    reading = Reading("efficientnet_lite0", input="3x32x32", samples=2)
    found = candidates_of(
        Path("base.safetensors"), [Path("a.safetensors"), Path("b.safetensors")], ["a.npz"], reading, run=CPU
    )
    assert found.head == "_fc"
    assert found.notes[1].startswith("The BatchNorm statistics of a differ from the base's")


def test_bad_input_is_one_sentence_and_nothing_is_written(folder, undrawn):
    base, a = load_file("base.safetensors"), load_file("a.safetensors")

    def bad(
        message: str, model: str = "b.safetensors", *, first: str = "base.safetensors", more: tuple[str, ...] = ()
    ) -> None:
        given = () if "--data" in more else ("--data", "a.npz")
        refused(folder, message, "check", first, "a.safetensors", model, *CHECK[4:], *given, *more)

    both = ("--data", "a.npz", "--data", "b.npz", "--data", "a.npz")
    bad(r"^--data must be given once for each of 2 models or once for all, got 3\. Pass", more=both)
    refused(
        folder,
        "at least two models beside the base, got 1",
        "check",
        "base.safetensors",
        "a.safetensors",
        "--data",
        "a.npz",
    )
    refused(
        folder, r"--model must name the network of base\.safetensors, but is missing", *CHECK[:4], "--data", "a.npz"
    )
    bad("The checkpoint must exist, but none.safetensors does not", "none.safetensors")
    bad("must be an existing .npz file, table or folder", more=("--data", "none.npz"))
    save_file({"first.weight": a["first.weight"], "other": torch.ones(2)}, "architecture.safetensors")
    bad(r"must fit base\.safetensors: 3 missing .*; 1 extra \(other\)", "architecture.safetensors")
    bad(r"architecture\.safetensors must fit the network|must fit architecture", first="architecture.safetensors")
    TaskVector.between(a, base).save("vector.safetensors")
    bad("was made from other weights", "vector.safetensors")
    bad(r"The base must hold weights, but vector\.safetensors holds a task vector", first="vector.safetensors")
    save_file({name: normal(*each.shape, seed=50).float() for name, each in base.items()}, "elsewhere.safetensors")
    bad(
        r"^elsewhere must be fine-tuned from the base, but its weights have a cosine of .* or --unrelated\.$",
        "elsewhere.safetensors",
    )
    save_file({**a, "last.weight": a["last.weight"] * float("nan")}, "nan.safetensors")
    bad(r"The weights of nan\.safetensors must be finite, but last\.weight are not", "nan.safetensors")
    bad(r"The weights of nan\.safetensors must be finite", first="nan.safetensors")
    (folder / "short.safetensors").write_bytes((folder / "a.safetensors").read_bytes()[:-1])
    bad(r"short\.safetensors must be a whole safetensors file, but is damaged", "short.safetensors")
    torch.save({**a, "trap": Trap(str(folder / "sprung"))}, "trap.pt")
    bad(r"it asks to run \w+\.mkdir, and code is never run", "trap.pt")
    assert not (folder / "sprung").exists()
    np.savez("wide.npz", x=np.zeros((5, 9, 9), np.uint8))
    bad(
        r"must take samples of wide \(train\), of shape 1×9×9, and its forward pass failed with",
        more=("--data", "wide.npz"),
    )
    bad(r"must take samples of wide", more=("--control", "wide.npz"))
    bad(r"--split must be one of train, test for a\.npz, got dev", more=("--split", "dev"))
    bad(r"--pixels must be own, unit, or MEAN:SPREAD", more=("--pixels", "bright"))
    bad(r"--samples must be at least 2, got 1", more=("--samples", "1"))
    bad(r"--samples must be one number, the samples of each data set, got '20,10'", more=("--samples", "20,10"))
    bad(r"--grid must be at least 3, or 0 for no maps, got 2", more=("--grid", "2"))
    for scale in ("0.5:0", "nan:0.3", "0.5:-1"):
        bad(r"SPREAD positive, got", more=("--pixels", scale))
    bad(r"--accuracy must be given for none or for each of 2 models, got 1", more=("--accuracy", "0.9"))
    bad(r"--accuracy must lie between 0 and 1, got 93", more=("--accuracy", "0.9", "--accuracy", "93"))
    bad(r"--accuracy does not apply with --features", more=("--features", "--accuracy", "0.9", "--accuracy", "0.9"))
    bad(r"net must be callable with the settings", more=("--set", "wrong=3"))
    save_file({"weight": torch.ones(1, 1), "bias": torch.ones(1)}, "odd.safetensors")
    odd = (
        "check",
        "odd.safetensors",
        "odd.safetensors",
        "odd.safetensors",
        "--model",
        "net.py:pair",
        "--data",
        "a.npz",
    )
    refused(folder, "must return a tensor, got tuple", *odd)
    said(*CHECK[:3], "elsewhere.safetensors", *CHECK[4:], *QUICK, "--data", "a.npz", "--unrelated")


SETTINGS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, act, outputs):
        super().__init__()
        self.act, self.first, self.last = act, nn.Linear(36, 8), nn.Linear(8, outputs)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        return self.last(getattr(torch, self.act)(self.norm(self.first(x.flatten(1))) + self.shift))

def build(act="tanh", outputs=3):
    return Net(act, outputs)
"""


@pytest.fixture
def settled(folder):
    """A network with a setting that no weight knows, BatchNorm, and a buffer that a merge edits."""
    (folder / "settled.py").write_text(SETTINGS)
    plain = {"norm.weight": torch.ones(8), "norm.bias": torch.zeros(8), "norm.running_mean": torch.zeros(8)}
    plain |= {"norm.running_var": torch.ones(8), "norm.num_batches_tracked": torch.tensor(0), "shift": torch.zeros(8)}
    for name in ("base", "a", "b"):
        save_file(load_file(f"{name}.safetensors") | plain, f"{name}.safetensors")
    return folder


def checked(*more: str) -> str:
    words = [
        *CHECK[:4],
        "--model",
        "settled.py:build",
        *CHECK[6:],
        "--data",
        "a.npz",
        "--data",
        "b.npz",
        *QUICK,
        "--json",
    ]
    return said(*words, *more)


def checked_numbers(*more: str) -> dict:
    return only(checked(*more))


def test_another_forward_pass_with_the_same_weights_is_not_read_from_the_folder(settled, undrawn):
    first = checked_numbers()
    other, fresh = checked_numbers("--set", "act=relu"), checked_numbers("--set", "act=relu", "--out", "elsewhere")
    assert other["tables"] == fresh["tables"]
    assert distances(other, "a") != distances(first, "a")


def test_buffers_that_a_merge_edits_are_edited_and_statistics_of_their_own_are_told(settled, undrawn):
    a = load_file("a.safetensors")
    before = checked_numbers()
    assert "BatchNorm" not in before["sentence"]
    save_file(a | {"shift": torch.full((8,), 3.0)}, "a.safetensors")
    far, near = (found["tables"]["models"][0]["distance_from_base"] for found in (checked_numbers(), before))
    assert far != near
    save_file(a | {"norm.running_mean": torch.ones(8)}, "a.safetensors")
    told = checked_numbers()["sentence"]
    assert "BatchNorm statistics of a differ from the base's. The check and the merge use the base's statistics" in told


def test_half_precision_is_told(settled, undrawn):
    for name in ("base", "a", "b"):
        state = load_file(f"{name}.safetensors")
        save_file(
            {key: each.bfloat16() if each.is_floating_point() else each for key, each in state.items()},
            f"{name}.safetensors",
        )
    assert "in half precision and were checked in float32" in checked_numbers()["sentence"]


def test_the_sign_of_a_single_output_counts_through_a_head_too(settled, undrawn):
    for name in ("base", "a", "b"):
        state = load_file(f"{name}.safetensors")
        state["last.weight"], state["last.bias"] = state["last.weight"][:1].contiguous(), state["last.bias"][:1]
        save_file(state, f"{name}.safetensors")
    plain = checked_numbers("--set", "outputs=1", "--out", "plain")
    through = checked_numbers("--set", "outputs=1", "--head", "last", "--out", "through")
    assert distances(plain, "a") == pytest.approx(distances(through, "a"))
    assert max(distances(plain, "a")) > 0


def test_the_next_command_is_one_that_works(settled, undrawn):
    state = load_file("base.safetensors")
    for name in ("a", "b"):  # the same far end twice: a merge of half of each is that end, and unrelated to the base
        save_file(state | {"first.weight": 5 * normal(8, 36, seed=1, dtype=torch.float32)}, f"{name}.safetensors")
    command = json.loads(checked("--unrelated"))["command"].split()
    assert command[-3:] == ["--unrelated", "--out", "merged.safetensors"]
    said(*command[2:])
    assert Path("merged.safetensors").is_file()


def test_a_verdict_can_be_a_gate(folder, undrawn):
    words = [*CHECK, *QUICK, "--data", "a.npz", "--data", "b.npz"]
    base, a = load_file("base.safetensors"), load_file("a.safetensors")
    save_file({name: 2 * base[name] - a[name] for name in base}, "against.safetensors")
    against = [word.replace("b.safetensors", "against.safetensors") for word in CHECK] + [*QUICK, "--data", "a.npz"]
    gate = ["--fail-on", "do not merge", "--fail-on", "undecided"]
    assert CliRunner().invoke(app, [*words, *gate]).exit_code == 0
    assert CliRunner().invoke(app, [*against, *gate]).exit_code == 1
    assert CliRunner().invoke(app, against).exit_code == 0
    refused(folder, "--fail-on must be one of 'merge'", *CHECK, "--data", "a.npz", "--fail-on", "never")


@pytest.mark.parametrize("layers", ["Linear(8, 8), nn.Linear(8, 8)", "Linear(8, 8), nn.Softmax(1)"])
def test_a_layer_that_is_not_the_last_is_no_head(folder, layers):
    (folder / "deep.py").write_text(
        f"from torch import nn\ndef build(outputs=8):\n    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.{layers})\n"
    )
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    kept = dict(list(network.state_dict().items())[: 6 if "Soft" not in layers else 4])
    for name in ("base", "a", "b"):
        save_file(kept, f"{name}.safetensors")
    words = [word if word != "net.py:build" else "deep.py:build" for word in CHECK]
    told = r"--head must name the last layer, but the outputs of the network are not those of '2'"
    refused(folder, told, *words, "--data", "a.npz", "--head", "2")


def test_adapters_of_own_networks_are_checked_as_the_models_that_they_make(folder):
    """With factors on one layer and the last layer whole, alone and beside a whole model."""
    base = load_file("base.safetensors")
    for seed, name in enumerate(("one", "two"), 20):
        down, up = (0.4 * normal(*shape, seed=seed + at).float() for at, shape in enumerate(((2, 36), (8, 2))))
        last = base["last.weight"] + 0.2 * normal(3, 8, seed=seed, dtype=torch.float32)
        Path(name).mkdir()
        factors = {"first.lora_A.weight": down, "first.lora_B.weight": up, "last.weight": last}
        tensors = {f"base_model.model.{key}": each.contiguous() for key, each in factors.items()}
        save_file(tensors, f"{name}/adapter_model.safetensors")
        Path(name, "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 3}')
        whole = {**base, "first.weight": base["first.weight"] + 1.5 * up @ down, "last.weight": last}
        save_file(whole, f"{name}-whole.safetensors")
    for head in ("", "last"):
        reading = Reading(model="net.py:build", head=head or None, samples=40)
        ours, theirs = (
            candidates_of(Path("base.safetensors"), list(map(Path, names)), ["a.npz"], reading, run=CPU)
            for names in (("one", "two-whole.safetensors"), ("one-whole.safetensors", "two-whole.safetensors"))
        )
        for one, other in zip(ours.vectors.values(), theirs.vectors.values(), strict=True):
            torch.testing.assert_close(one.deltas, other.deltas, atol=1e-6, rtol=1e-5)
        for one, other in zip(ours.heads.values(), theirs.heads.values(), strict=True):
            assert torch.equal(one.weight, other.weight)
    words = ("check", "base.safetensors", "one", "two", "--data", "a.npz", "--model", "net.py:build", "--grid", "0")
    printed = json.loads(said(*words, "--device", "cpu", "--json", "--unrelated"))
    assert [row["model"] for row in printed["results"][0]["tables"]["models"]] == ["one", "two"]
    short = {
        "base_model.model.first.lora_A.weight": torch.ones(2, 9),
        "base_model.model.first.lora_B.weight": torch.ones(8, 2),
    }
    save_file(short, "two/adapter_model.safetensors")
    refused(folder, "Pass the base that the adapter was trained on", *words)
