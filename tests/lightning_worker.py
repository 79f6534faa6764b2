"""A Lightning run with batch norm and dropout, watched or not: `python lightning_worker.py FOLDER [resume]`."""

import sys
import time
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import local_elasticity as le
from local_elasticity.training.lightning import MonitorCallback

STEPS = 16  # 4 epochs of 4 optimizer steps, two batches each


def examples():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 1, 8, 8, generator=generator), torch.arange(64) % 3


class Classifier(pl.LightningModule):
    def __init__(self, slow=0.0):
        super().__init__()
        self.slow, self.losses = slow, []
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 3)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        time.sleep(self.slow)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def callback(**options):
    x, y = examples()
    options = {"measure": ("kl", "relative"), "update": le.FromOptimizer, "every": 2, "budget": None, **options}
    return MonitorCallback((x[:6], y[:6]), loss="cross_entropy", engine="looped", **options)


def trained_by(callbacks, epochs, **options):
    return pl.Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=2,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def loader():
    return DataLoader(TensorDataset(*examples()), batch_size=8, shuffle=True)


def fit(folder, *, watch=True, checkpoint=None, slow=0.0, store=None, epochs=4, loggers=None):
    warnings.simplefilter("ignore")
    pl.seed_everything(1, verbose=False)
    module = Classifier(slow)
    callbacks = [pl.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=4)]
    watched = callback(loggers=loggers or [], store=store)
    if watch:
        callbacks.append(watched)
    trained_by(callbacks, epochs).fit(module, loader(), ckpt_path=checkpoint, weights_only=True)
    return module, watched.monitor


if __name__ == "__main__":
    place = Path(sys.argv[1])
    resumed = len(sys.argv) > 2
    fit(
        place,
        store=place / "history.zarr",
        checkpoint=place / "last.ckpt" if resumed else None,
        slow=0.0 if resumed else 0.05,
        epochs=4 if resumed else 400,
    )
