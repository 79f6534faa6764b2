"""Two lines in a plain training loop: how local does learning become while a net learns MNIST?"""

import torch

import local_elasticity as le

torch.manual_seed(0)
data = le.data.load("mnist")
x, y = data.take([0, 1, 2], per_class=200)
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

points = data.take([0, 1, 2], per_class=10, split="test")
monitor = le.Monitor(net, points, loss="cross_entropy", measure="kl", every=10, budget=None)
for step in range(101):
    monitor.step(step)
    rows = torch.randint(len(x), (64,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
    optimizer.step()

print(monitor.locality()[["step", "measure", "within", "between", "times"]].round(3).to_string(index=False))
print(monitor.phases().round(3).T.to_string(header=False))
monitor.plot().savefig("mnist.png")
