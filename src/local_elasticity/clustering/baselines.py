"""What the papers compare with: K-means on pixels, on principal components, on features of other networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import Tensor, nn

from local_elasticity.models.pretrained import pretrained


def kmeans(X: Any, n_clusters: int, *, n_init: int = 10, random_state: int | None = None) -> np.ndarray:
    """Labels of K-means on the features of X, images flattened; the best of `n_init` starts.

    >>> import numpy as np
    >>> labels = kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), 2, random_state=0)
    >>> bool(labels[0] == labels[1] != labels[2] == labels[3])
    True
    """
    X = np.asarray(X)
    model = KMeans(n_clusters, n_init=n_init, random_state=random_state)
    return np.asarray(model.fit_predict(X.reshape(len(X), -1)))


def pca_kmeans(
    X: Any, n_clusters: int, *, n_components: int = 100, n_init: int = 10, random_state: int | None = None
) -> np.ndarray:
    """Labels of K-means on the first principal components of X, images flattened.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 5)) + 9 * (np.arange(20) < 10)[:, None]
    >>> labels = pca_kmeans(X, 2, n_components=2, random_state=0)
    >>> len(set(labels[:10])), len(set(labels[10:]))
    (1, 1)
    """
    X = np.asarray(X)
    components = PCA(n_components, random_state=random_state).fit_transform(X.reshape(len(X), -1))
    return kmeans(components, n_clusters, n_init=n_init, random_state=random_state)


class Autoencoder(nn.Module):
    """The convolutional autoencoder of He & Su's Table 4 for images [1, 28, 28] in [−1, 1]; 32 features.

    >>> import torch
    >>> net = Autoencoder()
    >>> net.encode(torch.zeros(2, 1, 28, 28)).shape, net(torch.zeros(2, 1, 28, 28)).shape
    (torch.Size([2, 32]), torch.Size([2, 1, 28, 28]))
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(16, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 3, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 8, 5, stride=3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 2, stride=2, padding=1),
            nn.Tanh(),
        )

    def encode(self, x: Tensor) -> Tensor:
        return torch.flatten(self.encoder(x), 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def autoencoder_features(
    images: Any, *, epochs: int = 100, batch_size: int = 128, random_state: int = 0, device: str = "cpu"
) -> np.ndarray:
    """The 32 bottleneck features of every image, [n, 32], of an `Autoencoder` trained on all of them: Adam at 1e-3,
    weight decay 1e-5, squared loss. Images [n, 1, 28, 28] or [n, 28, 28] in [−1, 1].

    >>> import numpy as np
    >>> autoencoder_features(np.zeros((4, 28, 28)), epochs=1).shape
    (4, 32)
    """
    x = _images(images)
    if x.shape[1:] != (1, 28, 28):
        raise ValueError(f"images: expected images of 1×28×28, got {tuple(x.shape[1:])}")
    x = x.to(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        net = Autoencoder().to(device)
    generator = torch.Generator().manual_seed(random_state)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch_size):
            batch = x[rows.to(device)]
            optimizer.zero_grad()
            F.mse_loss(net(batch), batch).backward()
            optimizer.step()
    with torch.no_grad():
        return np.asarray(net.encode(x).cpu().numpy())


def pretrained_features(
    images: Any, network: str = "efficientnet_lite0", *, batch_size: int = 50, device: str = "cpu"
) -> np.ndarray:
    """Features of a network trained on ImageNet, before its last layer, [n, features]. Images [n, H, W] or
    [n, 1 or 3, H, W] in [−1, 1] are brought to 224×224.

    `efficientnet_lite0` is in the extra `pretrained`; `resnet152`, the paper's, comes through torchvision where that
    imports.
    """
    x, chosen = _images(images), pretrained(network)
    chosen.net.to(device)
    with torch.no_grad():
        found = [chosen.features(chosen.prepare(part.to(device))).cpu() for part in x.split(batch_size)]
    return np.asarray(torch.cat(found).numpy())


def _images(images: Any) -> Tensor:
    x = torch.as_tensor(np.asarray(images), dtype=torch.float32)
    if x.ndim not in (3, 4):
        raise ValueError(f"images: expected [n, H, W] or [n, C, H, W], got shape {tuple(x.shape)}")
    return x[:, None] if x.ndim == 3 else x
