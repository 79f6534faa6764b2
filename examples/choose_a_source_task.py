"""Which task to pretrain on? Rank them by train–unseen similarity before training anything, then see Recall@1 follow.

Two digits are kept apart: never trained on, to be retrieved later. Every other pair of digits is a task one could
pretrain on. A task teaches the direction β = Cov(x, y); it helps where the kept digits lie far from each other along β,
that is where |s₁ − s₂| is large, s = βᵀμ. No network is needed to know that.
"""

from itertools import combinations

import torch

import local_elasticity as le

em = le.emergence
NOISE = 0.8

generator = torch.Generator().manual_seed(0)
x, y = le.data.load("digits").take(range(10), per_class=130, low=0.0)
x = x.flatten(1) - x.flatten(1).mean(0)
x = x + NOISE * torch.randn(x.shape, generator=generator)
x = (x / x.square().mean().sqrt()).double()
network = em.TwoLayer.random(inputs=64, width=256, seed=0)


def task(pair):
    rows = torch.isin(y, torch.tensor(pair))
    return x[rows], torch.where(y[rows] == pair[1], 1.0, -1.0).double()


def promise(pair, kept):
    """|s₁ − s₂| in units of the spread of b = βᵀx over the kept digits; nothing is trained."""
    X, labels = task(pair)
    first, second = (em.train_unseen_similarity(X, labels, x[y == digit]) for digit in kept)
    both = torch.isin(y, torch.tensor(kept))
    return abs(first - second) / em.train_unseen_second_moment(X, labels, x[both]) ** 0.5


def recall_after_training(pair, kept):
    """One large step on the task, then retrieve the kept digits by the features."""
    X, labels = task(pair)
    both = torch.isin(y, torch.tensor(kept))
    trained = em.one_step(network, X, labels, step_size=2 * em.usual_step_size(len(X))).after
    return em.recall_at_k(trained.features(x[both]), y[both])


print("kept    untrained  chosen task: Recall@1   mean task  last task  correlation")
for kept in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
    tasks = list(combinations([digit for digit in range(10) if digit not in kept], 2))
    promised = {pair: promise(pair, kept) for pair in tasks}
    ranked = sorted(tasks, key=promised.get, reverse=True)
    found = {pair: recall_after_training(pair, kept) for pair in ranked}
    both = torch.isin(y, torch.tensor(kept))
    untrained = em.recall_at_k(network.features(x[both]), y[both])
    table = torch.tensor([[promised[pair], found[pair]] for pair in tasks]).T
    correlation = float(torch.corrcoef(table)[0, 1])
    print(
        f"{kept[0]}, {kept[1]}  {untrained:9.3f}  {ranked[0][0]} or {ranked[0][1]}: {found[ranked[0]]:18.3f}  "
        f"{sum(found.values()) / len(tasks):9.3f}  {found[ranked[-1]]:9.3f}  {correlation:11.2f}"
    )
