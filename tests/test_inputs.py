"""Whatever holds examples is read the same: tensors, arrays, pytrees, a Dataset, a DataLoader."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import local_elasticity as le
from tests.cases import CASE_OF


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


x, y, x2 = torch.randn(9, 3), torch.arange(9) % 2, torch.randn(5, 3)


class Pairs(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, i):
        return x[i], int(y[i])


FORMS = {
    "tensors": ((x, y), x2),
    "arrays": ((x.numpy(), y.numpy()), x2.numpy()),
    "dataset": (TensorDataset(x, y), TensorDataset(x2)),
    "dataset of python labels": (Pairs(), TensorDataset(x2, torch.zeros(5))),
    "loader": (DataLoader(TensorDataset(x, y), batch_size=4), DataLoader(x2, batch_size=2)),
    "double precision": ((x.double(), y), x2.double()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_response(form):
    problem = le.Problem.of(net(), "cross_entropy")
    expected = le.respond(problem, (x, y), x2, engine="looped")
    sources, targets = FORMS[form]
    response = le.respond(problem, sources, targets, engine="looped")
    assert torch.equal(response.target_change, expected.target_change)


def test_a_shuffled_loader_keeps_labels_with_examples_and_leaves_the_random_state():
    problem = le.Problem.of(net(), "cross_entropy")
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    before = torch.get_rng_state()
    S = le.similarity(problem, loader, x2)
    assert torch.equal(torch.get_rng_state(), before)
    order = S["source_class"].values
    assert sorted(order.tolist()) == sorted(y.tolist())
    straight = le.similarity(problem, (x, y), x2)
    for value, label in zip(S.values, order, strict=True):
        nearest = np.abs(straight.values - value).sum(1).argmin()
        assert straight["source_class"].values[nearest] == label


class TokenDicts(Dataset):
    def __init__(self, n):
        self.tokens = torch.randint(0, 7, (n, 5), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        mask = torch.ones(5).double()
        return {"input_ids": self.tokens[i], "attention_mask": mask, "labels": self.tokens[i, 0]}


def test_dicts_with_labels_are_sources():
    case = CASE_OF["language model with tied weights"]
    data = TokenDicts(6)
    from_dataset = le.respond(case.problem(), data, DataLoader(data, batch_size=4))
    inputs = {"input_ids": data.tokens, "attention_mask": torch.ones(6, 5).double()}
    from_tensors = le.respond(case.problem(), (inputs, data.tokens[:, 0]), dict(inputs))
    assert torch.allclose(from_dataset.target_change, from_tensors.target_change)


SAME = {
    "arrays": lambda: 2 * (x.double().numpy(),),
    "tensors of another precision": lambda: 2 * (x.double(),),
    "arrays wrapped twice": lambda: (torch.from_numpy(shared := x.double().numpy()), shared),
}


@pytest.mark.parametrize("form", SAME)
def test_targets_that_are_the_sources_are_known_as_such(form):
    problem = le.Problem.of(net(), "cross_entropy")
    inputs, again = SAME[form]()
    assert le.respond(problem, (inputs, y), again).targets_are_sources
    S = le.similarity(problem, (inputs, y), again)
    assert S.attrs["targets_are_sources"]
    assert S.le.classes().pairs.sum() == 9 * 8


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: DataLoader(data, batch_size=4, shuffle=True)])
def test_one_dataset_may_be_both_sources_and_targets(wrap, tmp_path):
    problem, data = le.Problem.of(net(), "cross_entropy"), wrap(TensorDataset(x, y))
    response = le.respond(problem, data, data)
    assert response.targets_are_sources
    assert torch.equal(response.source_change, response.target_change.diagonal().T)
    for options in ({}, {"store": tmp_path / "S.zarr"}, {"measure": "stiffness_cos"}):
        S = le.similarity(problem, data, data, **options)
        assert S.attrs["targets_are_sources"]
        assert S.le.classes().pairs.sum() == 9 * 8
    assert not le.respond(problem, (x, y), x.clone()).targets_are_sources


def test_odd_datasets_are_refused():
    problem = le.Problem.of(net(), "cross_entropy")
    with pytest.raises(TypeError, match="each item of a Dataset"):
        le.respond(problem, TensorDataset(x))
    with pytest.raises(ValueError, match="empty"):
        le.respond(problem, TensorDataset(x[:0], y[:0]))


def test_losses_by_name_and_by_function_agree():
    by_name = le.respond(le.Problem.of(net(), "cross_entropy"), (x, y), x2)
    by_function = le.respond(le.Problem.of(net(), nn.CrossEntropyLoss(label_smoothing=1e-9)), (x, y), x2)
    assert torch.allclose(by_name.target_change, by_function.target_change)
    assert by_function.kind == "logits"
    soft = le.respond(le.Problem.of(net(), "cross_entropy"), (x, nn.functional.one_hot(y).float()), x2)
    assert torch.allclose(by_name.target_change, soft.target_change, atol=1e-7)
    assert le.Problem.of(net(), lambda outputs, labels: outputs.sum()).kind == "numbers"


@pytest.mark.parametrize(
    ("loss", "formula"), [("mse", lambda f, y: (f - y) ** 2), ("half_mse", lambda f, y: (f - y) ** 2 / 2)]
)
def test_squared_losses_are_what_they_say(loss, formula):
    model = nn.Linear(3, 1).double()
    labels = torch.randn(4).double()
    response = le.respond(le.Problem.of(model, loss), (x[:4].double(), labels))
    f = response.source_before[:, 0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(formula(f, labels).sum(), f)
    assert torch.allclose(response.loss_gradient[:, 0], gradient)


def test_outputs_of_any_shape_are_read_as_k_numbers():
    sequence = nn.Linear(3, 2).double()
    inputs, labels = torch.randn(4, 5, 3).double(), torch.randint(0, 2, (4, 5))
    per_token = lambda outputs, labels: nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())
    response = le.respond(le.Problem.of(sequence, per_token), (inputs, labels))
    assert response.target_change.shape == (4, 4, 10)
    scalar = le.respond(le.Problem.of(sequence, "mse", output=lambda o: o.sum((1, 2))), (inputs, torch.zeros(4)))
    assert scalar.target_change.shape == (4, 4, 1)


def test_batches_of_several_lengths_say_what_to_do():
    """Padding to the longest of each batch leaves batches of several lengths."""

    def collate(items):
        longest = max(len(tokens) for tokens, _ in items)
        padded = [torch.nn.functional.pad(tokens, (0, longest - len(tokens))) for tokens, _ in items]
        return torch.stack(padded), torch.tensor([label for _, label in items])

    data = [(torch.ones(3 + place, dtype=torch.long), place % 2) for place in range(4)]
    net = torch.nn.Sequential(torch.nn.EmbeddingBag(4, 3), torch.nn.Linear(3, 2))
    loader = DataLoader(data, batch_size=2, collate_fn=collate)
    words = r"the batches of the DataLoader hold examples of shape \(4,\) and of \(6,\); pad all to one length"
    with pytest.raises(ValueError, match=words):
        le.similarity(net, loader, loss="cross_entropy")
    with pytest.raises(ValueError, match=words):
        le.similarity(net, (torch.ones(2, 6, dtype=torch.long), torch.tensor([0, 1])), loader, loss="cross_entropy")
    one = DataLoader(data, batch_size=4, collate_fn=collate)
    assert le.similarity(net, one, loss="cross_entropy").shape == (4, 4)
