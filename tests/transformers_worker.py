"""A Hugging Face run with batch norm and dropout, watched or not: `python transformers_worker.py FOLDER [resume]`."""

import os
import sys
import time
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import local_elasticity as le
from local_elasticity.training.transformers import MonitorCallback


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 3)
        )

    def forward(self, x, labels=None):
        logits = self.net(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Examples(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(64, 1, 8, 8, generator=generator), torch.arange(64) % 3

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}


class Slow(Trainer):
    def training_step(self, *args, **kwargs):
        time.sleep(0.05)
        return super().training_step(*args, **kwargs)


def fit(folder, *, watch=True, resume=False, slow=False, store=None, steps=16, named=None):
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    model, examples = Classifier(), Examples()
    watched = MonitorCallback(
        (examples.x[:6], examples.y[:6]),
        problem=lambda model: le.Problem.of(model, "cross_entropy", output=lambda out: out["logits"]),
        measure=("kl", "relative"),
        update=le.FromOptimizer,
        every=2,
        budget=None,
        store=store,
        engine="looped",  # the same bytes at every run
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        save_steps=4,
        logging_steps=1,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
        resume_from_checkpoint=named,
    )
    kind = Slow if slow else Trainer
    trainer = kind(model=model, args=arguments, train_dataset=examples, callbacks=[watched] if watch else [])
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model, watched.monitor


if __name__ == "__main__":
    place = Path(sys.argv[1])
    resumed = len(sys.argv) > 2
    fit(place, store=place / "history.zarr", resume=resumed, slow=not resumed, steps=24 if resumed else 2000)
