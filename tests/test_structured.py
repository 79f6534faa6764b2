"""Structured: exact on any network it can read, at any step size, in float32 too; and plain about what it cannot."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

import local_elasticity as le
from local_elasticity.engine.fast_paths.two_layer import TwoLayerRunner
from local_elasticity.engine.job import Job
from local_elasticity.engine.memory import Live
from local_elasticity.engine.structured import StructuredRunner, readable, two_layer_runner
from tests.random_cases import random_cases
from tests.test_engines import assert_same_rows
from tests.tolerances import RESOLVED_ERROR, SAME_IN_FLOAT64, STRUCTURED_IN_FLOAT32

ACTIVATIONS = [
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    lambda: nn.LeakyReLU(0.2),
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    lambda: nn.GELU(approximate="tanh"),
    nn.SiLU,
    nn.ELU,
    nn.Softplus,
    nn.Hardtanh,
    nn.ReLU6,
    nn.Identity,
]


class Residual(nn.Module):
    """x + scale · block(x), with an in-place sum."""

    def __init__(self, block, in_place):
        super().__init__()
        self.block, self.in_place = block, in_place

    def forward(self, x):
        out = self.block(x)
        if self.in_place:
            out = out * 1
            out += x
            return out
        return x + 0.5 * out


def _activation(draw):
    return draw(st.sampled_from(ACTIVATIONS))()


@st.composite
def networks(draw):
    """Fully connected or convolutional, of random depth, width, activation, pooling, norm and shortcuts."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    layers: list[nn.Module] = []
    if draw(st.booleans()):
        channels, size = draw(st.integers(1, 3)), draw(st.integers(6, 9))
        shape = (channels, size, size)
        for _ in range(draw(st.integers(1, 2))):
            out, kernel = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 3]))
            options = {
                "stride": draw(st.sampled_from([1, 2])),
                "padding": draw(st.integers(0, 1)),
                "bias": draw(st.booleans()),
                "dilation": draw(st.sampled_from([1, 2])) if kernel == 2 else 1,
            }
            layers.append(nn.Conv2d(channels, out, kernel, **options))
            if draw(st.booleans()):
                norm = nn.BatchNorm2d(out)
                norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
                layers.append(norm)
            layers.append(_activation(draw))
            if draw(st.booleans()):
                layers.append(Residual(nn.Conv2d(out, out, 3, padding=1), draw(st.booleans())))
            channels = out
        pooling = [
            lambda: nn.MaxPool2d(2, ceil_mode=False),
            lambda: nn.MaxPool2d(2, 1, padding=1),
            lambda: nn.AvgPool2d(2, 1),
        ]
        layers += [draw(st.sampled_from([*pooling, nn.Identity]))(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        width = 4 * channels
    else:
        width = draw(st.integers(1, 6))
        shape = (width,)
    for _ in range(draw(st.integers(0, 3))):
        out = draw(st.integers(1, 12))
        layers += [nn.Linear(width, out, bias=draw(st.booleans())), _activation(draw), nn.Dropout(0.3)]
        if draw(st.booleans()):
            layers.append(Residual(nn.Sequential(nn.Linear(out, out), _activation(draw)), draw(st.booleans())))
        width = out
    outputs = draw(st.integers(1, 3))
    layers.append(nn.Linear(width, outputs))
    if draw(st.booleans()):
        layers.append(nn.Sigmoid())
    return nn.Sequential(*layers).double(), shape, outputs


def _fits(net, shape):
    try:
        net.eval()(torch.zeros(1, *shape).double())
    except RuntimeError:
        return False
    return True


@random_cases(
    50, 300, networks(), st.sampled_from([1e-7, 1e-3, 0.3, 5.0]), st.sampled_from([0.0, 0.1]), st.integers(1, 2)
)
def test_random_architectures_agree_with_the_loop(drawn, step_size, decay, batch):
    """For steps small and large enough to flip many units, in float64."""
    net, shape, outputs = drawn
    if not _fits(net, shape):
        return
    x, y, x2 = torch.randn(4, *shape).double(), torch.randn(4, outputs).double(), torch.randn(3, *shape).double()
    problem, update = le.Problem.of(net, "half_mse"), le.SGD(step_size, weight_decay=decay)
    with problem.bound() as bound:
        job = Job.read(bound, (x, y), x2, update, source_batch_size=batch)
        found = StructuredRunner(job).rows(0, job.n)
    expected = le.respond(problem, (x, y), x2, update=update, engine="looped", source_batch_size=batch)
    rounding = 1e-12 * max(1.0, float(expected.target_before.abs().max()))
    for got, wanted in (
        (found.target_change, expected.target_change),
        (found.source_change.reshape(expected.source_change.shape), expected.source_change),
    ):
        error = (got - wanted).flatten(1).norm(dim=1)
        assert (error <= SAME_IN_FLOAT64 * wanted.flatten(1).norm(dim=1) + rounding).all()


@random_cases(20, 100, networks(), st.sampled_from([1e-7, 1e-3, 0.3]), st.sampled_from([0.0, 0.1]))
def test_random_architectures_are_right_in_float32(drawn, step_size, decay):
    """What is called resolved in float32 is what the loop finds in float64."""
    net, shape, outputs = drawn
    if not _fits(net, shape):
        return
    problem, update = le.Problem.of(net.float(), "half_mse"), le.SGD(step_size, weight_decay=decay)
    sources, x2 = (torch.randn(6, *shape), torch.randn(6, outputs)), torch.randn(5, *shape)
    found = le.relative(le.respond(problem, sources, x2, update=update, engine="structured")).double()
    wanted = le.relative(le.respond(problem.to(torch.float64), sources, x2, update=update, engine="looped"))
    known = found.isfinite() & wanted.isfinite()
    assert ((found - wanted).abs() / wanted.clamp_min(1))[known].le(RESOLVED_ERROR).all()


@random_cases(
    40,
    100,
    st.integers(1, 40),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1e-7, 1e-3, 0.3, 30.0]),
    st.sampled_from([".*", "^1", "^3", "weight", "bias", "3.bias"]),
    st.integers(0, 2**31),
)
def test_random_two_layer_nets_agree_with_the_loop(width, outputs, relu, sigmoid, step_size, params, seed):
    """Any width, both activations, with and without a sigmoid, any part stepping."""
    torch.manual_seed(seed)
    net = le.models.fnn(4, outputs, width=width, activation="relu" if relu else "linear", probability=sigmoid).double()
    x, x2 = torch.randn(5, 4).double(), torch.randn(3, 4).double()
    problem = le.Problem.of(net, "bce" if sigmoid else "half_mse", params=params)
    sources = x, torch.rand(5, outputs).double()
    with problem.bound() as bound:
        job = Job.read(bound, sources, x2, le.SGD(step_size))
        found = TwoLayerRunner(job).rows(0, 5)
    expected = le.respond(problem, sources, x2, update=le.SGD(step_size), engine="looped")
    error = (found.target_change - expected.target_change).flatten(1).norm(dim=1)
    rounding = 1e-14 * max(1.0, float(expected.target_before.abs().max()))
    assert (error <= SAME_IN_FLOAT64 * expected.target_change.flatten(1).norm(dim=1) + rounding).all()


NETS = {
    "two layers": (lambda: le.models.fnn(64, width=2048), "half_mse"),
    "two layers, sigmoid": (lambda: le.models.fnn(64, width=2048, probability=True), "bce"),
    "three layers": (lambda: le.models.fnn(64, 3, width=256, layers=3), "cross_entropy"),
    "residual cnn": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 8, 8)), le.models.ResNet18(3, channels=1, width=4)),
        "cross_entropy",
    ),
    "cnn with norm": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(72, 3),
        ),
        "cross_entropy",
    ),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("step_size", [1e-8, 1e-6, 1e-4, 1e-2, 1e-1])
@pytest.mark.parametrize("trained", [False, True])
def test_float32_is_as_good_as_float64(name, step_size, trained):
    """Where the loop returns noise: error against float64, relative to the row's norm, at every step size."""
    make, loss = NETS[name]
    net = make()
    x, digits = le.data.load("digits").take([3, 8], per_class=10)
    x, y = x.flatten(1), (digits == 3).long() if loss == "cross_entropy" else (digits == 3).float()
    problem = le.Problem.of(net, loss)
    if trained:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(20):
            optimizer.zero_grad()
            problem.loss(net(x), y).backward()
            optimizer.step()
    update = le.SGD(step_size)
    low = le.respond(problem, (x, y), update=update, engine="structured")
    high = le.respond(problem.to(torch.float64), (x, y), update=update, engine="structured")
    got, wanted = (_per_own_change(response) for response in (low, high))
    error = (got - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    turned = 0 if low.loss_gradient.shape[1] == 1 else 1e-6 / high.loss_gradient.norm(dim=1)
    saturated = 5e-7 * high.target_before.logit().abs().max() if loss == "bce" else 0
    assert (error < STRUCTURED_IN_FLOAT32 + turned + saturated).all()


@pytest.mark.parametrize("residual", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_two_layer_nets_keep_the_size_of_the_change_too(residual, loss):
    """The loss gradient f − y of a trained net is a small difference; it is not taken in float32."""
    torch.manual_seed(0)
    net = le.models.fnn(64, width=512, probability=loss == "bce")
    x = torch.randn(10, 64)
    with torch.no_grad():
        y = (net(x)[:, 0] + residual * torch.linspace(-1, 1, 10)).clamp(0, 1 if loss == "bce" else None)
    problem = le.Problem.of(net, loss)
    low = le.respond(problem, (x, y), update=le.SGD(1e-3), engine="structured")
    high = le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1e-3), engine="structured")
    error = (low.target_change - high.target_change).flatten(1).norm(dim=1)
    assert (error < STRUCTURED_IN_FLOAT32 * high.target_change.flatten(1).norm(dim=1)).all()


def _per_own_change(response):
    """Changes in units of the source's own, free of the rounding of the size of a gradient; its turning remains."""
    return response.target_change.double() / response.source_change.double().norm(dim=1)[:, None, None]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: le.models.ResNet18(3), (3, 32, 32)),
        (le.models.resnet20, (3, 16, 16)),
        (lambda: nn.Sequential(le.models.cnn(3), nn.Identity()), (1, 28, 28)),
    ],
)
def test_the_papers_networks_run_in_structured_itself(make, shape):
    net = make().double().train()
    x, y = torch.randn(3, *shape).double(), torch.tensor([0, 1, 2])
    response = le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=le.SGD(1e-2), engine="structured")
    assert response.engine == "structured"
    looped = le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=le.SGD(1e-2), engine="looped")
    assert_same_rows(response.target_change, looped.target_change)


def test_two_layer_nets_take_the_short_way():
    problem = le.Problem.of(le.models.fnn(4, width=8).double(), "mse")
    sources = torch.randn(9, 4).double(), torch.randn(9).double()
    assert "two-layer" in le.respond(problem, sources).notes[0]
    for sized in (None, 4000):
        with problem.bound() as bound:
            runner = two_layer_runner(Job.read(bound, sources, None, le.SGD(0.1), memory=sized))
            assert isinstance(runner, TwoLayerRunner)
    deeper = le.Problem.of(le.models.fnn(4, width=8, layers=3).double(), "mse")
    with deeper.bound() as bound:
        assert two_layer_runner(Job.read(bound, sources, None, le.SGD(0.1))) is None


@pytest.mark.parametrize("memory", [3000, 20_000, 200_000])
def test_blocks_do_not_matter(memory):
    for net in (le.models.fnn(4, 2, width=30), le.models.fnn(4, 2, width=30, layers=3)):
        problem = le.Problem.of(net.double(), "mse")
        sources, x2 = (torch.randn(11, 4).double(), torch.randn(11, 2).double()), torch.randn(7, 4).double()
        whole = le.respond(problem, sources, x2, engine="structured", update=le.SGD(0.1))
        blocks = le.respond(problem, sources, x2, engine="structured", update=le.SGD(0.1), memory=memory)
        assert_same_rows(blocks.target_change, whole.target_change)
        assert_same_rows(blocks.source_change, whole.source_change)


class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.sort(self.first(x), dim=1).values)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)

    def forward(self, x):
        out = self.first(x)
        return out * 2 if out.sum() > 0 else out


def test_a_network_that_branches_has_its_gradients_one_by_one():
    problem = le.Problem.of(Branches().double(), "mse")
    sources = torch.randn(40, 3).double(), torch.randn(40, 2).double()
    found, wanted = (le.respond(problem, sources, engine=le.Looped(gradients_at_once=n)) for n in (8, 1))
    assert torch.equal(found.target_change, wanted.target_change)


@pytest.mark.parametrize("memory", [2**24, 2**26])
@pytest.mark.parametrize("make", [le.models.cnn, lambda: le.models.ResNet18(1, channels=1, width=8)])
def test_chunks_on_a_gpu_fill_the_memory_and_no_more(make, memory, monkeypatch):
    """Where no cache limits a tile, what rows take is measured; here the CPU stands for such a device."""
    monkeypatch.setattr("local_elasticity.engine.structured.TILE_BYTES", {})
    x, y = torch.randn(200, 1, 28, 28), torch.randn(200)
    with le.Problem.of(make(), "mse").bound() as bound:
        runner = StructuredRunner(Job.read(bound, (x, y), x[:20], le.SGD(0.1), memory=memory))
        assert 1 < runner.chunk < 200
        with Live() as live:
            chunked = runner.rows(0, runner.chunk).target_change
        assert 0.5 * memory < live.most < 0.8 * memory
        one_by_one = [runner.rows(i, i + 1).target_change for i in range(3)]
    assert torch.allclose(chunked[:3], torch.cat(one_by_one), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), Sorted()), "cannot read sort in 1 .Sorted., test_structured.py line "),
        (Branches, "cannot read .* in the model .Branches."),
    ],
)
def test_what_cannot_be_read_is_named_and_auto_goes_on(make, words, caplog):
    net = make().double()
    sources = torch.randn(40, 3).double(), torch.randn(40, 2).double()
    problem = le.Problem.of(net, "mse")
    with pytest.raises(ValueError, match=words):
        le.respond(problem, sources, engine="structured")
    response = le.respond(problem, sources)
    assert_same_rows(response.target_change, le.respond(problem, sources, engine="looped").target_change)


@pytest.mark.usefixtures("racing")
def test_auto_says_every_time_why_it_is_not_structured():
    problem = le.Problem.of(Sorted().double(), "mse")
    sources = torch.randn(40, 3).double(), torch.randn(40, 2).double()
    for _ in range(2):  # by a race, and as remembered
        notes = le.respond(problem, sources).notes
        assert any("not structured (engine: Structured cannot read sort" in note for note in notes)


class Unlucky(nn.Module):
    """Reads like a linear layer, but the weights are changed behind its back when activations are watched."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.second(hidden if type(x) is torch.Tensor else hidden * 1.01)


def test_a_net_that_behaves_otherwise_is_found_out():
    """The proof against the loop refuses what the rules would get wrong."""
    sources = torch.randn(5, 3).double(), torch.randn(5, 2).double()
    with pytest.raises(ValueError, match="differs from the loop"):
        le.respond(le.Problem.of(Unlucky().double(), "mse"), sources, engine="structured")


class WithConstant(nn.Module):
    """Joins its hidden units with a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(7, 2)
        self.register_buffer("constant", torch.zeros(2))

    def forward(self, x):
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.third(torch.cat([hidden, self.constant.expand(len(x), 2)], 1))


def test_constants_beside_activations_do_not_change():
    """Also where they were zero when the net was first seen, and where the output function has one."""
    net, x, y = WithConstant().double(), torch.randn(6, 3).double(), torch.randn(6, 2).double()
    for value in (0.0, 1.0):
        net.constant.fill_(value)
        problem = le.Problem.of(net, "half_mse")
        expected = le.respond(problem, (x, y), engine="looped", update=le.SGD(0.1)).target_change
        found = le.respond(problem, (x, y), engine="structured", update=le.SGD(0.1)).target_change
        assert_same_rows(found, expected)
    five = torch.full((1, 1), 5.0).double()
    problem = le.Problem.of(net, "half_mse", output=lambda out: torch.cat([out[:, :1], five.expand(len(out), 1)], 1))
    found = le.respond(problem, (x, y), engine="structured", update=le.SGD(0.1)).target_change
    assert not found[..., 1].any()


class Indicator(nn.Module):
    """A branch for examples with a rare token, which a mask switches on."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.words, self.rare, self.head = nn.Embedding(10, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, tokens):
        h = self.words(tokens).mean(1)
        return self.head(torch.tanh(h) + self.how((tokens == 9).any(1, keepdim=True), h) * torch.tanh(self.rare(h)))


CASTS = [
    lambda mask, h: mask.to(h),
    lambda mask, h: mask.type_as(h),
    lambda mask, h: mask.expand_as(h).to(h.dtype),
    lambda mask, h: mask.long().expand(h.shape).view_as(h).to(h),
]


@pytest.mark.parametrize("how", CASTS)
def test_a_mask_that_is_cast_to_an_activation_does_not_change(how):
    """Also where no pair of those that are compared with the loop has what it masks."""
    torch.manual_seed(0)
    net, tokens, labels = Indicator(how).double(), torch.randint(0, 9, (40, 4)), torch.arange(40) % 3
    tokens[17, 2] = 9
    found, expected = (
        le.respond(net, (tokens, labels), loss="cross_entropy", engine=engine, update=le.SGD(0.1)).target_change
        for engine in ("structured", "looped")
    )
    assert_same_rows(found, expected)


def test_zero_gradients_and_overflowing_steps_are_rows_without_values():
    net = le.models.fnn(3, width=6).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        y = net(x)[:, 0]
        y[1:] += 1
    S = le.similarity(le.Problem.of(net, "half_mse"), (x, y), engine="structured")
    assert S[0].isnull().all()
    assert S[1:].notnull().all()
    huge = le.similarity(le.Problem.of(net, "half_mse"), (x, y), engine="structured", update=le.SGD(1e30))
    assert huge.isnull().any()
    assert huge.attrs["unresolved"] > 0


def test_functional_relu_and_pooling_with_padding():
    """Padding with minus infinity does not leak into differences."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(F.max_pool2d(F.relu(self.conv(x)), 3, 2, 1).mean((2, 3)))

    problem = le.Problem.of(Net().double(), "mse")
    sources = torch.randn(4, 1, 7, 7).double(), torch.randn(4, 2).double()
    got = le.respond(problem, sources, engine="structured", update=le.SGD(0.5))
    assert_same_rows(got.target_change, le.respond(problem, sources, engine="looped", update=le.SGD(0.5)).target_change)


def test_gradients_so_large_that_the_trial_step_drowns_in_its_own_rounding():
    """As those of a net that is about to diverge: it is then proved at the step that was asked for."""
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 1, bias=False)).double()
    with torch.no_grad():
        net[2].weight.abs_()
    x, y = torch.rand(5, 6, dtype=torch.float64), torch.full((5,), -1e13, dtype=torch.float64)
    problem, update = le.Problem.of(net, "half_mse"), le.SGD(1e-14)
    found = le.respond(problem, (x, y), update=update, engine="structured").target_change
    expected = le.respond(problem, (x, y), update=update, engine="looped").target_change
    assert (found - expected).norm() <= 1e-10 * expected.norm()


def test_a_model_that_wants_its_numbers_in_order():
    """`view` after a convolution, whose differences have their channels last."""

    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.top = nn.Conv2d(2, 3, 3), nn.Linear(3 * 16, 2)

        def forward(self, x):
            return self.top(torch.relu(self.conv(x)).view(len(x), -1))

    problem = le.Problem.of(Viewed().double(), "cross_entropy")
    sources = torch.randn(5, 2, 6, 6, dtype=torch.float64), torch.arange(5) % 2
    found = le.respond(problem, sources, update=le.SGD(0.1), engine="structured")
    expected = le.respond(problem, sources, update=le.SGD(0.1), engine="looped")
    assert found.engine == "structured"
    assert (found.target_change - expected.target_change).norm() <= 1e-10 * expected.target_change.norm()


def test_every_function_that_is_read_is_listed_as_users_write_it():
    """The page lists these; `test_documentation` compares the two."""
    found = {name for names in readable().values() for name in names}
    assert found >= {"relu", "conv2d", ".T", ".mT", ".mH", "view", "view_as", "+=", "add_", "copy_", "x[i] = y", "lstm"}
    assert not [name for name in found if "__" in name or name in ("get", "set", "copied")]


def test_prelu_at_its_kink_takes_the_gradient_that_torch_takes():
    """Where a ReLU gives 0 and a batch norm keeps it, the derivative of PReLU is that of its negative side."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.PReLU(), nn.Linear(6, 1)]
    problem = le.Problem.of(nn.Sequential(*layers).double().eval(), "half_mse")
    sources = torch.randn(6, 4).double(), torch.randn(6, 1).double()
    found, wanted = (
        le.respond(problem, sources, update=le.SGD(1e-2), engine=engine).target_change
        for engine in ("structured", "looped")
    )
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-14)


def weighted():
    weight = torch.tensor([1.0, 2.0, 3.0])
    return lambda outputs, labels: nn.functional.cross_entropy(outputs, labels, weight=weight)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), weighted()])
@pytest.mark.parametrize("size", [1, 5, 20])
@pytest.mark.parametrize("step_size", [1e-2, 1e-6])
def test_a_loss_in_float32_of_a_two_layer_net(loss, size, step_size):
    """Its gradient cannot be computed at predictions in float64."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        net[2].weight.mul_(size)
    x = torch.randn(20, 4)
    y = (net(x).argmax(1) + (torch.arange(20) % 5 == 0)) % 3
    problem, update = le.Problem.of(net, loss), le.SGD(step_size)
    exact = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update, engine="looped"))
    for engine in ("auto", "structured"):
        S = le.relative(le.respond(problem, (x, y), update=update, engine=engine))
        known = S.isfinite()
        assert known.double().mean() > 0.5
        assert (((S - exact).abs() / exact.clamp_min(1))[known] < RESOLVED_ERROR).all()


def test_vmap_is_checked_for_each_loss_of_the_users():
    net, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3

    def from_one_hot(outputs, labels):
        return -(outputs.log_softmax(1) * nn.functional.one_hot(labels, 3)).sum(1).mean()

    le.respond(net, (x, y), loss=nn.CrossEntropyLoss(label_smoothing=0.1), engine="vmapped")
    with pytest.raises(ValueError, match="engine: Vmapped could not be checked"):
        le.respond(net, (x, y), loss=from_one_hot, engine="vmapped")


@pytest.mark.parametrize("written", ["net", "transformer", "convolutions"])
def test_split_products_are_computed_on_a_cpu_too(written):
    """With the rounding that they have on tensor cores; the default is float32."""
    torch.manual_seed(0)
    nets = {
        "net": lambda: (nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3)), 6),
        "transformer": lambda: (
            nn.Sequential(
                nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, activation=F.gelu),
                nn.Flatten(),
                nn.Linear(40, 3),
            ),
            (5, 8),
        ),
        "convolutions": lambda: (
            nn.Sequential(
                nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 3)
            ),
            (2, 8, 8),
        ),
    }
    net, shape = nets[written]()
    sources = torch.randn(10, *((shape,) if isinstance(shape, int) else shape)), torch.arange(10) % 3
    problem, update = le.Problem.of(net, "cross_entropy"), le.SGD(0.01)
    truth = le.respond(problem.to(torch.float64), sources, update=update, engine="structured").target_change
    engines = {name: le.Structured(name) for name in ("split_bf16", "float32")} | {"default": "structured"}
    found = {
        name: le.respond(problem, sources, update=update, engine=engine).target_change
        for name, engine in engines.items()
    }
    errors = {name: float((one - truth).norm() / truth.norm()) for name, one in found.items()}
    assert 1e-7 < errors["split_bf16"] < 1e-4
    assert errors["split_bf16"] > 3 * errors["float32"]
    assert torch.equal(found["default"], found["float32"])


def test_a_write_to_places_that_are_not_side_by_side_is_refused():
    class Scattered(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.head = nn.Linear(4, 3), nn.Linear(15, 3)

        def forward(self, x):
            made = x.new_zeros(len(x), 3, 5)
            made[torch.arange(len(x)), :, (x[:, 0].abs() * 3).long() % 5] = self.a(x)
            return self.head(torch.tanh(made).flatten(1))

    torch.manual_seed(0)
    net, x, y = Scattered(), torch.randn(8, 4), torch.arange(8) % 3
    for n in (1, 8):
        with pytest.raises(ValueError, match="a write to places that tensors name"):
            le.respond(net, (x[:n], y[:n]), loss="cross_entropy", engine="structured")


class Branching(nn.Module):
    """Computes something else where gradients are on."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x) + (0 if torch.is_grad_enabled() else 1)


def test_predictions_before_the_step_are_those_without_gradients():
    net, x, y = Branching(), torch.randn(6, 4), torch.arange(6) % 3
    found = le.respond(le.Problem.of(net, "cross_entropy"), (x, y), engine="structured").target_before
    with torch.no_grad():
        torch.testing.assert_close(found, net(x))


class FirstComeFirstServed(nn.Module):
    """Leaves the later ones of many positive examples out."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        served = (h[:, :1] > -2).cumsum(0) <= 10
        return self.last(h * served)


def test_a_dependence_on_the_batch_is_found_in_every_call():
    problem, x, y = le.Problem.of(FirstComeFirstServed(), "cross_entropy"), torch.randn(12, 4), torch.arange(12) % 3
    for _ in range(3):
        with pytest.raises(ValueError, match="changes with the other examples in its batch"):
            le.respond(problem, (x, y))
