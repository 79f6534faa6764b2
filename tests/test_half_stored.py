"""Frozen weights in half precision stay so in memory and give the numbers of their cast; adapters work as they are."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import local_elasticity as le
from local_elasticity.engine.half_stored import HalfStored
from local_elasticity.engine.products import SPLIT_ROUNDING, Splits, Term, by_parts, total_of
from local_elasticity.training.language import sequence_problem, sequences
from tests.tolerances import RESOLVED_ERROR, SAME_IN_FLOAT64

ENGINES = [le.Looped(), le.Vmapped(), le.Structured(), le.Linearized()]


@pytest.mark.parametrize(
    "function",
    [
        lambda W: torch.ones(2, 4) @ W.T,
        lambda W: F.linear(torch.ones(2, 4), W),
        lambda W: F.embedding(torch.tensor([0, 2]), W),
        lambda W: W[1:, ::2].flatten(),
        lambda W: torch.cat([W, torch.ones(1, 4)]),
        lambda W: (W * 2 + 1).sum(0),
        lambda W: W.clone().mul_(3),
        lambda W: torch.vmap(lambda x: F.linear(x, W))(torch.ones(3, 2, 4)),
        lambda W: torch.linalg.vector_norm(W.detach().double()),
    ],
)
def test_functions_compute_with_the_cast_numbers(function):
    stored = torch.randn(3, 4).bfloat16()
    kept = HalfStored(stored, torch.float32)
    found, expected = function(kept), function(stored.float())
    torch.testing.assert_close(torch.as_tensor(found + 0), expected)
    assert found.dtype == expected.dtype
    assert torch.equal(kept.stored, stored)


def test_a_backward_pass_keeps_the_weight_as_it_is_stored():
    kept = HalfStored(torch.randn(5, 4).bfloat16(), torch.float32)
    saved = []
    x = torch.randn(2, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = F.linear(x, kept).sum()
    (found,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(found, kept.stored.float().sum(0).expand(2, 4))
    assert all(isinstance(one, HalfStored) for one in saved if one.ndim == 2 and one.shape[0] * one.shape[1] == 20)


def _adapted(seed=0):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_attention_heads=4, **shape)).bfloat16()
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).eval()
    for name, p in model.named_parameters():
        if "lora_B" in name:  # zero at first, so that half of the adapters would not move
            nn.init.normal_(p, std=0.1)
    return model


@pytest.fixture
def adapted():
    return _adapted()


@pytest.fixture
def tokens():
    return sequences(torch.randint(0, 64, (5, 8), generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_adapters_on_a_half_precision_model_agree_with_a_cast_one(adapted, tokens, engine):
    whole = sequence_problem(copy.deepcopy(adapted).float())
    expected = le.respond(whole, tokens, update=le.SGD(0.1), engine=engine)
    found = le.respond(sequence_problem(adapted), tokens, update=le.SGD(0.1), engine=engine)
    size = expected.target_change.abs().max()
    torch.testing.assert_close(found.target_change, expected.target_change, rtol=RESOLVED_ERROR, atol=1e-4 * size)
    assert {p.dtype for name, p in adapted.named_parameters() if "lora" not in name} == {torch.bfloat16}


def test_only_the_adapters_are_cast(adapted, tokens):
    problem = sequence_problem(adapted)
    with problem.bound() as bound:
        kept = [p for p in bound.constants.values() if isinstance(p, HalfStored)]
        own = {p.data_ptr() for p in adapted.parameters()}
        assert len(kept) == 2 + 2 * 7  # embedding, head, and seven layers in each of two blocks
        assert all(p.stored.data_ptr() in own for p in kept)
        assert all(p.dtype == torch.float32 for p in (*bound.params.values(), *bound.constants.values()))


def test_float64_computes_with_the_stored_numbers():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    net[0].weight.data = net[0].weight.data.bfloat16()
    whole = copy.deepcopy(net).double()
    x, y = torch.randn(7, 4), torch.arange(7) % 3
    responses = [
        le.respond(le.Problem.of(one, "cross_entropy", params="^2").to(torch.float64), (x, y), update=le.SGD(0.1))
        for one in (net, whole)
    ]
    torch.testing.assert_close(*(r.target_change for r in responses), rtol=SAME_IN_FLOAT64, atol=0)


WRITES = {
    "a row of the data": lambda w: w.data.__setitem__(0, 0.5),
    "a row": lambda w: w.__setitem__(0, 0.5),
    "a view": lambda w: w[:, 1:3].zero_(),
    "all": lambda w: w.data.copy_(torch.full((8, 5), 0.2)),
    "a transposed view": lambda w: w.t()[0].fill_(0.7),
    "other data": lambda w: setattr(w, "data", w.data.clamp(-0.1, 0.1)),
}


class Writing(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.frozen, self.head, self.write = nn.Linear(5, 8), nn.Linear(8, 3), write

    def forward(self, x):
        with torch.no_grad():
            self.write(self.frozen.weight)
        return self.head(torch.tanh(self.frozen(x)))


@pytest.mark.parametrize("name", WRITES)
def test_a_forward_pass_that_writes_a_stored_weight_is_followed(name):
    torch.manual_seed(0)
    net = Writing(WRITES[name])
    net.frozen.requires_grad_(False).bfloat16()
    before, whole = net.frozen.weight.clone(), copy.deepcopy(net).double()
    sources = torch.randn(6, 5), torch.arange(6) % 3
    found, expected = (
        le.respond(le.Problem.of(one, "cross_entropy").to(torch.float64), sources, update=le.SGD(0.1)).target_change
        for one in (net, whole)
    )
    torch.testing.assert_close(found, expected, rtol=SAME_IN_FLOAT64, atol=0)
    assert torch.equal(net.frozen.weight, before)


class Packed(nn.Module):
    """Keeps what it makes of weights by where they are, and reads one of them by NumPy."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        packed = {}
        for layer in (self.first, self.second):
            W = packed.setdefault(layer.weight.data_ptr(), layer.weight * 2)
            x = torch.tanh(F.linear(x, W))
        return self.head(x) * float(abs(copy.deepcopy(self.first.weight).detach().float().numpy()).max())


def test_weights_that_are_read_by_address_or_copied():
    torch.manual_seed(0)
    net = Packed()
    net.first.requires_grad_(False).bfloat16()
    net.second.requires_grad_(False).bfloat16()
    whole, sources = copy.deepcopy(net).double(), (torch.randn(6, 5), torch.arange(6) % 3)
    found, expected = (
        le.respond(le.Problem.of(one, "cross_entropy").to(torch.float64), sources, update=le.SGD(0.1)).target_change
        for one in (net, whole)
    )
    torch.testing.assert_close(found, expected, rtol=SAME_IN_FLOAT64, atol=0)


def test_disabled_adapters_are_measured_as_disabled(adapted, tokens):
    frozen = sequence_problem(adapted, params="lm_head")
    enabled = le.respond(frozen, tokens, update=le.SGD(0.1)).target_change
    with adapted.disable_adapter():
        disabled = le.respond(frozen, tokens, update=le.SGD(0.1)).target_change
        with pytest.raises(ValueError, match="none of the parameters that step"):
            le.respond(sequence_problem(adapted, params="lora"), tokens, update=le.SGD(0.1))
    bare = sequence_problem(copy.deepcopy(adapted).unload(), params="lm_head")
    torch.testing.assert_close(disabled, le.respond(bare, tokens, update=le.SGD(0.1)).target_change)
    assert not torch.allclose(enabled, disabled, rtol=1e-3)
    torch.testing.assert_close(le.respond(frozen, tokens, update=le.SGD(0.1)).target_change, enabled)


@pytest.mark.gpu
def test_products_with_stored_weights_on_tensor_cores():
    W, rows = torch.randn(256, 128, device="cuda").bfloat16(), torch.randn(8, 256, 128, device="cuda")
    with by_parts(Splits([])):
        found = total_of([Term(rows, HalfStored(W, torch.float32))], 8)
    expected = rows.double() @ W.double().T
    assert (found - expected).norm() <= SPLIT_ROUNDING * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("bias", [False, True])
def test_layers_with_stored_weights_keep_all_digits_on_tensor_cores(bias, size):
    """Forwards and backwards, no worse than twice the products of float32."""
    torch.manual_seed(0)
    stored = torch.randn(512, 1024, device="cuda").bfloat16()
    rows, shift = size * torch.randn(2, 300, 1024, device="cuda"), size * torch.randn(512, device="cuda")
    cotangent = torch.randn(2, 300, 512, device="cuda")

    def both(weight, dtype=torch.float32):
        x = rows.to(dtype).requires_grad_()
        out = F.linear(x, weight, shift.to(dtype) if bias else None)
        return out.detach(), torch.autograd.grad(out, x, cotangent.to(dtype))[0]

    for found, plain, exact in zip(
        both(HalfStored(stored, torch.float32)), both(stored.float()), both(stored.double(), torch.float64), strict=True
    ):
        off, usual = (((one - exact).norm() / exact.norm()).item() for one in (found, plain))
        assert off < max(2 * usual, 1e-6), (off, usual)
