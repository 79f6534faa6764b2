"""Modern networks: Structured agrees with the loop at any step, what it calls resolved in float32 is right, and
Linearized is the limit of small steps."""

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

import local_elasticity as le
from local_elasticity.engine.job import Job
from local_elasticity.engine.linearized import LinearizedRunner
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.structured import StructuredRunner
from local_elasticity.training.language import sequence_problem, sequences
from tests.extras import skip_beside_a_broken_torchvision
from tests.modern import MODERN, MODERN_OF
from tests.pieces import modern_networks
from tests.random_cases import random_cases
from tests.test_engines import assert_same_rows
from tests.tolerances import RESOLVED_ERROR, SAME_AT_SMALL_STEPS, SAME_IN_FLOAT64


def _each_network(slow):
    """Every network, those of some places in the table in slow runs only."""
    marked = [pytest.param(one, marks=pytest.mark.slow if slow(i) else ()) for i, one in enumerate(MODERN)]
    return pytest.mark.parametrize("modern", marked, ids=[one.name for one in MODERN])


def stepped(make):
    """The step of an optimizer that has taken two."""

    def update(modern, net, sources):
        optimizer = make([p for p in net.parameters() if p.requires_grad])
        loss = modern.problem(net).loss
        for _ in range(2):
            optimizer.zero_grad()
            loss(modern.call(net, sources[0]), sources[1]).backward()
            optimizer.step()
        return le.FromOptimizer(optimizer)

    return update


UPDATES = {
    "sgd": lambda *_: le.SGD(1e-3),
    "sgd, large, with decay": lambda *_: le.SGD(0.5, weight_decay=0.1),
    "adam": lambda *_: le.Adam(1e-2),
    "adamw": stepped(lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1)),
    "momentum": stepped(lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9)),
}


def _is_slow(i, update, batch):
    """Every network takes one large step in every run, and every third takes one of AdamW."""
    return (update, batch) != ("sgd, large, with decay", 2) and ((update, batch) != ("adamw", None) or i % 3)


COMBINATIONS = [
    pytest.param(
        modern,
        update,
        batch,
        marks=pytest.mark.slow if _is_slow(i, update, batch) else (),
        id=f"{modern.name}-{update}-{batch}",
    )
    for i, modern in enumerate(MODERN)
    for update in UPDATES
    for batch in (None, 2)
]


def rows_of(problem, sources, targets, update, batch, *runners):
    """Rows of several ways to compute them, and the rounding of what the loop subtracts."""
    with problem.bound() as bound:
        job = Job.read(bound, sources, targets, update, source_batch_size=batch or 1)
        rows = [runner(job).rows(0, job.n) for runner in runners]
        largest = bound.predict(bound.params, job.target_inputs).abs().max()
    return *rows, 1e-12 * max(1.0, float(largest))


def assert_same_as_the_loop(problem, sources, targets, update, batch=None):
    """By a share of the row's norm, and of the rounding of what the loop subtracts; where the loop is finite."""
    found, wanted, rounding = rows_of(problem, sources, targets, update, batch, StructuredRunner, LoopedRunner)
    for name in ("target_change", "source_change"):
        got, expected = getattr(found, name), getattr(wanted, name)
        error, size = (part.flatten(1).norm(dim=1) for part in (got - expected, expected))
        assert (error <= SAME_IN_FLOAT64 * size + rounding)[size.isfinite()].all()


def assert_resolved_is_right(problem, sources, targets, update):
    """In float32, against the loop in float64."""
    response = le.respond(problem, sources, targets, update=update, engine="structured")
    found = le.relative(response).double()
    wanted = le.relative(le.respond(problem.to(torch.float64), sources, targets, update=update, engine="looped"))
    known = found.isfinite() & wanted.isfinite()
    assert ((found - wanted).abs() / wanted.clamp_min(1))[known].le(RESOLVED_ERROR).all()
    return known


@pytest.mark.parametrize(("modern", "update", "batch"), COMBINATIONS)
def test_structured_agrees_with_the_loop(modern, update, batch):
    net, sources, targets = modern.made()
    step = UPDATES[update](modern, net, sources)
    assert_same_as_the_loop(modern.problem(net), sources, (targets, None), step, batch)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@_each_network(slow=lambda i: i % 2)
@pytest.mark.parametrize("step_size", [1e-4, pytest.param(1e-2, marks=pytest.mark.slow)])
def test_what_is_called_resolved_in_float32_is_right(modern, step_size):
    net, sources, targets = modern.made(torch.float32)
    known = assert_resolved_is_right(modern.problem(net), sources, (targets, None), le.SGD(step_size))
    assert known.double().mean() > 0.9


@_each_network(slow=lambda i: not i % 2)
def test_linearized_is_the_limit_of_small_steps(modern):
    net, sources, targets = modern.made()
    runners = LinearizedRunner, LoopedRunner
    found, wanted, _ = rows_of(modern.problem(net), sources, (targets, None), le.SGD(1e-7), None, *runners)
    assert_same_rows(found.target_change, wanted.target_change, SAME_AT_SMALL_STEPS)
    assert_same_rows(found.source_change, wanted.source_change, SAME_AT_SMALL_STEPS)


@pytest.mark.parametrize("update", UPDATES)
def test_users_are_served_by_structured_itself(update):
    """With any update, after the proof against the loop."""
    modern = MODERN_OF["language model, grouped queries"]
    net, sources, targets = modern.made()
    step = UPDATES[update](modern, net, sources)
    found, wanted = (
        le.respond(modern.problem(net), sources, targets, update=step, engine=engine)
        for engine in ("structured", "looped")
    )
    assert found.engine == "structured"
    assert_same_rows(found.target_change, wanted.target_change)


def test_only_the_adapters_step():
    net, sources, targets = MODERN_OF["low-rank adapters"].made()
    problem = le.Problem.of(net, "cross_entropy")
    assert problem.stepped == tuple(name for name, p in net.named_parameters() if p.requires_grad)
    assert all(name.endswith(("up", "down")) for name in problem.stepped)
    net.requires_grad_(True)
    by_name = le.Problem.of(net, "cross_entropy", params=r"\.(up|down)$")
    one, other = (le.respond(p, sources, targets, engine="structured").target_change for p in (problem, by_name))
    assert torch.equal(one, other)


def test_choices_that_a_step_changes_are_refused():
    """Then `auto` goes on without `Structured`."""
    net, sources, targets = MODERN_OF["routed"].made()
    with torch.no_grad():
        net.gate.bias.zero_(), net.gate.weight.mul_(10)
    problem = le.Problem.of(net, "cross_entropy")
    with pytest.raises(ValueError, match="cannot read topk, whose choice changes with the step, in the model .Routed."):
        le.respond(problem, sources, targets, update=le.SGD(10.0), engine="structured")
    looped = le.respond(problem, sources, targets, update=le.SGD(10.0), engine="looped")
    assert_same_rows(le.respond(problem, sources, targets, update=le.SGD(10.0)).target_change, looped.target_change)
    found, wanted = (
        le.respond(problem, sources, targets, update=le.SGD(1e-6), engine=engine) for engine in ("structured", "looped")
    )
    assert_same_rows(found.target_change, wanted.target_change, SAME_AT_SMALL_STEPS)


def gpt2(**options):
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel._from_config(config, **options).eval()


def adapted(**options):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn", "c_fc"], init_lora_weights=False, **options)
    return peft.get_peft_model(gpt2(), config).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [lambda: gpt2(attn_implementation="eager"), adapted, lambda: adapted(use_dora=True)],
    ids=["eager", "lora", "dora"],
)
def test_language_models_of_transformers(make):
    skip_beside_a_broken_torchvision()
    tokens = torch.randint(0, 50, (4, 6))
    problem, sources = sequence_problem(make()).to(torch.float64), sequences(tokens, torch.ones_like(tokens))
    found, wanted = (
        le.respond(problem, sources, update=le.SGD(0.1), engine=engine) for engine in ("structured", "looped")
    )
    assert_same_rows(found.target_change, wanted.target_change)


class BesideItsReference(nn.Module):
    """The logits of the last token, less half of those without the adapter."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        with self.model.disable_adapter():
            reference = self.model(tokens).logits
        return (self.model(tokens).logits - reference / 2)[:, -1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["structured", "vmapped"])
def test_adapters_that_a_forward_pass_disables(engine):
    skip_beside_a_broken_torchvision()
    problem = le.Problem.of(BesideItsReference(adapted()).double(), "cross_entropy")
    sources = torch.randint(0, 50, (4, 6)), torch.arange(4)
    found, wanted = (le.respond(problem, sources, update=le.SGD(0.1), engine=one) for one in (engine, "looped"))
    assert_same_rows(found.target_change, wanted.target_change)


@pytest.mark.parametrize("params", ["bias", "weight", "stem", "head"])
@pytest.mark.parametrize("name", ["mobilenet", "denoiser"])
def test_any_part_of_a_network_may_step(name, params):
    modern = MODERN_OF[name]
    net, sources, targets = modern.made()
    params = "out" if name == "denoiser" and params == "head" else params
    problem = le.Problem.of(net, modern.loss, params=params)
    assert_same_as_the_loop(problem, sources, (targets, None), le.SGD(0.3))


STEPS = st.sampled_from(
    [le.SGD(1e-6), le.SGD(1e-3), le.SGD(0.3), le.SGD(0.3, weight_decay=0.1), le.Adam(1e-2, eps=1e-3)]
)
"""Adam of a small ε makes the rounding of a gradient that vanishes, as that of a bias before a norm, a step."""


@random_cases(25, 500, modern_networks(), STEPS, st.integers(1, 2))
def test_random_networks_agree_with_the_loop(drawn, update, batch):
    net, inputs, outputs = drawn
    sources, targets = (inputs(4), torch.randn(4, outputs).double()), inputs(3)
    assert_same_as_the_loop(le.Problem.of(net, "half_mse"), sources, targets, update, batch)


@random_cases(10, 200, modern_networks(), st.sampled_from([1e-5, 1e-3, 0.1]))
def test_random_networks_are_right_in_float32(drawn, step_size):
    net, inputs, outputs = drawn
    single = lambda x: x.float() if x.is_floating_point() else x
    sources, targets = (single(inputs(4)), torch.randn(4, outputs)), single(inputs(3))
    assert_resolved_is_right(le.Problem.of(net.float(), "half_mse"), sources, targets, le.SGD(step_size))
