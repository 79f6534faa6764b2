"""auto: its choice is measured, its memory bounded, its progress shown, its cost told beforehand."""

import logging
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine import memory as memory_module
from local_elasticity.engine.choose import Choice, Race, remember
from local_elasticity.engine.jacobian import jacobian_factors
from local_elasticity.engine.job import Job
from local_elasticity.engine.linearized import LinearizedRunner
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.structured import StructuredRunner
from local_elasticity.engine.vmapped import VmappedRunner
from tests.test_engines import assert_same_rows
from tests.tolerances import RESOLVED_ERROR


def problem_and_sources(n=60):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return le.Problem.of(net, "cross_entropy"), (torch.randn(n, 4).double(), torch.arange(n) % 2)


def clocked(patch, seconds):
    """Race by a clock on which a row of each kind of runner takes so long."""
    clock = [0.0]

    def timed(rows, a_row):
        def computed(self, start, stop):
            clock[0] += (stop - start) * a_row(self)
            return rows(self, start, stop)

        return computed

    for runner, a_row in seconds.items():
        patch.setattr(runner, "rows", timed(runner.rows, a_row if callable(a_row) else lambda self, a_row=a_row: a_row))
    patch.setattr("local_elasticity.engine.choose.now", lambda device: clock[0])


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("winner", ["looped", "vmapped", "structured"])
def test_auto_takes_the_fastest_engine(winner, monkeypatch, caplog):
    """Slower ones lose, the note says by how much, and the choice is remembered."""
    problem, sources = problem_and_sources()
    expected = le.respond(problem, sources, engine="looped").target_change
    runners = {"looped": LoopedRunner, "vmapped": VmappedRunner, "structured": StructuredRunner}
    clocked(monkeypatch, {runner: 1 if name == winner else 20 for name, runner in runners.items()})
    with caplog.at_level(logging.INFO, logger="local_elasticity"):
        response = le.respond(problem, sources)
    assert response.engine == winner
    assert "against" in response.notes[-1]
    assert response.notes[-1] in caplog.text
    assert_same_rows(response.target_change, expected)
    again = le.respond(problem, sources)
    assert again.engine == winner
    assert "as chosen before" in again.notes[0]
    assert_same_rows(again.target_change, expected)


@pytest.mark.usefixtures("racing")
def test_every_timed_row_is_a_row_of_the_result():
    problem, sources = problem_and_sources(200)
    with problem.bound() as bound:
        race = Race(Job.read(bound, sources, None, le.SGD(1e-3)))
        race.run()
    found = race.rows.first()
    assert 4 < found.done < 200
    expected = le.respond(problem, sources, engine="looped").target_change
    assert_same_rows(found.target_change, expected[: found.done])


@pytest.mark.usefixtures("racing")
def test_the_reason_is_told_every_time():
    problem, sources = problem_and_sources()
    first, second = (le.similarity(problem, sources) for _ in range(2))
    assert first.attrs["engine"] == second.attrs["engine"]
    assert any(note.startswith("auto: ") and " a row" in note for note in first.attrs["notes"])
    assert any(note.startswith("auto: ") and note.endswith(", as chosen before") for note in second.attrs["notes"])


@pytest.mark.usefixtures("racing")
def test_differences_that_are_far_slower_are_not_proved(monkeypatch):
    """A proof takes as long as many rows; where a chunk is one row, that row tells beforehand."""
    problem, sources = problem_and_sources()
    monkeypatch.setattr(StructuredRunner, "_fitting", lambda self, memory: 1)
    clocked(monkeypatch, {LoopedRunner: 1, StructuredRunner: 20})
    monkeypatch.setattr("local_elasticity.engine.choose.spot_check", lambda job, kind: pytest.fail("it was proved"))
    response = le.respond(problem, sources)
    assert response.engine != "structured"
    assert "auto: not structured" in response.notes[0]


def test_few_sources_are_not_raced():
    problem, sources = problem_and_sources(3)
    assert le.respond(problem, sources).engine == "looped"
    one = le.respond(problem, (sources[0][:1], sources[1][:1]), sources[0])
    assert one.engine == "looped"
    assert one.target_change.shape == (1, 3, 2)


LARGEST = []
"""Sizes of the batches that a hook has seen. A global: what a hook closes over is copied."""


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured", "linearized"])
def test_memory_is_bounded_by_a_setting(engine):
    """With room for next to nothing the answer is the same, some examples at a time; the Jacobians of `Linearized` are
    made of fewer examples."""
    problem, sources = problem_and_sources(24)
    LARGEST.clear()
    problem.model.register_forward_hook(lambda module, args, out: LARGEST.append(len(args[0])))
    expected = le.respond(problem, sources, engine=engine).target_change
    assert max(LARGEST) >= 24  # and a few that their limits are found at
    LARGEST.clear()
    tight = le.respond(problem, sources, engine=engine, memory=3000)
    assert max(LARGEST) < 24
    assert_same_rows(tight.target_change, expected)


@pytest.mark.parametrize("engine", ["looped", "vmapped", "linearized"])
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_chunks_are_halved_when_memory_runs_out(engine, kind, monkeypatch):
    problem, sources = problem_and_sources(12)
    expected = le.respond(problem, sources, engine=engine).target_change
    runner = {"looped": LoopedRunner, "vmapped": VmappedRunner, "linearized": LinearizedRunner}[engine]
    rows, refused = runner.rows, []

    def too_much(self, start, stop):
        if len(refused) < 3:
            refused.append(stop - start)
            raise kind("not enough memory: you tried to allocate too much")
        return rows(self, start, stop)

    monkeypatch.setattr(runner, "rows", too_much)
    assert_same_rows(le.respond(problem, sources, engine=engine).target_change, expected)
    assert len(refused) == 3


def test_when_nothing_fits_it_says_so(monkeypatch):
    problem, sources = problem_and_sources(8)

    def never(self, start, stop):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(LoopedRunner, "rows", never)
    with pytest.raises(MemoryError, match="one source and one target"):
        le.respond(problem, sources, engine="looped")


def test_other_errors_are_not_taken_for_memory():
    assert memory_module.is_out_of_memory(RuntimeError("CUDA out of memory"))
    assert not memory_module.is_out_of_memory(RuntimeError("shape mismatch"))


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "linearized"])
def test_progress_reaches_the_end(engine):
    problem, sources = problem_and_sources(20)
    seen = []
    le.respond(problem, sources, engine=engine, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20, 20)
    assert seen == sorted(seen)


def test_progress_counts_the_rows_that_are_computed_again():
    net = nn.Linear(4, 1)
    seen = []
    sources = torch.randn(20, 4), torch.randn(20)
    problem = le.Problem.of(net, "half_mse")
    le.respond(problem, sources, update=le.SGD(1e-9), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]


def test_long_work_is_logged_where_there_is_no_terminal(monkeypatch, caplog, capsys):
    monkeypatch.setattr("local_elasticity.engine.progress.QUIET_SECONDS", 0)
    monkeypatch.setattr("local_elasticity.engine.progress.LINE_EVERY_SECONDS", 0)
    problem, sources = problem_and_sources(10)
    with caplog.at_level(logging.INFO, logger="local_elasticity"):
        le.respond(problem, sources, engine="looped")
    assert "updates: 9 of 10" in caplog.text
    caplog.clear()
    le.respond(problem, sources, engine="looped", progress=True)
    assert "updates: 9 of 10" in capsys.readouterr().err
    le.respond(problem, sources, engine="looped", progress=False)
    assert "updates" not in caplog.text + capsys.readouterr().err


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "linearized"])
def test_estimate_tells_engine_time_and_memory(engine):
    problem, sources = problem_and_sources(100)
    cost = le.estimate(problem, sources, engine=engine)
    exact = ("looped", "vmapped", "structured")
    assert cost.engine.split()[0] in exact if engine == "auto" else cost.engine == engine
    assert 0 < cost.seconds < 60
    assert cost.bytes >= 100 * 100 * 2 * 8
    assert cost.reason
    assert le.estimate(problem, (sources[0][:3], sources[1][:3]), engine=engine).seconds > 0


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("fastest", [le.Looped(), le.Looped(15), le.Looped(gradients_at_once=12)], ids=str)
def test_auto_takes_the_fastest_loop(fastest, monkeypatch):
    """Every other loop takes a hundred times as long."""
    problem, sources = problem_and_sources(60)
    expected = le.respond(problem, sources, engine="looped").target_change

    def a_row(self):
        same = (self.at_once, self.chunk) == (fastest.at_once or 60, fastest.gradients_at_once)
        return 0.01 if same else 1

    clocked(monkeypatch, {LoopedRunner: a_row})
    monkeypatch.setattr("local_elasticity.engine.choose.CACHE_BYTES", 15 * 8 * 8)
    monkeypatch.setattr("local_elasticity.engine.choose.GRADIENTS_AT_ONCE", 12)
    monkeypatch.setattr("local_elasticity.engine.choose.Race._differences", lambda race: None)
    monkeypatch.setattr("local_elasticity.engine.choose.Race._vmapped", lambda race: None)
    with problem.bound() as bound:
        job = Job.read(bound, sources, None, le.SGD(0.1))
        assert Race(job).run().engine == fastest
    assert_same_rows(le.respond(problem, sources, engine=fastest).target_change, expected)


def test_estimate_grows_with_the_work(monkeypatch):
    """By a clock on which a chunk takes a second and each of its rows one more."""
    clock, rows = [0.0], LoopedRunner.rows

    def timed(self, start, stop):
        clock[0] += 1 + stop - start
        return rows(self, start, stop)

    monkeypatch.setattr(LoopedRunner, "rows", timed)
    monkeypatch.setattr(sys.modules["local_elasticity.api.estimate"], "_now", lambda job: clock[0])
    problem, (x, y) = problem_and_sources(400)
    for n in (40, 400):
        assert le.estimate(problem, (x[:n], y[:n]), x, engine="looped").seconds == pytest.approx(2 * n)


class Keywords(nn.Module):
    """Calls functions in ways that have no rule."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.second(torch.add(input=hidden, other=hidden, alpha=2))


@pytest.mark.usefixtures("racing")
def test_what_a_rule_cannot_take_goes_to_the_loop():
    problem = le.Problem.of(Keywords().double(), "cross_entropy")
    sources = torch.randn(30, 4).double(), torch.arange(30) % 2
    response = le.respond(problem, sources)
    assert any("not structured" in note for note in response.notes)
    assert_same_rows(response.target_change, le.respond(problem, sources, engine="looped").target_change)


@pytest.mark.usefixtures("racing")
def test_a_model_that_was_rebuilt_is_looked_at_again(monkeypatch):
    clocked(monkeypatch, {LoopedRunner: 60, StructuredRunner: 1})
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    problem, sources = le.Problem.of(net, "cross_entropy"), problem_and_sources()[1]
    assert le.respond(problem, sources).engine == "structured"
    net[1] = nn.Softmax(1)
    response = le.respond(problem, sources)
    assert_same_rows(response.target_change, le.respond(problem, sources, engine="looped").target_change)


def test_a_model_without_a_hash_is_measured():
    @dataclass
    class Scaled:
        by: float

        def __call__(self, params, x):
            return self.by * x @ params["w"]

    problem = le.Problem.of(Scaled(2.0), "half_mse", params={"w": torch.randn(3, 2)})
    response = le.respond(problem, (torch.randn(4, 3), torch.randn(4, 2)))
    assert response.target_change.shape == (4, 4, 2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", ["structured", "vmapped"])
def test_estimate_computes_few_rows(engine, monkeypatch):
    problem, sources = problem_and_sources(300)
    kind = {"structured": StructuredRunner, "vmapped": VmappedRunner}[engine]
    rows, computed = kind.rows, []

    def counted(self, start, stop):
        computed.append(stop - start)
        return rows(self, start, stop)

    monkeypatch.setattr(kind, "rows", counted)
    le.estimate(problem, sources, engine=engine)
    assert 0 < sum(computed) < 50


@pytest.mark.usefixtures("unchecked")
def test_estimate_makes_few_jacobians(monkeypatch):
    problem, sources = problem_and_sources(300)
    examples = []

    def counted(bound, coverage, inputs):
        examples.append(len(inputs))
        return jacobian_factors(bound, coverage, inputs)

    monkeypatch.setattr("local_elasticity.engine.linearized.jacobian_factors", counted)
    assert le.estimate(problem, sources, approximate=True).engine == "linearized"
    assert sum(examples) < 50


def test_estimate_measures_half_precision_as_respond_does():
    net, x, y = nn.Linear(20, 1).bfloat16(), torch.randn(50, 20), torch.randn(50)
    cost = le.estimate(le.Problem.of(net, "mse"), (x, y), engine="linearized")
    assert cost.bytes >= 4 * 50 * 50


class Viewed(nn.Module):
    """The tutorial's LeNet: `view` after a convolution, which channels in another order would refuse."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Conv2d(1, 4, 5), nn.Linear(256, 3)

    def forward(self, x):
        return self.head(torch.relu(self.features(x)).view(-1, 256))


class Strided(nn.Module):
    """What it predicts depends on the order of its numbers in memory."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, x):
        x = torch.relu(self.features(x))
        scale = 1.0 if x.is_contiguous() else 2.0
        return self.head(scale * x.reshape(len(x), -1))


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize(("net", "shape"), [(Viewed, (1, 12, 12)), (Strided, (2, 8, 8))])
def test_a_layout_that_the_network_does_not_take_is_not_tried(net, shape):
    torch.manual_seed(0)
    sources = torch.randn(30, *shape), torch.arange(30) % 3
    model = net()
    found = le.respond(model, sources, loss="cross_entropy", update=le.SGD(0.01))
    assert "channels last" in " ".join(found.notes)
    assert_same_rows(
        found.target_change,
        le.respond(model, sources, loss="cross_entropy", update=le.SGD(0.01), engine="looped").target_change,
        1e-3,
    )


class Turned(torch.autograd.Function):
    """Its gradient has another sign where the channels of a single image come last, as a kernel of torch may have."""

    @staticmethod
    def forward(ctx, x):
        ctx.sign = -1.0 if not x.is_contiguous() and len(x) == 1 else 1.0
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.sign * gradient


class WithTurned(nn.Module):
    def forward(self, x):
        return Turned.apply(x)


def instance_normed(middle):
    torch.manual_seed(1)
    head = nn.GELU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4)
    return nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), middle, *head)


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("middle", [nn.InstanceNorm2d(16), nn.InstanceNorm2d(16, affine=True), WithTurned()], ids=str)
def test_gradients_that_depend_on_the_layout_are_not_used(middle, dtype):
    """torch's instance norm has another gradient with channels last, though its predictions are the same."""
    model, x, y = instance_normed(middle).to(dtype), torch.randn(24, 3, 16, 16), torch.arange(24) % 4
    problem, sources, update = le.Problem.of(model, "cross_entropy"), (x, y), le.SGD(0.01)
    truth = le.relative(le.respond(problem.to(torch.float64), sources, update=update, engine="looped"))
    found = le.respond(problem, sources, update=update)
    assert (le.relative(found) - truth).abs().max() < RESOLVED_ERROR
    assert "gradients of this network depend on the layout" in " ".join(found.notes)
    with pytest.raises(ValueError, match="engine: the gradients of this network depend on the layout"):
        le.respond(problem, sources, update=update, engine=le.Looped(channels_last=True))


class Rarely(nn.Module):
    """A layer that few examples reach."""

    def __init__(self):
        super().__init__()
        self.embed, self.special = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.hidden, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids):
        x, rare = self.embed(ids), ids == 19
        if rare.any():
            x = x + self.special(x) * rare[:, :, None].to(x.dtype)
        return self.head(torch.tanh(self.hidden(x)).mean(1))


@pytest.mark.usefixtures("racing")
def test_a_source_that_comes_late_and_reaches_more_is_taken_by_the_loop():
    torch.manual_seed(0)
    net, n = Rarely().double(), 120
    ids, labels = torch.randint(19, (n, 5)), torch.arange(n) % 3
    ids[n - 2, 1] = 19
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    nn.functional.cross_entropy(net(ids), labels).backward()
    optimizer.step()
    update = le.FromOptimizer(optimizer)
    truth = le.respond(net, (ids, labels), loss="cross_entropy", update=update, engine="looped")
    for _ in range(2):
        found = le.respond(net, (ids, labels), loss="cross_entropy", update=update)
        assert_same_rows(found.target_change, truth.target_change, 1e-9)


class WithUnusedLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.unused, self.head = nn.Linear(4, 8), nn.Linear(2, 2), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def test_gradients_at_once_with_a_layer_that_does_not_reach_the_output():
    torch.manual_seed(0)
    net = WithUnusedLayer()
    sources = torch.randn(9, 4), torch.arange(9) % 3
    alone, together = (
        le.similarity(net, sources, loss="cross_entropy", update=le.SGD(0.1), engine=engine)
        for engine in (le.Looped(), le.Looped(gradients_at_once=4))
    )
    assert torch.allclose(torch.from_numpy(alone.values), torch.from_numpy(together.values), rtol=1e-4)


@pytest.mark.parametrize("given", [0, 2.5, "4", True])
def test_gradients_at_once_is_a_whole_number(given):
    with pytest.raises(ValueError, match="gradients_at_once: expected a whole number"):
        le.Looped(gradients_at_once=given)


@pytest.mark.parametrize("engine", ["vmapped", "structured"])
def test_a_chunk_that_fails_is_tried_as_smaller_chunks(engine, monkeypatch):
    """As cuDNN and vmap fail for some sizes."""
    problem, sources = problem_and_sources(12)
    expected = le.respond(problem, sources, engine="looped").target_change
    runner = {"vmapped": VmappedRunner, "structured": StructuredRunner}[engine]
    rows, tried = runner.rows, []

    def picky(self, start, stop):
        tried.append(stop - start)
        if stop - start > 3:
            raise RuntimeError(f"no kernel for {stop - start} images")
        return rows(self, start, stop)

    chosen = le.Vmapped(12) if engine == "vmapped" else engine
    problem_before = le.respond(problem, sources, engine=chosen)  # what is checked once has been checked
    monkeypatch.setattr(runner, "rows", picky)
    response = le.respond(problem, sources, engine=chosen)
    assert tried == [12, 6, 3, 3, 3, 3]
    assert_same_rows(response.target_change, expected)
    assert_same_rows(problem_before.target_change, expected)


def test_the_first_cause_is_named_if_smaller_chunks_fail_too(monkeypatch):
    problem, sources = problem_and_sources(12)
    tried = []

    def never(self, start, stop):
        tried.append(stop - start)
        raise RuntimeError(f"no kernel for {stop - start} images")

    le.respond(problem, sources, engine=le.Vmapped(12))  # what is checked once has been checked
    monkeypatch.setattr(VmappedRunner, "rows", never)
    with pytest.raises(RuntimeError, match="no kernel for 12 images"):
        le.respond(problem, sources, engine=le.Vmapped(12))
    assert tried == [12, 6, 3]


@pytest.mark.parametrize("faster", ["looped", "structured"])
def test_a_short_job_settles_its_engine_by_whole_calls(faster, monkeypatch):
    """The race tries loops alone, the second call is by differences, the third by the loop, and then the faster
    stays."""
    problem, sources = problem_and_sources(20)
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 1e9)
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_LOOP", 1e9)
    monkeypatch.setattr("local_elasticity.engine.choose.two_layer_runner", lambda job: None)
    monkeypatch.setattr("local_elasticity.engine.structured.two_layer_runner", lambda job: None)
    runners = {"looped": LoopedRunner, "structured": StructuredRunner}
    clocked(monkeypatch, {runner: 0.001 if name == faster else 0.02 for name, runner in runners.items()})
    responses = [le.respond(problem, sources) for _ in range(5)]
    assert [response.engine for response in responses] == ["looped", "structured", "looped", faster, faster]
    assert "structured is timed in this call" in responses[1].notes[-1]
    assert "looped is timed in this call against structured, which took" in responses[2].notes[-1]
    assert "in whole calls" in responses[-1].notes[-1]
    for response in responses[1:]:
        assert_same_rows(response.target_change, responses[0].target_change)


def test_a_rival_that_cannot_take_the_model_is_named_on_every_call(monkeypatch):
    """The loop stays."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Sinc(), nn.Linear(8, 2)).double()
    problem, sources = le.Problem.of(net, "cross_entropy"), problem_and_sources(20)[1]
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 1e9)
    clocked(monkeypatch, {LoopedRunner: 0.01})
    responses = [le.respond(problem, sources) for _ in range(3)]
    assert {response.engine for response in responses} == {"looped"}
    for response in responses[1:]:
        assert any("auto: not structured" in note and "sinc" in note for note in response.notes)


def test_a_job_that_the_loops_nearly_finish_tries_differences_later(monkeypatch):
    """All of it is worth a race, what the loops leave is not."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    problem, sources = le.Problem.of(net, "cross_entropy"), problem_and_sources(20)[1]
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_LOOP", 1e9)
    clocked(monkeypatch, {LoopedRunner: 0.0105, StructuredRunner: 0.001})
    responses = [le.respond(problem, sources) for _ in range(4)]
    assert [response.engine for response in responses] == ["looped", "structured", "looped", "structured"]
    assert "structured is not tried in so short a job, but timed in the next one" in responses[0].notes[-1]


@pytest.mark.usefixtures("racing")
def test_every_call_says_why_it_goes_on_without_structured(monkeypatch):
    """Also if another engine lost after it, in a call of another size, and if the job is too short."""
    problem, sources = problem_and_sources()
    clocked(monkeypatch, {LoopedRunner: 1, StructuredRunner: 20, VmappedRunner: 10})
    for _ in range(2):
        notes = " ".join(le.respond(problem, sources).notes)
        assert "structured (20 s a row) and vmapped in chunks of 1 (10 s a row)" in notes
    odd = le.Problem.of(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Sinc(), nn.Linear(8, 2)).double(), "cross_entropy")
    few = sources[0][:5], sources[1][:5]
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 1e9)
    clocked(monkeypatch, {LoopedRunner: 1e-9})
    assert "auto: not structured (the job is too short to try it)" in le.respond(odd, few).notes
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 0)
    assert any("auto: not structured" in note and "sinc" in note for note in le.respond(odd, sources).notes)
    fewer = sources[0][:4], sources[1][:4]
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 1e9)
    assert any("auto: not structured" in note and "sinc" in note for note in le.respond(odd, fewer).notes)


def test_steps_without_their_drift_do_not_wait_for_a_call_of_differences(monkeypatch):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    sources = problem_and_sources(20)[1]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    nn.functional.cross_entropy(net(sources[0]), sources[1]).backward()
    optimizer.step()
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 1e9)
    clocked(monkeypatch, {LoopedRunner: 0.01})
    update = le.FromOptimizer(optimizer, drift="remove")
    responses = [le.respond(net, sources, loss="cross_entropy", update=update) for _ in range(4)]
    for response in responses:
        assert "timed in the next" not in " ".join(response.notes)
        assert "in whole calls" not in " ".join(response.notes)


class Sinc(nn.Module):
    """A function that has no rule."""

    def forward(self, x):
        return torch.sinc(x)


@pytest.mark.usefixtures("racing")
def test_rows_that_rounding_hides_count_against_the_loop(monkeypatch):
    """A loop that is a little faster loses to differences if its rows are computed again in float64."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    sources = torch.randn(60, 4), torch.arange(60) % 2
    clocked(monkeypatch, {LoopedRunner: 0.01, StructuredRunner: 0.015, VmappedRunner: 1})
    large = le.respond(le.Problem.of(net, "cross_entropy"), sources, update=le.SGD(1.0))
    small = le.respond(le.Problem.of(net, "cross_entropy"), sources, update=le.Adam(1e-9))
    assert large.engine == "looped"
    assert small.engine == "structured"
    assert any("with those in float64" in note for note in small.notes)


def test_a_layout_that_was_chosen_before_is_given_up():
    """The choice holds for jobs of this size; gradients are compared again at other shapes and weights."""
    model, x, y = instance_normed(WithTurned()), torch.randn(12, 3, 16, 16), torch.arange(12) % 4
    problem, update = le.Problem.of(model, "cross_entropy"), le.SGD(0.01)
    with problem.bound() as bound:
        remember(Job.read(bound, (x, y), None, update), Choice(le.Looped(channels_last=True), "chosen"))
    found = le.respond(problem, (x, y), update=update)
    assert "as chosen before, cannot take the model as it is now" in " ".join(found.notes)
    expected = le.respond(problem, (x, y), update=update, engine="looped")
    assert_same_rows(found.target_change, expected.target_change, 1e-3)
