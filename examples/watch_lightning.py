"""One callback: Lightning on CIFAR-10 (on noise of the same shape where the images are not at hand)."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import local_elasticity as le
from local_elasticity.training.lightning import MonitorCallback


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = le.models.ResNet18(3, width=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    try:
        x, y = le.data.load("cifar10").take([0, 1, 8], per_class=100)
        return x, torch.tensor([{0: 0, 1: 1, 8: 2}[int(label)] for label in y])
    except FileNotFoundError:
        return torch.randn(300, 3, 32, 32), torch.arange(300) % 3


pl.seed_everything(0, verbose=False)
x, y = images()
points = torch.cat([torch.nonzero(y == label).flatten()[:4] for label in range(3)])
watching = MonitorCallback((x[points], y[points]), loss="cross_entropy", measure="kl", every=5, budget=None)
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    callbacks=[watching],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
print(watching.monitor.frame().round(3).tail(9).to_string(index=False))
