"""What does a LoRA adapter change? Replace what is made here by your own folders. Needs: pip install 'biascope[hub]'."""

import tempfile
from pathlib import Path

import peft
import transformers

import biascope


def saved(folder: Path) -> None:
    """A small classifier, and an adapter of rank 4 on it that has moved."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    base = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, vocab_size=100, num_labels=3))
    base.save_pretrained(folder / "base")
    lora = peft.LoraConfig(r=4, lora_alpha=64, task_type="SEQ_CLS", init_lora_weights=False)
    peft.get_peft_model(base, lora).save_pretrained(folder / "adapter")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    saved(folder)
    base = biascope.family_of(f"hf:{folder / 'base'}")
    adapted = biascope.family_of(f"peft:{folder / 'adapter'}", settings={"base": str(folder / "base")})
    inputs = biascope.Probe.gaussian((16, 32), num=16, fresh=True)  # the embeddings of 16 tokens
    before, after = (biascope.average_geometry(each, inputs, draws=64) for each in (base, adapted))

for what, result in (("base", before), ("with the adapter", after)):
    print(f"{what}: the gradient spreads over {result.headline()['effective_rank']} of {16 * 32} input directions")
