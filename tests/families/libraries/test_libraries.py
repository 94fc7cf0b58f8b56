"""Models by the names of libraries: shape, law of weights and readout come from the library; what cannot be is one sentence."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import said
from torch import nn
from typer.testing import CliRunner

import biascope
from biascope.cli import app
from biascope.derivatives.gradients import input_gradient
from biascope.families import libraries
from biascope.families.named_model import Pixels
from biascope.families.source import family_of, pixels_of, usual_shape
from biascope.kernels.selftest import selftest

CPU = biascope.Run(device="cpu", progress=False)


def refused(source: str, **how: Any) -> str:
    """The sentence that a name or a setting is refused with."""
    with pytest.raises(ValueError) as told:
        family_of(source, **how)
    assert str(told.value).endswith((".", "?"))
    return str(told.value)


def test_every_kind_has_a_help_and_an_example_of_its_own() -> None:
    for kind in libraries.KINDS:
        assert libraries.kind_of(libraries.example_of(kind)) == kind


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "pip install 'biascope[hub]'" in refused("timm:resnet18")


def test_the_scale_of_pixels_is_what_a_library_states(tmp_path: Path) -> None:
    assert pixels_of("lenet") is None
    assert pixels_of("hf-config:bert") is None
    assert pixels_of(f"hf:{tmp_path}") is None
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"image_mean": [0.5, 0.5, 0.5], "image_std": [0.2, 0.3, 0.4]}))
    assert pixels_of(f"hf:{tmp_path}") == Pixels(f"hf:{tmp_path}", (0.5, 0.5, 0.5), (0.2, 0.3, 0.4))
    file.write_text(json.dumps({"image_mean": [0.5], "image_std": [0.2], "do_normalize": False}))
    assert pixels_of(f"hf:{tmp_path}") is None
    for text in ("[", "[]", '{"image_mean": ["a"]}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"preprocessor_config.json must be JSON with numbers"):
            pixels_of(f"hf:{tmp_path}")


class TestTimm:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("timm")

    def test_a_network_takes_what_its_configuration_says(self) -> None:
        assert usual_shape("timm:resnet18") == (3, 224, 224)
        assert usual_shape("timm:mobilevit_xxs") == (3, 256, 256)

    @pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
    def test_gradients_are_those_of_the_module_itself(self, name: str) -> None:
        family = family_of(f"timm:{name}", shape=(3, 64, 64))
        network = family.draw(1, seed=0, run=CPU).member(0)
        x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        mine = input_gradient(network.read("first"), x)
        module = network.as_module().eval()
        leaf = x.clone().requires_grad_()
        module(leaf)[:, 0].sum().backward()
        assert torch.allclose(mine, leaf.grad.flatten(1), rtol=1e-4, atol=1e-6)  # type: ignore[union-attr]

    def test_images_are_scaled_as_its_configuration_says(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        images = torch.randint(256, (12, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte().numpy()
        np.savez("mine.npz", x=images, y=np.arange(12) % 2)
        words = ["kernel", "timm:resnet10t", "--data", "mine.npz", "--leading", "2", "--parameters", "fc.*"]
        words += ["--out", "run", "--device", "cpu"]
        stated = "each channel minus 0.485, 0.456, 0.406 over 0.229, 0.224, 0.225, as timm:resnet10t states"
        assert stated in said(app, *words)
        assert stated in said(app, *words, "--standardise", "model")
        assert "each channel standardised over the training samples" in said(app, *words, "--standardise", "own")
        np.savez("mine.npz", x=images[:, :1], y=np.arange(12) % 2)
        assert "each channel standardised over the training samples" in said(app, *words)
        done = CliRunner().invoke(app, [*words, "--standardise", "model"])
        assert "must have the 3 channels for which timm:resnet10t scales pixels, got 1" in str(done.exception)

    def test_other_channels_and_classes(self) -> None:
        family = family_of("timm:resnet10t", shape=(1, 32, 32), settings={"num_classes": 3})
        assert family.first_outputs(torch.zeros(2, 1, 32, 32)).shape == (2, 3)

    def test_what_is_refused(self) -> None:
        assert "Did you mean timm:resnet18?" in refused("timm:resnet81")
        assert "takes images" in refused("timm:resnet18", shape=(5,))
        assert "timm:resnet18" in refused("timm:")
        assert "Did you mean timm:resnet18.a1_in1k?" in refused("timm:resnet18.nope")

    def test_attention_that_keeps_its_biases_until_it_trains_has_their_gradients(self) -> None:
        attention = importlib.import_module("timm.models.efficientformer").Attention

        class Small(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.patches, self.norm = nn.Conv2d(3, 8, 2, stride=2), nn.BatchNorm2d(8)
                self.attention, self.head = attention(dim=8, key_dim=4, num_heads=2, resolution=4), nn.Linear(8, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                tokens = self.norm(self.patches(x)).flatten(2).transpose(1, 2)
                return self.head(self.attention(tokens).square().mean(1))

        checks = selftest(biascope.Family.initialised(Small, name="small"), (3, 8, 8))
        assert not [check.name for check in checks if check.failed]


class TestTorchvision:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("torchvision")

    def test_a_classifier(self) -> None:
        family = family_of("torchvision:resnet18", shape=(3, 64, 64))
        assert family.first_outputs(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)
        assert usual_shape("torchvision:inception_v3") == (3, 299, 299)

    def test_what_is_refused(self) -> None:
        assert "Did you mean torchvision:" in refused("torchvision:resnet81")
        assert "3 channels" in refused("torchvision:resnet18", shape=(1, 64, 64))


class TestOpenClip:
    def test_a_name_that_there_is_not(self) -> None:
        pytest.importorskip("open_clip")
        assert "Did you mean open_clip:ViT-B-32?" in refused("open_clip:ViT-B-33")
        assert "--download" in refused("open_clip:ViT-B-32", settings={"pretrained": "openai"})

    def test_the_image_tower(self) -> None:
        pytest.importorskip("open_clip")
        family = family_of("open_clip:ViT-S-32-alt", shape=(3, 64, 64))
        assert family.first_outputs(torch.zeros(2, 3, 64, 64)).shape == (2, 256)
        assert family_of("open_clip:RN50", shape=(3, 32, 32)).first_outputs(torch.zeros(2, 3, 32, 32)).shape == (
            2,
            1024,
        )


class TestTransformers:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("transformers")

    @pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "mamba"])
    def test_an_architecture_passes_the_selftest_at_two_layers(self, kind: str) -> None:
        source = f"hf-config:{kind}"
        settings = {"hidden_size": 32, "num_hidden_layers": 1} | ({} if kind == "mamba" else {"num_attention_heads": 2})
        family = family_of(source, settings=settings)
        assert not [check.name for check in selftest(family, usual_shape(source, settings)) if check.failed]

    def test_the_name_tells_size_and_readout(self) -> None:
        assert family_of("hf-config:gpt2").name == "gpt2 (2 layers of width 128, at the last position)"
        assert family_of("hf-config:bert").name == "bert (2 layers of width 128, pooled by the model)"
        assert usual_shape("hf-config:vit") == (3, 224, 224)
        assert usual_shape("hf-config:whisper") == (80, 3000)

    def test_sizes_that_the_model_does_not_have_are_not_told(self) -> None:
        # Its layers are stages, and only its configuration has a width.
        settings = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "window_size": 4}
        name = family_of("hf-config:swinv2", shape=(3, 32, 32), settings=settings).name
        assert name.endswith("window_size=4 (pooled by the model)")

    def test_a_last_layer_that_is_read_whole_is_told(self) -> None:
        family = family_of("hf-config:patchtst", shape=(32, 1), settings={"hidden_size": 16})
        assert family.name.endswith("all 512 numbers of its last layer)")
        assert [axis.name for axis in family.axes] == ["time", "feature"]

    def test_a_configuration_says_the_shape_of_videos_spectrograms_and_series(self) -> None:
        assert usual_shape("hf-config:patchtst") == (32, 1)
        assert usual_shape("hf-config:audio-spectrogram-transformer") == (1024, 128)
        settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        video = family_of("hf-config:videomae", shape=(2, 3, 32, 32), settings=settings)
        assert video.first_outputs(torch.zeros(2, 2, 3, 32, 32)).shape == (2, 16)
        assert [axis.name for axis in video.axes] == ["frame", "channel", "height", "width"]
        assert "frames × channels × height × width, got 3×32×32" in refused(
            "hf-config:videomae", shape=(3, 32, 32), settings=settings
        )
        yolos = family_of("hf-config:yolos", shape=(3, 32, 48), settings=settings)  # its sides are two numbers
        assert yolos.first_outputs(torch.zeros(1, 3, 32, 48)).shape == (1, 16)

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [("esm", {}), ("deepseek_v3", {"num_hidden_layers": 1}), ("funnel", {"block_sizes": (1, 1)})],
    )
    def test_entries_that_a_library_leaves_open_are_filled_in(self, kind: str, settings: dict[str, Any]) -> None:
        family = family_of(f"hf-config:{kind}", settings=settings)
        assert family.first_outputs(torch.zeros(1, 16, 128)).shape == (1, 128)

    def test_texts_that_a_model_fills_up_are_taken_at_any_length(self) -> None:
        family = family_of("hf-config:longformer", settings={"hidden_size": 16, "num_hidden_layers": 1})
        network = family.draw(1, seed=0, run=CPU).member(0)
        x = torch.randn(1, 18, 16, generator=torch.Generator().manual_seed(0))
        found = network(x)
        mask = torch.ones(1, 20)
        mask[:, 18:] = 0
        longer = torch.cat([x, torch.ones(1, 2, 16)], dim=1)
        torch.testing.assert_close(network({"x": longer, "attention_mask": mask}), found, rtol=1e-4, atol=1e-5)

    def test_a_mixture_of_experts_has_every_derivative(self) -> None:
        settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_local_experts": 3}
        family = family_of("hf-config:mixtral", shape=(4, 16), settings=settings)
        checks = selftest(family, (4, 16))
        # Which experts a token takes differs between members, so these are computed one by one.
        assert [check.name for check in checks if not check.passed] == ["a stack equals its members"]
        assert not [check.name for check in checks if check.failed]

    def test_heads_of_widened_layers_fit(self) -> None:
        assert family_of("hf-config:mamba2").name == "mamba2 (2 layers of width 128, at the last position)"

    def test_a_model_without_masks_needs_no_register_of_masks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        importlib.import_module("transformers.masking_utils")
        monkeypatch.delitem(sys.modules, "transformers.masking_utils")
        settings = {"hidden_sizes": (8, 8), "depths": (1, 1), "num_stages": 2}
        source, shape = "hf-config:convnextv2", (3, 32, 32)
        assert family_of(source, shape=shape, settings=settings).first_outputs(torch.zeros(2, *shape)).shape == (2, 8)

    def test_what_is_refused(self) -> None:
        assert "Did you mean hf-config:bert?" in refused("hf-config:brt")
        assert "billion weights" in refused("hf-config:llama", settings={"full": True})
        assert "--input 4000" in refused("hf-config:wav2vec2")
        assert "positions × 128" in refused("hf-config:bert", shape=(16, 64))
        assert "'nope'" in refused("hf-config:bert", settings={"nope": 1})
        assert "whole number from 1, got many" in refused("hf-config:bert", settings={"hidden_size": "many"})
        assert refused("hf-config:bert", settings={"hidden_size": 130}).endswith("attention heads (4). Change --set.")
        assert "more than one kind of input" in refused("hf-config:clip")

    def test_positions_of_a_text_are_asked_for_by_the_shape(self) -> None:
        assert family_of("hf-config:bert", shape=(5, 128)).first_outputs(torch.zeros(2, 5, 128)).shape == (2, 128)


def saved_classifier(folder: Path, **settings: Any) -> Any:
    """A tiny BERT for three classes, written as its library does."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**sizes, vocab_size=50, num_labels=3, **settings)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model


class TestFolders:
    def test_a_folder_is_the_model_with_its_weights_and_its_own_head(self, tmp_path: Path) -> None:
        model = saved_classifier(tmp_path / "mine")
        family = family_of(f"hf:{tmp_path / 'mine'}")
        assert family.size == 1
        ids = torch.tensor([[3, 1, 4, 1, 5]])
        embedded = model.get_input_embeddings()(ids).detach()
        scale = float(f"{float(model.get_input_embeddings().weight.std()):.2g}")
        with torch.no_grad():
            assert torch.allclose(family.first_outputs(embedded / scale), model(ids).logits, atol=1e-5)

    def test_without_weights_it_is_measured_at_initialisation(self, tmp_path: Path) -> None:
        saved_classifier(tmp_path / "mine")
        (tmp_path / "mine" / "model.safetensors").unlink()
        assert family_of(f"hf:{tmp_path / 'mine'}").size is None

    def test_weights_that_are_missing_are_not_drawn(self, tmp_path: Path) -> None:
        from safetensors.torch import load_file, save_file

        saved_classifier(tmp_path / "mine")
        file = tmp_path / "mine" / "model.safetensors"
        kept = {key: value for key, value in load_file(file).items() if "classifier" not in key}
        save_file(kept, file, {"format": "pt"})
        assert "classifier.bias and 1 others would stay random" in refused(f"hf:{tmp_path / 'mine'}")

    def test_what_is_refused(self, tmp_path: Path) -> None:
        pytest.importorskip("transformers")
        assert "config.json" in refused(f"hf:{tmp_path}")
        assert "--download" in refused("hf:bert-base-uncased")
        (tmp_path / "config.json").write_text("{")
        assert "must be JSON" in refused(f"hf:{tmp_path}")
        (tmp_path / "config.json").write_text('{"auto_map": {}}')
        assert "code of its own" in refused(f"hf:{tmp_path}")

    def test_weights_of_other_shapes_are_not_drawn(self, tmp_path: Path) -> None:
        saved_classifier(tmp_path / "mine")
        file = tmp_path / "mine" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"intermediate_size": 48}))
        assert "intermediate.dense.bias is 64 instead of 48" in refused(f"hf:{tmp_path / 'mine'}")

    def test_an_adapter_with_its_base(self, tmp_path: Path) -> None:
        peft = pytest.importorskip("peft")
        model = saved_classifier(tmp_path / "base")
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="SEQ_CLS", init_lora_weights=False)).eval()
        adapted.save_pretrained(tmp_path / "adapter")
        source, settings = f"peft:{tmp_path / 'adapter'}", {"base": str(tmp_path / "base")}
        family = family_of(source, settings=settings)
        x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
        scale = float(f"{float(model.get_input_embeddings().weight.std()):.2g}")
        with torch.no_grad():
            expected = adapted(inputs_embeds=scale * x).logits
        assert torch.allclose(family.first_outputs(x), expected, atol=1e-5)
        assert "--set base=FOLDER" in refused(source, settings={"base": str(tmp_path / "nowhere")})

    def test_an_adapter_for_another_base(self, tmp_path: Path) -> None:
        peft = pytest.importorskip("peft")
        model = saved_classifier(tmp_path / "base")
        peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="SEQ_CLS")).save_pretrained(tmp_path / "adapter")
        transformers = pytest.importorskip("transformers")
        other = transformers.BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)
        transformers.BertForSequenceClassification(other).save_pretrained(tmp_path / "other")
        assert "does not fit" in refused(f"peft:{tmp_path / 'adapter'}", settings={"base": str(tmp_path / "other")})

    def test_an_adapter_that_cannot_be_read(self, tmp_path: Path) -> None:
        peft = pytest.importorskip("peft")
        model, folder = saved_classifier(tmp_path / "base"), tmp_path / "adapter"
        tokens = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
        peft.get_peft_model(model, tokens).save_pretrained(folder)
        settings = {"base": str(tmp_path / "base")}
        assert "PROMPT_TUNING, which adds virtual tokens" in refused(f"peft:{folder}", settings=settings)
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"peft_type": "NEWEST"}))
        assert "Check that peft is new enough" in refused(f"peft:{folder}", settings=settings)
        file.write_text("[]")
        assert "must hold settings by name, got a list" in refused(f"peft:{folder}", settings=settings)
        (folder / "adapter_model.safetensors").unlink()
        file.write_text("{}")
        assert "must hold adapter_model.safetensors" in refused(f"peft:{folder}", settings=settings)


def test_a_file_that_is_no_graph(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mine.pt2"
    file.write_text("hello")
    assert "must be a file that torch.export.save of this version of torch wrote" in refused(str(file))
    assert not caplog.records


def test_a_graph_of_torch_export_is_its_module_with_its_weights(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)).eval()
    program = torch.export.export(module, (torch.zeros(3, 3, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "mine.pt2")
    source = str(tmp_path / "mine.pt2")
    assert usual_shape(source) == (3, 4)
    x = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(family_of(source).first_outputs(x), module(x), atol=1e-6)
    assert "Leave --set out" in refused(source, settings={"width": 3})
    assert "does not" in refused(str(tmp_path / "nowhere.pt2"))


@dataclasses.dataclass
class Answer:
    """What a model of today returns."""

    logits: torch.Tensor
    hidden: torch.Tensor


class Answering(nn.Linear):
    """Gives its outputs in a form of its own."""

    def __init__(self, form: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(4, 3)
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(super().forward(x))


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a dataclass": lambda y: Answer(y, 2 * y),
    "a dictionary": lambda y: {"hidden": 2 * y, "logits": y},
    "a tuple of one tensor": lambda y: (y, None),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_logits_are_read_of_what_a_model_returns(form: Callable[[torch.Tensor], Any]) -> None:
    module = Answering(form)
    found = biascope.scan(module, input=(4,), draws=4, run=CPU, report=False).results[0]
    assert found.subject == "Answering"
    network = biascope.Network.of(module)
    assert torch.equal(input_gradient(network.read("first"), torch.zeros(1, 4)), module.weight[:1].detach())
