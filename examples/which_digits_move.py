"""Train a small net on scikit-learn's digits and see which digits a step on another digit moves."""

import torch

import local_elasticity as le

data = le.data.load("digits")
x, y = data.take(range(10), per_class=60)
generator = torch.Generator().manual_seed(0)
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for _ in range(15):
    for rows in torch.randperm(len(x), generator=generator).split(50):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()

held_out = data.take(range(10), per_class=10, split="test")
problem = le.Problem.of(net, loss="cross_entropy")
S = le.similarity(problem, sources=held_out, measure="kl", update=le.SGD(1e-2))

table = S.le.classes(reduce="median")
print(table.pivot(index="source_class", columns="target_class", values="value").round(3))
print(f"computed by {S.attrs['engine']}, {S.attrs['unresolved']:.1%} of pairs unresolved")
