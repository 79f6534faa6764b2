"""Networks whose examples lie elsewhere, or meet other parameters, than the few that a layout was found on."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import local_elasticity as le
from tests.test_engines import assert_same_rows

N, LENGTH, CLASSES = 40, 6, 3
LOOKED_AT = {0, 6, 11, 17, 22, 28, 33, 39, 13, 26, 20}


class Sorted(nn.Module):
    """Puts its batch into the order of lengths, and back."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def forward(self, ids, lengths):
        lengths, order = lengths.sort(descending=True, stable=True)
        return self.body(ids[order], lengths)[order.argsort()]

    def body(self, ids, lengths):
        x = torch.tanh(self.hidden(self.embed(ids)))
        counts = (torch.arange(ids.shape[1]) < lengths[:, None]).to(x.dtype)[:, :, None]
        return self.head((x * counts).sum(1) / lengths[:, None])


class Packed(nn.Module):
    """A layer on the tokens of all examples, by time."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed = packed._replace(data=torch.tanh(self.hidden(packed.data)))
        x, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=ids.shape[1])
        return self.head(x.sum(1))


class Unpadded(nn.Module):
    """A layer on the real tokens alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, ids, lengths):
        x = self.embed(ids)
        i, j = torch.where(torch.arange(ids.shape[1]) < lengths[:, None])
        out = torch.zeros_like(x)
        out[i, j] = torch.tanh(self.hidden(x[i, j]))
        return self.head(out.sum(1) / lengths[:, None])


class SortedInPython(Sorted):
    """The same order, found by comparing numbers."""

    def forward(self, ids, lengths):
        order = torch.tensor(sorted(range(len(lengths)), key=lambda i: -lengths[i]))
        return super().forward(ids[order], lengths[order])[order.argsort()]


class Ranked(nn.Module):
    """By ranks, which no sorting function finds."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def forward(self, ids, lengths):
        keys = torch.arange(len(lengths)) - 1000 * lengths
        order = torch.empty_like(keys)
        order[(keys[:, None] > keys).sum(1)] = torch.arange(len(keys))
        x = torch.tanh(self.hidden(self.embed(ids[order])))
        counts = (torch.arange(ids.shape[1]) < lengths[order][:, None]).to(x.dtype)[:, :, None]
        found = self.head((x * counts).sum(1) / lengths[order][:, None])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return found[back]


def few_are_shorter():
    """Lengths of which the examples that a layout is found on have the greatest; 200 tokens, as many as N times 5."""
    lengths = torch.full((N,), LENGTH)
    for i in range(N):
        if i not in LOOKED_AT and int(lengths.sum()) > 5 * N:
            lengths[i] = LENGTH - 2
    return lengths


@pytest.mark.parametrize(
    ("net", "engine"),
    [
        (Sorted, "structured"),
        (Sorted, "linearized"),
        (SortedInPython, "structured"),
        (Ranked, "structured"),
        (Ranked, "linearized"),
        (Packed, "auto"),
        (Packed, "linearized"),
        (Unpadded, "structured"),
        *((net, le.Looped(gradients_at_once=N)) for net in (Sorted, SortedInPython, Ranked, Packed, Unpadded)),
    ],
)
def test_values_that_decide_where_examples_lie(net, engine):
    torch.manual_seed(0)
    problem = le.Problem.of(net().double(), "cross_entropy")
    ids, labels, lengths = torch.randint(20, (N, LENGTH)), torch.arange(N) % CLASSES, few_are_shorter()
    le.ntk(problem, (ids, torch.full_like(lengths, LENGTH)))  # what is remembered of it does not hold below
    step = 1e-7 if engine == "linearized" else 0.1
    sources, update = ((ids, lengths), labels), le.SGD(step)
    found = le.respond(problem, sources, update=update, engine=engine)
    truth = le.respond(problem, sources, update=update, engine="looped")
    assert_same_rows(found.target_change, truth.target_change, 1e-4 if engine == "linearized" else 1e-9)


PERMUTATIONS = {
    "embedding": lambda P, h: F.embedding(P.argmax(1), h),
    "einsum": lambda P, h: torch.einsum("ij,jk->ik", P, h),
    "bmm": lambda P, h: torch.bmm(P[None], h[None])[0],
    "addmm": lambda P, h: torch.addmm(torch.zeros((), dtype=h.dtype), P, h),
    "linear": lambda P, h: F.linear(h.T, P).T,
    "convolution": lambda P, h: F.conv1d(h[None], P[:, :, None])[0],
    "broadcast": lambda P, h: (P[:, :, None] * h).sum(1),
    "vectors": lambda P, h: torch.stack([torch.mv(P, column) for column in h.T], 1),
    "slices by NumPy": lambda P, h: torch.cat([h[i : i + 1] for i in np.asarray(P.detach()).argmax(1)]),
    "pieces by NumPy": lambda P, h: torch.cat([h.split(1)[i] for i in np.asarray(P.detach()).argmax(1)]),
}


class Permuted(Sorted):
    """The batch in the order of lengths, put there by a function that does not look like sorting."""

    def __init__(self, permute):
        super().__init__()
        self.permute = permute

    def forward(self, ids, lengths):
        P = F.one_hot(lengths.argsort(descending=True, stable=True), len(lengths)).to(self.head.weight.dtype)
        both = self.permute(P, torch.cat([ids, lengths[:, None]], 1).to(P.dtype)).round().long()
        return self.permute(P.T, self.body(both[:, :-1], both[:, -1]))


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_batches_that_any_function_permutes(name):
    torch.manual_seed(0)
    problem = le.Problem.of(Permuted(PERMUTATIONS[name]).double(), "cross_entropy")
    ids, labels, lengths = torch.randint(20, (N, LENGTH)), torch.arange(N) % CLASSES, few_are_shorter()
    sources, update = ((ids, lengths), labels), le.SGD(0.1)
    found = le.respond(problem, sources, update=update, engine="structured")
    truth = le.respond(problem, sources, update=update, engine="looped")
    assert_same_rows(found.target_change, truth.target_change, 1e-9)
    alone = le.ntk(problem, (ids[1:2], lengths[1:2]))
    torch.testing.assert_close(le.ntk(problem, (ids, lengths))[1:2, 1:2], alone)


@torch.jit.script
def in_order(ids, lengths):
    order = torch.argsort(lengths, descending=True, stable=True)
    return ids[order], lengths[order], torch.argsort(order)


class Scripted(Sorted):
    """Sorts where no function of torch is seen to be called."""

    def forward(self, ids, lengths):
        ids, lengths, back = in_order(ids, lengths)
        return chosen_by_script(self.body(ids, lengths), back)


@torch.jit.script
def chosen_by_script(h, rows):
    return h[rows]


class ScriptedRanks(Sorted):
    """The same by ranks, without a function that sorts."""

    def forward(self, ids, lengths):
        rows, back = (order(-lengths.double(), way) for way in (False, True))
        return self.chosen(self.body(ids[rows], lengths[rows]), back)

    def chosen(self, h, rows):
        return chosen_by_script(h, rows)


class Mapped(ScriptedRanks):
    """Inside torch.func, where tensors do not say that gradients pass."""

    def chosen(self, h, rows):
        return torch.func.vmap(lambda column: column[rows], in_dims=1, out_dims=1)(h)


class SortedPieces(Sorted):
    """Python compares tensors of one length each."""

    def forward(self, ids, lengths):
        pieces, keys = ids.split(1), [-one for one in lengths.split(1)]
        order = sorted(range(len(pieces)), key=lambda i: keys[i])
        out = self.body(torch.cat([pieces[i] for i in order]), torch.cat([-keys[i] for i in order])).split(1)
        return torch.cat([out[order.index(i)] for i in range(len(order))])


class ExchangedHalves(Sorted):
    def forward(self, ids, lengths):
        if len(ids) % 2:
            return self.body(ids, lengths)
        (a, b), (first, second) = ids.chunk(2), lengths.chunk(2)
        swap = first < second
        ids = torch.cat([torch.where(swap[:, None], b, a), torch.where(swap[:, None], a, b)])
        x, z = self.body(ids, torch.cat([torch.maximum(first, second), torch.minimum(first, second)])).chunk(2)
        return torch.cat([torch.where(swap[:, None], z, x), torch.where(swap[:, None], x, z)])


class Rotated(Sorted):
    """Slices that end at a number of examples which only the batch knows."""

    def forward(self, ids, lengths):
        k = (lengths < LENGTH).long().cumsum(0)[-1:].reshape(())
        out = self.body(torch.cat([ids[k:], ids[:k]]), torch.cat([lengths[k:], lengths[:k]]))
        k = len(ids) - k
        return torch.cat([out[k:], out[:k]])


@pytest.mark.parametrize("net", [Scripted, ScriptedRanks, Mapped, SortedPieces, ExchangedHalves, Rotated])
def test_batches_that_are_ordered_out_of_sight(net):
    torch.manual_seed(0)
    problem = le.Problem.of(net().double(), "cross_entropy")
    ids, lengths = torch.randint(20, (N, LENGTH)), few_are_shorter()
    K = le.ntk(problem, (ids, lengths))
    alone = [le.ntk(problem, (ids[i : i + 1], lengths[i : i + 1]))[0, 0] for i in range(N)]
    torch.testing.assert_close(K.diagonal(), torch.stack(alone))


def ranks(keys):
    keys = keys + 1e-9 * torch.arange(len(keys))  # of equals, the first comes first
    return (keys[:, None] > keys).sum(1)


def padded(h, keys, back):
    """With one row more, which is taken off again."""
    b, rank = len(h), ranks(F.pad(keys, (0, 1), value=1e9))
    rows = rank if back else torch.zeros_like(rank).scatter(0, rank, torch.arange(b + 1))
    return F.pad(h, (0, 0, 0, 1)).index_select(0, rows)[:b]


def in_a_buffer(h, keys, back):
    b, rank = len(h), ranks(F.pad(keys, (0, 1), value=1e9))
    rows = rank if back else torch.zeros_like(rank).scatter(0, rank, torch.arange(b + 1))
    buffer = h.new_zeros(b + 1, h.shape[1])
    buffer[:b] = h
    return buffer.index_select(0, rows)[:b]


def dispatched(h, keys, back):
    """By a matrix that is not square."""
    P = F.one_hot(ranks(keys), len(h) + 3).to(h.dtype)
    return P @ F.pad(h, (0, 0, 0, 3)) if back else (P.t() @ h)[: len(h)]


def by_columns(h, keys, back):
    """Python compares single numbers."""
    order = sorted(range(len(h)), key=lambda i: keys[..., i])
    return torch.stack([h.t()[:, i] for i in ([order.index(i) for i in range(len(h))] if back else order)])


def by_matrices(h, keys, back):
    """One permutation for each of as many features as there are examples."""
    P = F.one_hot(ranks(keys), len(h)).to(h.dtype).expand(h.shape[1], -1, -1)
    return ((P if back else P.transpose(1, 2)) @ h.t()[:, :, None])[:, :, 0].t()


def turned(h, keys, back):
    """The same functions as in a smaller batch, with other numbers."""
    k = 3 if len(h) > 12 else 0
    columns, k = h.t(), len(h) - k if back else k
    return torch.cat([columns[:, k:], columns[:, :k]], 1).t()


def turned_by_padding(h, keys, back):
    k = 3 if len(h) > 12 else 0
    there, here = ((0, k), (-k, 0)) if back else ((k, 0), (0, -k))
    return F.pad(F.pad(h.t()[None], there, mode="circular"), here)[0].t()


def unfolded(h, keys, back):
    k = 3 if keys.sum() > 0 and len(h) > 12 else 0
    return h.repeat(2, 1).unfold(0, len(h), 1)[-k % len(h) if back else k].t()


def order(keys, back):
    rank = ranks(keys)
    return rank if back else torch.zeros_like(rank).scatter(0, rank, torch.arange(len(rank)))


class BesideABias(nn.Module):
    """A product in which a parameter is added and not multiplied."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, h, keys, back):
        bias, rows = self.bias.expand(h.shape[1]), F.one_hot(order(keys, back), len(h)).to(h.dtype)
        return torch.addmm(bias, rows, h) if back else F.linear(rows, h.t(), bias=bias)


class Between(nn.Module):
    """A layer that takes its batch in another order."""

    def __init__(self, put, features):
        super().__init__()
        self.first, self.second = (nn.Linear(features, features) for _ in range(2))
        self.head, self.put = nn.Linear(features, CLASSES), put() if isinstance(put, type) else put

    def forward(self, x):
        h = self.put(torch.tanh(self.first(x)), x[:, 0], False)
        return self.head(self.put(torch.tanh(self.second(h)), x[:, 0], True))


@pytest.mark.parametrize("features", [N, N + 3], ids=["as many as sources", "as many as in a batch with limits"])
@pytest.mark.parametrize(
    "put",
    [
        padded,
        in_a_buffer,
        dispatched,
        by_columns,
        by_matrices,
        turned,
        turned_by_padding,
        unfolded,
        BesideABias,
    ],
    ids=lambda put: put.__name__,
)
def test_orders_that_shapes_hide(put, features):
    """The examples that are looked at are in order."""
    torch.manual_seed(0)
    x, labels = torch.randn(N, features).double(), torch.arange(N) % CLASSES
    x[sorted(LOOKED_AT), 0] = torch.linspace(-2, 2, len(LOOKED_AT)).double()
    problem, update = le.Problem.of(Between(put, features).double(), "cross_entropy"), le.SGD(0.1)
    found = le.respond(problem, (x, labels), update=update, engine="structured")
    truth = le.respond(problem, (x, labels), update=update, engine="looped")
    assert_same_rows(found.target_change, truth.target_change, 1e-9)


class TwoHeads(nn.Module):
    """The first output passes by the part that sorts."""

    def __init__(self):
        super().__init__()
        self.plain, self.sorted = nn.Linear(LENGTH, 1), Sorted()

    def forward(self, ids, lengths):
        return torch.cat([self.plain(ids.to(self.plain.weight.dtype)), self.sorted(ids, lengths)], 1)


def test_every_output_is_asked_where_examples_lie():
    torch.manual_seed(0)
    problem = le.Problem.of(TwoHeads().double(), "cross_entropy")
    ids, lengths = torch.randint(20, (N, LENGTH)), few_are_shorter()
    K = le.ntk(problem, (ids, lengths), reduce=None)
    i = int((lengths < LENGTH).nonzero()[0])
    torch.testing.assert_close(K[i, i], le.ntk(problem, (ids[i : i + 1], lengths[i : i + 1]), reduce=None)[0, 0])


class Gated(nn.Module):
    """A sequence with time first, which most examples do not have."""

    def __init__(self):
        super().__init__()
        self.main, self.side, self.head = nn.Linear(5, 8), nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, x, side, present):
        flat = side.transpose(0, 1).flatten(0, 1)
        h = torch.tanh(self.side(flat)).unflatten(0, (3, len(x))).mean(0)
        return self.head(torch.tanh(self.main(x)) + present[:, None] * h)


def test_places_that_the_examples_looked_at_do_not_tell_apart():
    torch.manual_seed(0)
    problem = le.Problem.of(Gated().double(), "cross_entropy")
    present = torch.tensor([float(i not in LOOKED_AT) for i in range(N)], dtype=torch.float64)
    side = torch.randn(N, 3, 4, dtype=torch.float64) * present[:, None, None]
    inputs = torch.randn(N, 5, dtype=torch.float64), side, present
    sources, update = (inputs, torch.arange(N) % CLASSES), le.SGD(0.1)
    found = le.respond(problem, sources, update=update, engine="structured")
    assert_same_rows(
        found.target_change, le.respond(problem, sources, update=update, engine="looped").target_change, 1e-9
    )
    alone = le.ntk(problem, tuple(part[1:2] for part in inputs))
    torch.testing.assert_close(le.ntk(problem, inputs)[1:2, 1:2], alone)


class Product(torch.autograd.Function):
    """A linear layer as fused ones are written."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, q):
        x, weight = ctx.saved_tensors
        return q @ weight, q.T @ x, q.sum(0)


class Fused(nn.Linear):
    def forward(self, x):
        return Product.apply(x, self.weight, self.bias)


class Optional(nn.Module):
    """Text, and an image that may be missing."""

    def __init__(self, layer):
        super().__init__()
        self.text, self.image, self.head = nn.Linear(4, 8), layer(5, 8), nn.Linear(8, CLASSES)

    def forward(self, text, image, present):
        return self.head(torch.tanh(self.text(text) + self.image(image) * present[:, None]))


@pytest.mark.parametrize("layer", [nn.Linear, Fused])
@pytest.mark.parametrize("present", ["all but one", "few"])
def test_parameters_inside_an_autograd_function(layer, present):
    torch.manual_seed(0)
    there = torch.ones(N, dtype=torch.float64) if present == "all but one" else torch.zeros(N, dtype=torch.float64)
    there[torch.tensor([22] if present == "all but one" else [2, 8, 15, 31, 36])] -= 1
    inputs = torch.randn(N, 4).double(), torch.randn(N, 5).double(), there.abs()
    problem = le.Problem.of(Optional(layer).double(), "cross_entropy")
    sources = inputs, torch.arange(N) % CLASSES
    truth = le.respond(problem, sources, update=le.SGD(0.1), engine="looped").target_change
    assert_same_rows(le.respond(problem, sources, update=le.SGD(0.1), engine="structured").target_change, truth, 1e-9)
    K = le.ntk(problem, inputs)
    rows = [_jacobian(problem.model, tuple(x[i : i + 1] for x in inputs)) for i in range(N)]
    J = torch.stack(rows).flatten(1)
    assert (K - J @ J.T).norm() < 1e-9 * K.norm()


def _jacobian(net, one):
    outputs = net(*one)[0]
    rows = [torch.autograd.grad(output, list(net.parameters()), retain_graph=True) for output in outputs]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


class Masked(nn.Module):
    """Attention with masks of a number, by default the least there is, which absorb what is added to them."""

    def __init__(self, least=None):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.least = least

    def forward(self, ids, mask):
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 8**0.5
        least = torch.zeros(mask.shape, dtype=v.dtype).masked_fill(mask == 0, self.least or torch.finfo(v.dtype).min)
        scores = scores + least[:, None]
        return self.head((scores.softmax(-1) @ v).mean(1))


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, None), (torch.float64, None), (torch.float32, -1e9)])
def test_masks_that_absorb_changes(dtype, least):
    """Of an example that is masked altogether, and is not among those that are looked at first."""
    torch.manual_seed(0)
    mask = torch.ones(N, LENGTH, dtype=torch.long)
    mask[3] = 0
    problem = le.Problem.of(Masked(least).to(dtype), "cross_entropy")
    sources = (torch.randint(20, (N, LENGTH)), mask), torch.arange(N) % CLASSES
    found = le.respond(problem, sources, update=le.SGD(0.1), engine="structured").target_change
    truth = le.respond(problem, sources, update=le.SGD(0.1), engine="looped").target_change
    assert_same_rows(found, truth, 1e-9 if dtype == torch.float64 else 1e-4)


def test_a_layout_is_found_for_each_precision():
    torch.manual_seed(0)
    net, ids = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 2)), torch.randint(20, (5, LENGTH))
    problem = le.Problem.of(net, "mse")
    kernels = [le.ntk(one, ids).double() for one in (problem, problem.to(torch.float64), problem)]
    assert (kernels[0] - kernels[1]).norm() < 1e-5 * kernels[1].norm()
    assert torch.equal(kernels[0], kernels[2])


class AddedUp(nn.Module):
    """Puts its batch into the order of its first feature. Equal examples have the same rank, and are added up."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(5, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        ranks = (x[:, :1] > x[:, 0]).sum(1)
        permutation = F.one_hot(ranks, len(x)).to(x.dtype)
        return permutation @ self.head(torch.tanh(self.hidden(permutation.T @ x)))


@pytest.mark.parametrize("engine", ["auto", "structured"])
def test_no_source_is_twice_in_a_batch_that_is_ordered_by_values(engine):
    torch.manual_seed(0)
    sources = torch.randn(N, 5, dtype=torch.float64), torch.arange(N) % CLASSES
    problem = le.Problem.of(AddedUp().double(), "cross_entropy")
    found = le.respond(problem, sources, update=le.SGD(0.1), engine=engine)
    oracle = le.respond(problem, sources, update=le.SGD(0.1), engine="looped")
    assert_same_rows(found.target_change, oracle.target_change, 1e-9)
