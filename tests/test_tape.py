"""The tape understands what it should, leaves over what it cannot, and is never fooled by an axis."""

import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.jacobian import every_output, explicit_columns
from local_elasticity.engine.job import Job
from local_elasticity.engine.linearized import LinearizedRunner
from local_elasticity.engine.memory import Live
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.uses import joined
from tests.cases import CASE_OF, CASES, Attention, Recurrent, TokenModel
from tests.test_engines import assert_same_rows


def layout_of(model, inputs, **options):
    problem = le.Problem.of(model.double(), "mse", **options)
    with problem.bound() as bound:
        return Coverage.of(bound, inputs)


class InPlaceRelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, dilation=1)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.relu_(self.norm(torch.relu_(self.conv(x)))).mean((2, 3)))


UNDERSTOOD = {
    "linear": (lambda: nn.Linear(4, 2), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 2, bias=False), (4,)),
    "linear over places": (lambda: nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2), nn.Flatten()), (5, 4)),
    "norms over several axes": (lambda: nn.Sequential(nn.LayerNorm((5, 4)), nn.Flatten(), nn.Linear(20, 2)), (5, 4)),
    "norm of vectors": (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 1)), (4,)),
    "convolutions, in place": (InPlaceRelu, (2, 9, 9)),
    "resnet": (lambda: le.models.ResNet18(2, width=2), (3, 16, 16)),
    "public resnet": (le.models.resnet20, (3, 8, 8)),
    "lstm": (Recurrent, (5, 4)),
    "attention": (Attention, (5, 8)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()), (2, 5, 5)),
    "padding by name": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten()), (2, 5, 5)),
    "a layer met twice": (lambda: Twice(), (4,)),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_common_layers_are_understood(name):
    make, shape = UNDERSTOOD[name]
    model = make()
    coverage = layout_of(model, torch.randn(4, *shape).double())
    assert coverage.unsupported == ()
    assert set(coverage.understood) == {name for name, _ in model.named_parameters()}


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        return torch.einsum("bi,ij,jk->bk", x, self.one, self.other)


LEFT_OVER = {
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, 3), nn.Flatten()),
        torch.randn(4, 2, 5, 5),
        {"0.weight", "0.bias"},
    ),
    "a product of three": (Products, torch.randn(4, 3), {"one", "other"}),
}


@pytest.mark.parametrize("name", LEFT_OVER)
def test_what_is_not_understood_is_left_over(name):
    make, inputs, expected = LEFT_OVER[name]
    assert set(layout_of(make(), inputs.double()).unsupported) == expected


class Twice(nn.Module):
    """One layer used two times."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class SequenceFirst(nn.Module):
    """The linear layer sees [t, b, d], which for t = 3 looks like three examples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return torch.tanh(self.layer(x.transpose(0, 1))).sum(0)


class Flattened(nn.Module):
    """The linear layer sees [b·t, d]."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2]).sum(1)


class Functional(nn.Module):
    """Weights used outside their module, and transformed before use."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return torch.nn.functional.linear(torch.tanh(self.layer(x)), self.other.weight * 2, self.other.bias)


def test_tied_weights_and_those_that_are_computed_are_understood():
    x = torch.randn(4, 4).double()
    assert layout_of(Functional(), x).unsupported == ()
    assert layout_of(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), x).unsupported == ()
    tokens = {"input_ids": torch.randint(0, 7, (4, 5)), "attention_mask": torch.ones(4, 5).double()}
    assert layout_of(TokenModel(), tokens, output=lambda out: out["logits"]).unsupported == ()


@pytest.mark.parametrize("t", [1, 2, 3, 4])
@pytest.mark.parametrize("model", [SequenceFirst, Flattened])
def test_another_first_axis_is_noticed(model, t):
    net, x = model().double(), torch.randn(5, t, 4).double()
    problem = le.Problem.of(net, "mse")
    expected = le.respond(problem, (x, torch.randn(5, 2)), update=le.SGD(1e-7), engine="looped")
    got = le.respond(problem, (x, torch.zeros(5, 2)), update=le.SGD(1e-7), engine="linearized")
    theta = le.ntk(problem, x)
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(o, list(net.parameters()), retain_graph=True)])
        for one in x
        for o in net(one[None])[0]
    ]
    J = torch.stack(rows).reshape(5, 2, -1).flatten(1)
    assert torch.allclose(theta, J @ J.T)
    assert got.target_change.shape == expected.target_change.shape


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("memory", [None, 200_000])
def test_understood_or_left_over_the_response_is_the_same(case, memory, monkeypatch):
    """With the tape switched off, everything is left over; nothing changes."""
    problem = case.problem()
    with_tape = le.respond(problem, case.sources, (case.targets, None), engine="linearized", memory=memory)
    monkeypatch.setattr("local_elasticity.engine.tape.READERS", {})
    monkeypatch.setattr("local_elasticity.engine.coverage._coverages", ModelCache())
    without = le.respond(problem, case.sources, (case.targets, None), engine="linearized", memory=memory)
    assert torch.allclose(with_tape.target_change, without.target_change, rtol=1e-9, atol=1e-15)
    assert torch.allclose(with_tape.source_change, without.source_change, rtol=1e-9, atol=1e-15)


def test_linear_layers_are_never_multiplied_out():
    case = CASE_OF["relu net, squared loss"]
    with case.problem().bound() as bound:
        coverage = Coverage.of(bound, case.targets)
        assert explicit_columns(bound, coverage) == 0
    case = CASE_OF["cnn with batch norm and dropout"]
    with case.problem().bound() as bound:
        coverage = Coverage.of(bound, case.targets)
        assert explicit_columns(bound, coverage) == 4 * 9 + 4 + 4 + 4


def test_steps_of_a_recurrent_layer_are_one_product():
    """Their gradients are summed in one product, and not multiplied out for every output before they meet others."""
    net, x = Recurrent().double(), torch.randn(6, 5, 4).double()
    problem, sources = le.Problem.of(net, "cross_entropy"), (x, torch.arange(6) % 2)
    with problem.bound() as bound:
        tape = Coverage.of(bound, x).record(bound, x)
        uses = list(zip(tape.uses, tape.gradients_at_uses(every_output(tape)), strict=True))
        recurrent = [(use, q) for use, q in uses if any("weight_hh" in name for name in use.names)]
        (one,) = joined(recurrent)
        assert len(recurrent) == 5
        for name, part in one[0].gradients(one[1]).items():
            assert torch.allclose(part, sum(use.gradients(q)[name] for use, q in recurrent), rtol=1e-12)
        runner = LinearizedRunner(Job.read(bound, sources, None, le.SGD(1e-7)))
        found = runner.rows(0, 6).target_change
        assert not any("weight" in name for name in runner.kept.explicit)
    assert_same_rows(found, le.respond(problem, sources, update=le.SGD(1e-7), engine="looped").target_change, 1e-4)


class Transposed(nn.Module):
    """Weights that have their inputs on the first axis, as those of GPT-2."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.randn(6, 3))

    def forward(self, x):
        return torch.tanh(x @ self.first) @ self.last


def test_an_optimizer_steps_transposed_weights_entry_by_entry():
    net, x, y = Transposed().double(), torch.randn(5, 8).double(), torch.randn(5, 3).double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    for update in (le.FromOptimizer(optimizer), le.SGD(1e-7, weight_decay=0.1)):
        found, wanted = (
            le.respond(le.Problem.of(net, "mse"), (x, y), update=update, engine=engine).target_change
            for engine in ("linearized", "looped")
        )
        assert_same_rows(found, wanted, 1e-4)


def test_frozen_parts_of_a_layer_do_not_count():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = torch.randn(6, 4).double(), torch.randn(6, 2).double()
    for params in ("bias", "weight", "^0", "2.bias"):
        problem = le.Problem.of(net, "mse", params=params)
        exact = le.respond(problem, (x, y), update=le.SGD(1e-6)).target_change
        limit = le.respond(problem, (x, y), update=le.SGD(1e-6), engine="linearized").target_change
        assert torch.allclose(limit, exact, rtol=1e-4, atol=1e-12)


class InPieces(nn.Module):
    """A head, or the whole net, that takes a large batch in pieces of four."""

    def __init__(self, whole):
        super().__init__()
        self.body, self.head, self.whole = nn.Sequential(nn.Linear(3, 6), nn.Tanh()), nn.Linear(6, 2), whole

    def forward(self, x):
        if self.whole:
            return torch.cat([self.head(self.body(piece)) for piece in x.split(4)])
        return torch.cat([self.head(piece) for piece in self.body(x).split(4)])


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("whole", [False, True])
def test_a_batch_taken_in_pieces_is_measured_right(whole):
    """Three examples meet a parameter once, a larger batch meets it in pieces; nothing may be lost."""
    problem = le.Problem.of(InPieces(whole).double(), "half_mse")
    x, y = torch.randn(30, 3).double(), torch.randn(30, 2).double()
    expected = le.respond(problem, (x, y), engine="looped").target_change
    for _ in range(2):
        response = le.respond(problem, (x, y))
        assert_same_rows(response.target_change, expected)
    assert "as chosen before" in response.notes[0]
    found = le.respond(problem, (x, y), engine="structured")
    assert_same_rows(found.target_change, expected)
    small = le.SGD(1e-7)
    expected = le.respond(problem, (x, y), update=small, engine="looped").target_change
    found = le.respond(problem, (x, y), update=small, engine="linearized").target_change
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-13)
    one_by_one = torch.stack([torch.cat([le.ntk(problem, a[None], b[None])[0] for b in x]) for a in x[:3]])
    assert torch.allclose(le.ntk(problem, x)[:3], one_by_one)
    assert torch.allclose(le.stiffness(problem, (x, y)).diagonal(), torch.ones(30).double())


class RarelyMasked(nn.Module):
    """A parameter that most batches do not meet, in a function that the tape does not read."""

    def __init__(self):
        super().__init__()
        self.first, self.token, self.head = nn.Linear(4, 6), nn.Parameter(torch.randn(6)), nn.Linear(6, 3)

    def forward(self, x):
        h, mask = torch.tanh(self.first(x)), x[:, :1] > 2
        return self.head(torch.where(mask, self.token, h) if mask.any() else h)


class Ragged(nn.Module):
    """Examples of several lengths, side by side without padding."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(1, 6), nn.Linear(6, 2)

    def forward(self, x):
        there = x > 0
        rows = torch.nonzero(there)[:, 0]
        h = torch.tanh(self.embed(x[there][:, None]))
        belongs = torch.nn.functional.one_hot(rows, len(x)).to(x.dtype)
        return self.head(torch.einsum("ln,ld->nd", belongs, h))


@pytest.mark.parametrize("engine", ["auto", "structured", "linearized"])
@pytest.mark.parametrize("model", [RarelyMasked, Ragged])
def test_what_the_first_examples_do_not_show_is_not_lost(model, engine):
    """Neither in the same call nor after one in which nothing of it was seen."""
    torch.manual_seed(0)
    problem = le.Problem.of(model().double(), "cross_entropy")
    plain = torch.rand(24, 4).double() + 0.1
    odd = plain.clone()
    if model is Ragged:
        odd[3, 1:], odd[5, 2:] = -1, -1
    else:
        odd[[3, 5, 10], 0] = 3
    labels = torch.arange(24) % 2
    for x in (plain, odd):
        found = le.respond(problem, (x, labels), update=le.SGD(1e-7), engine=engine).target_change
        expected = le.respond(problem, (x, labels), update=le.SGD(1e-7), engine="looped").target_change
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-13)


class BothWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 2)

    def forward(self, x):
        linear = torch.nn.functional.linear
        return self.head(torch.tanh(linear(torch.tanh(linear(x, self.weight)), self.weight.t())))


def test_a_weight_and_what_is_made_of_it_are_one():
    net, x = BothWays().double(), torch.randn(5, 4).double()
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(o, list(net.parameters()), retain_graph=True)])
        for one in x
        for o in net(one[None])[0]
    ]
    J = torch.stack(rows).reshape(5, 2, -1).flatten(1)
    problem = le.Problem.of(net, "cross_entropy")
    assert torch.allclose(le.ntk(problem, x), J @ J.T)
    sources, small = (x, torch.arange(5) % 2), le.SGD(1e-7)
    found = le.respond(problem, sources, update=small, engine="linearized").target_change
    assert torch.allclose(found, le.respond(problem, sources, update=small, engine="looped").target_change, rtol=1e-4)


@pytest.mark.parametrize("engine", ["structured", "linearized"])
def test_one_target_does_not_say_where_examples_are(engine):
    torch.manual_seed(0)
    problem = le.Problem.of(SequenceFirst().double(), "mse")
    x, y = torch.randn(6, 6, 4).double(), torch.randn(6, 2).double()
    for targets in ((x[:1], None), (x, None)):
        found = le.respond(problem, (x, y), targets, update=le.SGD(1e-7), engine=engine).target_change
        expected = le.respond(problem, (x, y), targets, update=le.SGD(1e-7), engine="looped").target_change
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-13)


@pytest.mark.parametrize("engine", [le.Structured(), le.Linearized()], ids=str)
def test_steps_that_are_written_out_fit_the_memory(engine):
    net = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
    memory = 2**24
    with le.Problem.of(net, "cross_entropy").bound() as bound:
        sources = torch.randn(100, 4), torch.arange(100) % 2
        job = Job.read(bound, sources, torch.randn(5, 4), le.Adam(1e-3), memory=memory)
        runner = engine.runner(job)
        with Live() as live:
            runner.rows(0, runner.chunk)
    assert live.most < 1.5 * memory
