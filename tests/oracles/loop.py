"""The definition in the plainest way: copy the model, step the copy with torch.optim, predict again, subtract."""

import copy

import torch


def stepped(model, loss, inputs, labels, make_optimizer, call):
    """A copy of the model after one step on the examples given."""
    moved = copy.deepcopy(model).eval()
    moved.zero_grad(set_to_none=True)
    optimizer = make_optimizer(moved)
    loss(call(moved, inputs), labels).backward()
    optimizer.step()
    return moved


def looped_response(
    model, loss, sources, targets, make_optimizer, *, call=lambda model, x: model(x), take=None, batch=1
):
    """source_change [n, B, k] and target_change [n, m, k]."""
    take = take or (lambda x, rows: x[rows])
    inputs, labels = sources
    still = copy.deepcopy(model).eval()
    source_change, target_change = [], []
    for start in range(0, len(labels), batch):
        rows = slice(start, start + batch)
        x, y = take(inputs, rows), labels[rows]
        moved = stepped(model, loss, x, y, make_optimizer, call)
        with torch.no_grad():
            source_change.append((call(moved, x) - call(still, x)).reshape(batch, -1))
            change = call(moved, targets) - call(still, targets)
            target_change.append(change.reshape(len(change), -1))
    return torch.stack(source_change), torch.stack(target_change)


def dense_ntk(model, x, x2):
    """J Jᵀ with every Jacobian written out, [n, m, k, k]."""

    def jacobian(inputs):
        rows = []
        for one in inputs:
            outputs = model(one[None]).flatten()
            rows.append(
                torch.stack(
                    [
                        torch.cat(
                            [g.flatten() for g in torch.autograd.grad(o, list(model.parameters()), retain_graph=True)]
                        )
                        for o in outputs
                    ]
                )
            )
        return torch.stack(rows)

    return torch.einsum("nkp,mlp->nmkl", jacobian(x), jacobian(x2))


def looped_loss_change(model, loss, sources, targets, make_optimizer, *, call=lambda model, x: model(x), take=None):
    """ℓ(x′; w⁺) − ℓ(x′; w) for every source and target, [n, m]: copy, step, loss, subtract."""
    take = take or (lambda x, rows: x[rows])
    (inputs, labels), (others, theirs) = sources, targets
    still = copy.deepcopy(model).eval()
    changes = []
    for i in range(len(labels)):
        moved = stepped(model, loss, take(inputs, slice(i, i + 1)), labels[i : i + 1], make_optimizer, call)
        with torch.no_grad():
            changes.append(
                [
                    loss(call(moved, take(others, slice(j, j + 1))), theirs[j : j + 1])
                    - loss(call(still, take(others, slice(j, j + 1))), theirs[j : j + 1])
                    for j in range(len(theirs))
                ]
            )
    return torch.tensor(changes, dtype=torch.float64)
