"""On a CUDA device: the same answers as on the CPU, full precision while measuring, settings restored."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

import local_elasticity as le
from local_elasticity.engine.difference import Difference
from local_elasticity.engine.fast_paths.flips import flips
from local_elasticity.engine.fast_paths.kernels import kernels_for
from local_elasticity.engine.products import SPLIT_ROUNDING, Splits, Term, by_parts, total_of
from local_elasticity.engine.rules.layers import through
from local_elasticity.engine.uses import each_axis
from local_elasticity.training.language import sequence_problem, sequences
from tests.cases import CASES
from tests.tolerances import RESOLVED_ERROR, SAME_IN_FLOAT64

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("racing"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def on_gpu(tree, dtype=torch.float64):
    move = lambda leaf: leaf.to("cuda", dtype) if leaf.is_floating_point() else leaf.to("cuda")
    return tree_map(move, tree)


def response_on_gpu(case, engine, dtype=torch.float64, **options):
    model = copy.deepcopy(case.model).to("cuda", dtype)
    problem = le.Problem.of(model, case.loss, **case.options)
    targets = on_gpu(case.targets, dtype), None
    return le.respond(problem, on_gpu(case.sources, dtype), targets, engine=engine, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured", "linearized"])
def test_cuda_agrees_with_the_cpu_in_float64(case, engine):
    if engine == "vmapped" and not case.vectorizes:
        pytest.skip("vmap cannot take this case")
    expected = le.respond(case.problem(), case.sources, (case.targets, None), update=le.SGD(0.05), engine=engine)
    response = response_on_gpu(case, engine, update=le.SGD(0.05))
    assert response.target_change.is_cuda
    rows = expected.target_change.flatten(1).norm(dim=1)
    worst = ((response.target_change.cpu() - expected.target_change).flatten(1).norm(dim=1) / rows).max()
    assert worst < SAME_IN_FLOAT64


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("step_size", [1e-6, 1e-3, 1e-1])
def test_float32_on_cuda_keeps_its_promise(case, step_size):
    """What auto calls resolved in float32 on the GPU is right to one percent of float64 on the CPU."""
    truth = le.relative(le.respond(case.problem(), case.sources, (case.targets, None), update=le.SGD(step_size)))
    response = response_on_gpu(case, "auto", torch.float32, update=le.SGD(step_size))
    S = le.relative(response).cpu().double()
    known = S.isfinite() & truth.isfinite()
    assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1))[known].all()
    assert known.double().mean() > 0.95


@pytest.mark.parametrize("legacy", [True, False])
def test_tf32_is_off_while_measuring_and_restored(legacy):
    """Whether the user asked for it the old way or the new."""
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()
    x, y = torch.randn(40, 64, device="cuda"), torch.arange(40, device="cuda") % 8
    problem = le.Problem.of(net, "cross_entropy")
    exact = le.respond(problem, (x, y), update=le.SGD(0.1), engine="looped").target_change
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        if legacy:
            torch.set_float32_matmul_precision("high")
        else:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        asked = torch.backends.cuda.matmul.fp32_precision
        shortened = le.respond(problem, (x, y), update=le.SGD(0.1), engine="looped").target_change
        assert torch.backends.cuda.matmul.fp32_precision == asked == "tf32"
        assert torch.equal(shortened, exact)
    finally:
        if legacy:
            torch.set_float32_matmul_precision("highest")
        else:
            torch.backends.cuda.matmul.fp32_precision = before


def test_random_state_and_model_on_the_gpu_are_untouched():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).cuda().train()
    sources = torch.randn(20, 4, device="cuda"), torch.randn(20, device="cuda")
    weights, state = copy.deepcopy(net.state_dict()), torch.cuda.get_rng_state()
    le.respond(le.Problem.of(net, "mse"), sources)
    assert all(torch.equal(weights[name], value) for name, value in net.state_dict().items())
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert net.training


def test_inputs_on_the_cpu_are_refused_and_loaders_are_moved():
    net = nn.Linear(4, 1).cuda()
    x, y = torch.randn(6, 4), torch.randn(6)
    with pytest.raises(ValueError, match="pass inputs.to.'cuda:0'"):
        le.respond(le.Problem.of(net, "mse"), (x, y))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=2)
    assert le.respond(le.Problem.of(net, "mse"), loader).target_change.shape == (6, 6, 1)


def test_memory_is_bounded_on_the_gpu():
    net = le.models.ResNet18(3).cuda()
    x, y = torch.randn(40, 3, 32, 32, device="cuda"), torch.arange(40, device="cuda") % 3
    for limit in (1 << 30, 4 << 30):
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        le.respond(le.Problem.of(net, "cross_entropy"), (x, y), engine="vmapped", memory=limit)
        assert torch.cuda.max_memory_allocated() - held < 1.5 * limit


def net_and_examples(outputs=3):
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, outputs)).double()
    return net, torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % outputs


def both(net):
    """The net here and a copy of it there, each as a problem."""
    there = copy.deepcopy(net).cuda()
    return le.Problem.of(net, "cross_entropy"), le.Problem.of(there, "cross_entropy")


def assert_same(there, here):
    assert there.is_cuda
    assert (there.cpu() - here).norm() <= SAME_IN_FLOAT64 * here.norm()


def test_the_tangent_kernel_is_the_same():
    net, x, _ = net_and_examples()
    here, there = both(net)
    assert_same(le.ntk(there, x.cuda()), le.ntk(here, x))


def test_algorithm_1_is_the_same_to_the_letter():
    net, x, y = net_and_examples()
    here, there = both(net)
    update = le.SGD(0.05)
    expected = le.respond_in_sequence(here, (x, y), x[:5], update=update)
    found = le.respond_in_sequence(there, (x.cuda(), y.cuda()), x[:5].cuda(), update=update)
    assert_same(found.target_change, expected.target_change)


@pytest.mark.parametrize("measures", [("kl", "relative"), ("kernel",)])
def test_a_monitor_sees_the_same(measures):
    net, x, y = net_and_examples()
    histories = []
    for problem, sources in zip(both(net), ((x, y), (x.cuda(), y.cuda())), strict=True):
        monitor = le.Monitor(problem, sources, measure=measures, every=1, budget=None)
        monitor.step(0)
        histories.append(monitor.history[0].similarity)
    here, there = histories
    for name in here:
        assert abs(here[name] - there[name]).max() <= 1e-6 * abs(here[name]).max()


@pytest.mark.parametrize(("outputs", "rate"), [(1, 0.1), (3, 0.1), (3, 0.0)])
def test_flips_are_exact_in_float64(outputs, rate):
    Z, H = torch.randn(7, 50, dtype=torch.float64), torch.randn(300, 50, dtype=torch.float64).relu()
    V, g = torch.randn(outputs, 50, dtype=torch.float64), torch.randn(300, outputs, dtype=torch.float64)
    s = torch.randn(300, 7, dtype=torch.float64)
    expected = flips(Z, s, H, V, g, rate)
    found = flips(*(part.cuda() for part in (Z, s, H, V, g)), rate).cpu()
    assert (found - expected).norm() <= 1e-13 * expected.norm()


def conv_net(last=None):
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    return (nn.Sequential(body, last) if last else body).cuda()


def watched(net, images, labels, **options):
    options = {"loss": "cross_entropy", "measure": ("kl", "relative_l1"), "every": 1, "budget": None, **options}
    return le.Monitor(net, (images, labels), engine="structured", **options)


def test_a_recorded_probe_sees_what_a_plain_one_sees():
    net = conv_net()
    images, labels = torch.randn(20, 3, 8, 8, device="cuda"), torch.arange(20, device="cuda") % 3
    recorded, plain = watched(net, images, labels), watched(net, images, labels)
    assert recorded._runner.prober.replay is not None
    plain._runner.prober = replace(plain._runner.prober, replay=None)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(5):
        net.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        state = torch.cuda.get_rng_state()
        recorded.step(step)
        assert torch.equal(torch.cuda.get_rng_state(), state)
        plain.step(step)
    assert recorded._runner.prober.replay.usable
    for one, other in zip(recorded.history, plain.history, strict=True):
        for name, S in other.similarity.items():
            assert abs(one.similarity[name] - S).max() <= 1e-4 * abs(S).max()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_training_beside_a_probe_is_the_same_to_the_bit(optimizer, tmp_path):
    """Probes under way on the GPU while training goes on; their history is that of probes that are waited for."""
    images, labels = torch.randn(64, 3, 8, 8, device="cuda"), torch.arange(64, device="cuda") % 3
    start, weights, histories = conv_net(), [], []
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for beside in (True, False):
            net = copy.deepcopy(start)
            monitor = watched(net, images[:30], labels[:30], store=tmp_path / f"{beside}.zarr")
            assert monitor._runner.prober.replay is not None
            steps = optimizer(net.parameters(), 0.01)
            busy = []
            for step in range(40):
                net.train()
                steps.zero_grad()
                nn.functional.cross_entropy(net(images), labels).backward()
                steps.step()
                monitor.step(step)
                busy.append(monitor._runner.busy)
                if not beside:
                    assert len(monitor.history) == step + 1
            assert any(busy)
            weights.append(copy.deepcopy(net.state_dict()))
            histories.append(monitor.history)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert histories[0].steps == histories[1].steps == list(range(40))
    for one, other in zip(*histories, strict=True):
        for name, S in other.similarity.items():
            assert abs(one.similarity[name] - S).max() <= 1e-6 * abs(S).max()


def test_a_probe_beside_training_reads_the_weights_of_its_step():
    """Though they are overwritten the moment that it is launched."""
    net = conv_net()
    images, labels = torch.randn(30, 3, 8, 8, device="cuda"), torch.arange(30, device="cuda") % 3
    beside, plain = watched(net, images, labels), watched(net, images, labels)
    plain._runner.prober = replace(plain._runner.prober, replay=None)
    plain.step(0)
    beside.step(0)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
    for name, S in plain.history[0].similarity.items():
        assert abs(beside.history[0].similarity[name] - S).max() <= 1e-4 * abs(S).max()


class Reading(nn.Module):
    """Looks at a number on the GPU, so that the CPU waits for it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def forward(self, x):
        return x * self.factor.item()


class Waiting(nn.Module):
    """Waits for the GPU."""

    def forward(self, x):
        torch.cuda.synchronize()
        return x * 1.0


@pytest.mark.parametrize("last", [Reading, Waiting])
def test_a_network_that_waits_for_the_gpu_is_not_recorded(last):
    net = conv_net(last())
    images, labels = torch.randn(8, 3, 8, 8, device="cuda"), torch.arange(8, device="cuda") % 3
    monitor = watched(net, images, labels)
    assert monitor._runner.prober.replay is None
    assert monitor.step(0)
    nn.functional.cross_entropy(net(images + torch.randn_like(images)), labels).backward()
    assert watched(conv_net(), images, labels)._runner.prober.replay is not None


def test_a_store_is_filled_from_the_gpu(tmp_path):
    net, x, y = net_and_examples()
    here, there = both(net)
    expected = le.similarity(here, (x, y), measure="kernel")
    stored = le.similarity(there, (x.cuda(), y.cuda()), measure="kernel", store=tmp_path / "s.zarr", block=5)
    assert abs(stored.values - expected.values).max() <= 1e-6 * abs(expected.values).max()


@pytest.mark.parametrize("approximation", ["landmarks", "sketch"])
def test_approximate_clusters_are_found_on_the_gpu(approximation):
    x = torch.cat([torch.randn(40, 8), torch.randn(40, 8) + 6]).numpy()
    model = le.LocalElasticityClustering(
        2, network="fnn-128", epochs=5, approximation=approximation, random_state=0, device="cuda"
    ).fit(x)
    assert le.best_match_accuracy(model.labels_, torch.arange(80) // 40) == 1


class Wide(nn.Module):
    """Wide enough for tensor cores: patches, attention, norms, a gated MLP, depthwise and dense convolutions."""

    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 64, 2, 2), nn.Parameter(0.1 * torch.randn(1, 1, 64))
        self.depthwise, self.batch_norm = nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64)
        self.dense = nn.Conv2d(64, 64, 3, padding=1)
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        x = torch.relu(self.batch_norm(self.depthwise(self.patch(x))))
        x = F.gelu(self.dense(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return self.head(x.mean(1))


@pytest.mark.parametrize("update", [le.SGD(1e-4), le.SGD(0.1, weight_decay=0.1), le.Adam(1e-3)], ids=str)
@pytest.mark.parametrize("precision", [None, "float32", "split_bf16"])
def test_kernels_and_tensor_cores_agree_with_the_loop_in_float64(update, precision):
    torch.manual_seed(0)
    net = Wide().cuda()
    x, y = torch.randn(24, 3, 8, 8, device="cuda"), torch.arange(24, device="cuda") % 5
    problem = le.Problem.of(net, "cross_entropy")
    found = le.respond(problem, (x, y), update=update, engine=le.Structured(precision))
    truth = le.respond(problem.to(torch.float64), (x, y), update=update, engine="looped")
    assert truth.target_change.isfinite().all()
    S, expected = le.relative(found).double(), le.relative(truth)
    assert S.isfinite().all()
    allowed = 1e-4 if precision == "float32" else 1e-3
    assert ((S - expected).abs() / expected.clamp_min(0.1)).max() < allowed


def test_the_linear_limit_by_differences_is_that_of_jacobians():
    torch.manual_seed(0)
    net = Wide().cuda()
    sources = torch.randn(12, 3, 8, 8, device="cuda"), torch.arange(12, device="cuda") % 5
    problem = le.Problem.of(net, "cross_entropy")
    found = le.respond(problem, sources, engine="linearized").target_change.double()
    expected = le.respond(problem.to(torch.float64), sources, engine="linearized").target_change
    error = (found - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    assert error.max() < 1e-3


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "allowed": {"attn_mask": torch.arange(600) < torch.arange(600)[:, None]},
    "added": {"attn_mask": torch.linspace(-3, 3, 600).expand(600, 600)},
    "grouped": {"enable_gqa": True, "scale": 0.4},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("size", "T"), [(1e-5, 70), (0.3, 70), (0.3, 600)])
@pytest.mark.parametrize(("splits", "error"), [(None, 3e-6), (Splits([]), 3e-5)])
def test_attention_in_one_kernel(mask, size, T, splits, error):
    """Heads of a linear layer, read where they are; the mask `allowed` leaves the first place nothing to look at."""
    torch.manual_seed(0)
    options = {k: v[:T, :T].cuda() if isinstance(v, torch.Tensor) else v for k, v in MASKS[mask].items()}
    heads = [torch.randn(3, T, 4, 24, device="cuda").transpose(1, 2) for _ in range(3)]
    heads = [heads[0], *(one[:, :2] for one in heads[1:])] if mask == "grouped" else heads
    moved = [size * torch.randn(5, 3, T, one.shape[1], 24, device="cuda").transpose(2, 3) for one in heads]
    with torch.no_grad(), by_parts(splits):
        pairs = [Difference.of(h, d) for h, d in zip(heads, moved, strict=True)]
        found = F.scaled_dot_product_attention(*pairs, **options)
        options = {k: v.double() if k == "attn_mask" and v.is_floating_point() else v for k, v in options.items()}
        after = [h.double() + d.double() for h, d in zip(heads, moved, strict=True)]
        before = F.scaled_dot_product_attention(*(h.double() for h in heads), **options)
        expected = torch.stack([F.scaled_dot_product_attention(*(x[i] for x in after), **options) for i in range(5)])
        expected = expected.nan_to_num(0) - before.nan_to_num(0)
    assert (found.base - before.nan_to_num(0)).abs().max() < 1e-5
    assert (found.delta - expected).norm() < error * expected.norm()


def test_cross_entropy_of_learned_examples_in_one_kernel():
    torch.manual_seed(0)
    h, y = torch.randn(6, 5003, device="cuda"), torch.arange(6, device="cuda")
    h[:3, :3] += 25 * torch.eye(3, device="cuda")
    d = 1e-3 * torch.randn(4, 6, 5003, device="cuda")
    with torch.no_grad():
        found = F.cross_entropy(Difference.of(h, d), y, reduction="none").delta
        losses = [F.cross_entropy(one, y.expand(len(one) // 6, 6).flatten(), reduction="none")
                  for one in (h.double(), (h.double() + d.double()).flatten(0, 1))]  # fmt: skip
    expected = losses[1].view(4, 6) - losses[0]
    assert ((found - expected).abs() < 1e-4 * expected.abs() + 1e-12).all()


def test_log_probabilities_over_a_wide_vocabulary():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(5003, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5003)).cuda()
    inputs, lengths = sequences(torch.randint(0, 5003, (20, 16), device="cuda"))
    problem = sequence_problem(net)
    found = le.relative(le.respond(problem, (inputs, lengths), update=le.SGD(1e-2), engine="structured")).double()
    truth = le.respond(problem.to(torch.float64), (inputs, lengths), update=le.SGD(1e-2), engine="looped")
    assert ((found - le.relative(truth)).abs() / le.relative(truth).clamp_min(0.1)).max() < 1e-2


def test_products_with_weights_that_take_each_others_place_in_memory():
    rows, splits = torch.randn(8, 256, 128, device="cuda"), Splits([])
    with by_parts(splits):
        for _ in range(4):
            W = torch.randn(256, 128, device="cuda")
            found, expected = total_of([Term(rows, W)], 8), rows.double() @ W.double().T
            assert (found - expected).norm() <= SPLIT_ROUNDING * expected.norm()
            del W, found, expected


@pytest.mark.parametrize("wide", [128, 512])
def test_dense_changes_of_a_layer_on_tensor_cores(wide):
    """Of a narrowing layer by two products, of a widening one by one."""
    torch.manual_seed(0)
    h, d = torch.randn(256, 128, device="cuda"), torch.randn(8, 256, 128, device="cuda")
    W, moved = torch.randn(wide, 128, device="cuda"), torch.randn(8, wide, 128, device="cuda")
    with by_parts(Splits([])):
        found = through(h, d, Difference.of(W, moved), W)
    expected = (h + d).double() @ (W + moved).double().mT - h.double() @ W.double().T
    assert (found - expected).norm() <= 2 * SPLIT_ROUNDING * expected.norm()


@pytest.mark.parametrize(
    ("channels", "kernel", "options"),
    [
        (5, (3, 3), {"padding": 1}),
        (96, (7, 7), {"padding": 3}),
        (100, (5, 3), {"stride": 2, "padding": (2, 1)}),
        (7, (3, 3), {"stride": (1, 2), "padding": 2, "dilation": 2}),
        (3, (1, 4), {"stride": (3, 1), "padding": (0, 2), "dilation": (1, 3)}),
    ],
)
@pytest.mark.parametrize("moves", [True, False])
def test_depthwise_convolutions_in_one_kernel(channels, kernel, options, moves):
    torch.manual_seed(0)
    h, W = torch.randn(3, channels, 13, 22, device="cuda"), torch.randn(channels, 1, *kernel, device="cuda")
    d = 0.1 * torch.randn(2, *h.shape, device="cuda") if moves else None
    moved = 0.1 * torch.randn(2, *W.shape, device="cuda")
    convolve = lambda h, W: F.conv2d(h.double(), W.double(), groups=channels, **options)
    after = [convolve(h if d is None else h + d[i], W + moved[i]) for i in range(2)]
    expected = torch.stack(after) - convolve(h, W)
    strides, padding, dilation = (
        each_axis(options.get(name, default), 2) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    found = kernels_for(h).depthwise_change_on_gpu(h, d, W, moved, expected.shape[-2:], strides, padding, dilation)
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


def test_layers_of_one_shape_do_not_share_their_parts():
    """Filters are laid out anew in every pass, those of one layer where those of another were."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(128, 128, 3, padding=1, bias=False) for _ in range(4)]
    net = nn.Sequential(*[one for layer in layers for one in (layer, nn.Tanh())], nn.Flatten(), nn.Linear(512, 10))
    net, x, y = net.cuda(), torch.randn(40, 128, 2, 2, device="cuda"), torch.arange(40, device="cuda") % 10
    update = le.SGD(1e-2)
    found = le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=update, engine=le.Structured("split_bf16"))
    exact = le.Problem.of(net, "cross_entropy").to(torch.float64)
    expected = le.respond(exact, (x, y), update=update, engine=le.Looped()).target_change
    assert (found.target_change - expected).norm() <= 1e-4 * expected.norm()


class Residual(nn.Module):
    """Norms followed by a ReLU, by a sum and a ReLU, and by a product; written in place or not."""

    def __init__(self, in_place):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.other = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.scale, self.gate = nn.Parameter(torch.rand(16, 1, 1)), nn.Conv2d(16, 16, 1)
        self.relu, self.head, self.in_place = nn.ReLU(inplace=in_place), nn.Linear(16, 5), in_place

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        out = self.other(self.second(x))
        if self.in_place:
            out += x
        else:
            out = out + x
        out = self.relu(out)
        out = out + self.scale * self.gate(out) * torch.sigmoid(out)
        return self.head(out.mean((2, 3)))


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_kernels_compute_together_is_right(in_place, layout):
    torch.manual_seed(0)
    net = Residual(in_place)
    for norm in (net.norm, net.other):
        nn.init.normal_(norm.weight, 1, 0.3)
        nn.init.normal_(norm.running_mean)
    x, y = torch.randn(12, 3, 8, 8), torch.arange(12) % 5
    truth = le.respond(net.double().eval(), (x.double(), y), loss="cross_entropy", engine="looped", update=le.SGD(0.1))
    net = net.float().to("cuda", memory_format=layout)
    sources = x.to("cuda", memory_format=layout), y.cuda()
    for precision in ("float32", "split_bf16"):
        found = le.respond(
            net, sources, loss="cross_entropy", engine=le.Structured(precision=precision), update=le.SGD(0.1)
        )
        rows = truth.target_change.flatten(1).norm(dim=1)
        off = (found.target_change.cpu().double() - truth.target_change).flatten(1).norm(dim=1) / rows
        assert off.max() < 10 * SPLIT_ROUNDING
