"""Fine-tune on eight digits that a net gets wrong, and replay 16 old ones: at random, or those that the forecast names.

Over five nets: how many of the new digits are right afterwards, and how many training digits that were right and not
replayed, and held-out digits that were right, are lost.
"""

import copy

import pandas as pd
import torch
import torch.nn.functional as F

import local_elasticity as le

NEW, REPLAYED, RATE, SEEDS = 8, 16, 0.01, 5
LENGTHS = (40, 180)


def trained(x, y, seed):
    """A small net after 60 steps on the training digits."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def fine_tuned(net, x, y, steps):
    """A copy of the net after the fine-tune on these digits."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def right(net, x, y):
    """Which digits the net classifies correctly."""
    with torch.no_grad():
        return net(x).argmax(1) == y


data = le.data.load("digits")
x, y = data.take(range(10), per_class=100)
held_x, held_y = data.take(range(10), per_class=30, split="test")
rows = []
for seed in range(SEEDS):
    net = trained(x, y, seed)
    known, held = right(net, x, y), right(net, held_x, held_y)
    new = torch.nonzero(~held).flatten()[:NEW]
    new_x, new_y, some = held_x[new], held_y[new], torch.nonzero(known).flatten()
    for steps in LENGTHS:
        options = {"loss": "cross_entropy", "update": le.SGD(RATE), "steps": steps}
        found = le.forecast(net, (new_x, new_y), (x, y), **options)
        replays = {
            "nothing": some[:0],
            "at random": some[torch.randperm(len(some))[:REPLAYED]],
            "at risk": torch.as_tensor(found.at_risk(REPLAYED)),
        }
        for name, kept in replays.items():
            after = fine_tuned(net, torch.cat([new_x, x[kept]]), torch.cat([new_y, y[kept]]), steps)
            others = known.index_fill(0, kept, False)
            counts = {
                "new right": right(after, new_x, new_y),
                "training lost": others & ~right(after, x, y),
                "held-out lost": held & ~right(after, held_x, held_y),
            }
            rows.append({"steps": steps, "replay": name, **{what: int(each.sum()) for what, each in counts.items()}})

table = pd.DataFrame(rows).groupby(["steps", "replay"], sort=False)
print(table.agg(lambda counts: f"{counts.mean():.1f} ({counts.min()} to {counts.max()})").to_string())
