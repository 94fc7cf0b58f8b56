"""Measure a model while a Trainer of transformers fine-tunes it. Needs: pip install 'biascope[hub]' accelerate."""

import tempfile

import torch
import transformers

from biascope.training.callbacks import trainer_callback

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, vocab_size=50, num_labels=2))
tokens = torch.randint(5, 50, (256, 8))
rows = [{"input_ids": each, "labels": (each[0] > 27).long()} for each in tokens]


def distance(step, network):
    """How far the weights are from where they began."""
    now = {name: weight.clone() for name, weight in network.params.items()}
    start.setdefault("weights", now)
    return sum(float((now[name] - start["weights"][name]).square().sum()) for name in now) ** 0.5


def log(name, value, step):
    """Print a number; biascope.training.callbacks.logger draws it in wandb, trackio or TensorBoard."""
    print(f"{name}: {value:.2f} at step {step}")


start = {}
callback = trainer_callback(at=(0, 10, 30, 60), hooks={"distance": distance}, log=log)
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder, max_steps=60, learning_rate=1e-3, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()
losses = callback.observer.trajectory().losses
print(f"The loss went from {float(losses[:5].mean()):.2f} to {float(losses[-5:].mean()):.2f} in {len(losses)} steps.")
