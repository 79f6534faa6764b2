"""What comes with a model: losses, outputs, hooks, optimizers, datasets, files. It is left as it was, or refused."""

import contextlib
import copy
import gc
import os
import signal
import sys
import threading
import weakref
from array import array
from collections import Counter, OrderedDict, deque
from functools import partial, wraps
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import local_elasticity as le
from local_elasticity.engine.job import Job
from local_elasticity.engine.loader_states import read_apart
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.training.language import sequences
from tests.kinds import KINDS, N
from tests.tolerances import RESOLVED_ERROR, SAME_IN_FLOAT64

pytestmark = pytest.mark.usefixtures("unchecked")  # the checks of annotations draw random numbers


def one_call(model, loss="mse", **options):
    x, y = torch.randn(6, 4).double(), torch.randn(6, 2).double()
    return le.respond(le.Problem.of(model, loss, output=options.pop("output", None)), (x, y), **options)


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


class Counting(nn.Module):
    """Its loss and its reading of outputs count their calls."""

    def __init__(self):
        super().__init__()
        self.net, self.calls, self.seen = small_net(), 0, []

    def forward(self, x):
        return self.net(x)

    def loss(self, outputs, labels):
        self.calls += 1
        self.seen.append(outputs)
        return F.mse_loss(outputs, labels.mul_(1))

    def read(self, outputs):
        self.calls += 1
        return outputs


def test_the_loss_and_output_leave_nothing():
    model = Counting()
    one_call(model, model.loss)
    one_call(model, output=model.read)
    assert (model.calls, model.seen) == (0, [])
    x, y = torch.randn(6, 4).double(), torch.randn(6, 2).double()
    before = y.clone()
    le.respond(le.Problem.of(small_net(), lambda out, labels: (out - labels.mul_(2)).square().mean()), (x, y))
    assert torch.equal(y, before)
    norm = nn.BatchNorm1d(2).double()
    with pytest.raises(ValueError, match="model: its batch norm"):
        one_call(small_net(), output=norm)
    assert norm.running_mean.tolist() == [0.0, 0.0]


class Drifting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def forward(self, outputs, labels):
        loss = F.mse_loss(outputs, labels)
        self.scale.mul_(0.5).add_(loss.detach() / 2)
        return loss / self.scale


@pytest.mark.parametrize("loss", [Drifting(), lambda out, labels: F.mse_loss(F.dropout(out), labels)])
def test_a_loss_with_a_memory_or_chance_is_refused(loss):
    with pytest.raises(ValueError, match="loss: two equal calls give different values"):
        one_call(small_net(), loss)


def test_a_hook_counts_nothing():
    model, calls = small_net(), 0

    def count(module, given, out):
        nonlocal calls
        calls += 1

    model[0].register_forward_hook(count)
    one_call(model)
    assert calls == 0


def test_nothing_ends_that_the_model_owns():
    kind = next(kind for kind in KINDS if kind.name == "an object with an end")
    model = kind.model()
    ended = type(model.held).ended
    le.respond(le.Problem.of(model, "mse"), (kind.examples(), torch.randn(N, 2).double()))
    gc.collect()
    assert type(model.held).ended == ended


def test_numbers_in_half_precision_inside_are_not_called_resolved():
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.net(x).float()

    torch.manual_seed(0)
    model, x, y = Inside(), torch.randn(8, 4), torch.randn(8, 2)
    exact = le.relative(le.respond(le.Problem.of(model.net, "mse").to(torch.float64), (x, y)))
    looped = le.relative(le.respond(le.Problem.of(model, "mse"), (x, y), engine="looped"))
    assert looped.isnan().all()  # a step of 1e-3 drowns in the rounding of bfloat16
    auto = le.relative(le.respond(le.Problem.of(model, "mse"), (x, y)))
    assert torch.allclose(auto.double(), exact, rtol=1e-3)  # autocast leaves float64 alone
    with pytest.raises(ValueError, match="model: its forward pass computes in half precision"):
        le.ntk(model, x)


class InFloat32(nn.Module):
    """Computes in float32 whatever its weights are in, as routers and norms of language models do."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x):
        h = torch.tanh(nn.functional.linear(x.float(), self.first.weight.float()))
        return nn.functional.linear(h, self.second.weight.float()).to(self.first.weight.dtype)


@pytest.mark.parametrize("seed", range(4))
def test_float32_inside_is_not_taken_for_a_dependence_on_the_batch(seed):
    torch.manual_seed(seed)
    problem = le.Problem.of(InFloat32(), "cross_entropy").to(torch.float64)
    found = le.similarity(problem, (torch.randn(12, 64), torch.arange(12) % 3), update=le.SGD(0.1))
    assert np.isfinite(found.values).all()


def test_a_dependence_on_the_batch_is_found_beside_float32_inside():
    class Depends(InFloat32):
        def forward(self, x):
            return super().forward(x - 0.1 * x.mean(0))

    with pytest.raises(ValueError, match="model: the prediction for one of the sources changes"):
        le.similarity(Depends().double(), (torch.randn(12, 64), torch.arange(12) % 3), loss="cross_entropy")


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_cast_to_half_precision_is_blamed_on_the_model(half):
    class Casting(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.body, self.head, self.kind = nn.Linear(4, 6), nn.Linear(6, 2).to(half), kind

        def forward(self, x):
            return self.head(self.body(x).to(self.kind or self.head.weight.dtype)).float()

    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    problem = le.Problem.of(Casting(half), "mse")
    with pytest.raises(ValueError, match=f"model: it is measured in torch.float32, .* casts to {half} .*"):
        le.respond(problem, (x, y))
    rough = le.respond(problem.to(half), (x, y), update=le.SGD(10.0), engine="looped")
    fine = le.respond(le.Problem.of(Casting(None), "mse"), (x, y))
    assert rough.target_change.shape == fine.target_change.shape
    assert le.relative(fine).isfinite().all()


def test_all_rows_are_computed_where_float64_is_not_possible():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, x):
            assert x.dtype == torch.float32
            return self.net(x)

    torch.manual_seed(0)
    model, x, y = Single(), torch.randn(30, 4), torch.randn(30, 2)
    y[:10] = model(x[:10]).detach()
    lost = [
        le.relative(le.respond(le.Problem.of(model, "mse"), (x, y), update=le.SGD(0.1), engine=engine)).isnan().any(1)
        for engine in ("auto", "looped")
    ]
    assert lost[0].tolist() == lost[1].tolist()
    assert not lost[0][10:].any()


class OnGraph(nn.Module):
    """Its first layer mixes the features along a graph; a forward pass may write the graph's weights."""

    def __init__(self, graph, writes=False):
        super().__init__()
        self.net, self.writes = small_net(), writes
        self.register_buffer("graph", graph)

    def forward(self, x):
        if self.writes:
            self.graph.mul_(2)
        return self.net((self.graph @ x.T).T)


GRAPH = torch.tensor([[1.0, 0, 0, 0], [0, 0, 2, 0], [0, 0.5, 0, 0], [0, 0, 0, 1]]).double()


@pytest.mark.parametrize("engine", ["auto", "looped", "linearized"])
@pytest.mark.parametrize("sparse", [Tensor.to_sparse, Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_buffer_is_as_the_dense_one(sparse, engine):
    for writes in (False, True):
        given = sparse(GRAPH)
        found = []
        for graph in (GRAPH.clone(), given):
            torch.manual_seed(0)
            found.append(one_call(OnGraph(graph, writes), engine=engine).target_change)
        assert torch.allclose(found[1], found[0], rtol=SAME_IN_FLOAT64, atol=1e-12)
        assert torch.equal(given.to_dense(), GRAPH)


def test_a_frozen_sparse_parameter_stays():
    model = OnGraph(GRAPH)
    torch.manual_seed(0)
    expected = one_call(model).target_change
    del model.graph
    model.graph = nn.Parameter(GRAPH.to_sparse(), requires_grad=False)
    torch.manual_seed(0)
    assert torch.allclose(one_call(model).target_change, expected, rtol=SAME_IN_FLOAT64, atol=1e-12)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_buffer_is_refused(layout):
    model = small_net()
    model.register_buffer("rows", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout))
    with pytest.raises(TypeError, match="model: rows is a nested tensor"):
        one_call(model)


class ToldError(Exception):
    """What a signal handler of the user's raises."""


@pytest.fixture(params=[ToldError, TimeoutError])
def told(request):
    """A signal whose handler raises."""

    def stop(number, frame):
        raise request.param("told")

    before = signal.signal(signal.SIGUSR1, stop)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


CALLS = [0]
"""Forward passes so far; a global list, which no copy of a model counts on its own."""


class Interrupted(nn.Module):
    """The signal arrives in its forward pass of this number."""

    def __init__(self, at):
        super().__init__()
        self.net, self.at = small_net(), at

    def forward(self, x):
        CALLS[0] += 1
        if CALLS[0] == self.at:
            signal.raise_signal(signal.SIGUSR1)
        return self.net(x)


@pytest.mark.parametrize("engine", ["auto", "structured", "vmapped", "looped"])
def test_what_a_signal_handler_raises_ends_the_call(told, engine):
    CALLS[0] = 0
    one_call(Interrupted(at=-1), engine=engine)
    for at in range(1, CALLS[0] + 1):
        CALLS[0] = 0
        with pytest.raises(told, match="^told$"):
            one_call(Interrupted(at), engine=engine)


@pytest.mark.parametrize(
    "place", ["blocks.zarr.open_group", "blocks.Grid.read", "blocks._digest", "result.xr.open_zarr"]
)
def test_what_a_signal_handler_raises_is_no_damage(told, place, tmp_path, monkeypatch):
    le.similarity(le.Problem.of(small_net(), "mse"), (torch.ones(3, 4), torch.ones(3, 2)), store=tmp_path / "s.zarr")
    monkeypatch.setattr(f"local_elasticity.store.{place}", lambda *_, **__: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(told, match="^told$"):
        le.load(tmp_path / "s.zarr")


def test_what_a_signal_handler_raises_ends_training(told):
    model = Interrupted(at=-1)
    monitor = le.Monitor(model, (torch.ones(6, 4).double(), torch.arange(6) % 2), loss="cross_entropy", every=1)
    model.at, CALLS[0] = 1, 0
    with pytest.raises(told, match="^told$"):
        monitor.step(0)


class Wrapper:
    """An optimizer of the user's that is none of torch's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


def test_hooks_that_come_later_and_wrappers_are_refused():
    model = small_net()
    optimizer = torch.optim.RMSprop(model.parameters())
    with pytest.raises(TypeError, match="optimizer: expected a torch.optim.Optimizer, got Wrapper"):
        le.FromOptimizer(Wrapper(optimizer))
    update = le.FromOptimizer(optimizer)
    optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(ValueError, match="optimizer: it has step hooks"):
        one_call(model, update=update)


def test_a_step_that_was_replaced_is_refused():
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update, plain = le.FromOptimizer(optimizer), optimizer.step
    optimizer.step = plain  # as it was, bound
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    one_call(model, update=le.FromOptimizer(optimizer))
    for other in (lambda closure=None: plain(closure), wraps(optimizer.step)(lambda closure=None: plain(closure))):
        optimizer.step = other
        for refused in (lambda: le.FromOptimizer(optimizer), lambda: one_call(model, update=update)):
            with pytest.raises(ValueError, match="optimizer: its step was replaced"):
                refused()


def test_a_cache_of_parametrizations_is_not_read():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)).double()
    torch.manual_seed(0)
    outside = one_call(model, update=le.SGD(0.1), engine="looped").target_change
    torch.manual_seed(0)
    with nn.utils.parametrize.cached():
        model(torch.zeros(1, 4).double())
        kept = dict(nn.utils.parametrize._cache)
        inside = one_call(model, update=le.SGD(0.1), engine="looped").target_change
        assert nn.utils.parametrize._cache.keys() == kept.keys()
    assert torch.equal(inside, outside)


def test_a_child_of_a_measuring_process_measures():
    started, end = threading.Event(), threading.Event()

    def waiting(done, total):
        started.set()
        end.wait(60)

    thread = threading.Thread(target=lambda: one_call(small_net(), progress=waiting), daemon=True)
    thread.start()
    try:
        assert started.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            one_call(small_net(), engine="looped")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        end.set()
        thread.join(60)


class Augmented(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((4,), float(i) + float(self.transform(0.0))).double(), torch.zeros(2).double()


class Noise:
    __slots__ = ("rng",)

    def __init__(self, rng):
        self.rng = rng

    def of(self, value):
        return value + self.rng.normal()


class Composed:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


HOLDERS = {
    "a closure": lambda rng: lambda value: value + rng.normal(),
    "a default argument": lambda rng: lambda value, rng=rng: value + rng.normal(),
    "a bound method": lambda rng: Noise(rng).of,
    "a method of its own": lambda rng: rng.normal,
    "a partial": lambda rng: partial(lambda value, by: value + by.normal(), by=rng),
    "a dict": lambda rng: Noise({"rng": rng}["rng"]).of,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_generators_of_a_dataset_stay(holder):
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    le.respond(le.Problem.of(small_net(), "mse"), Augmented(HOLDERS[holder](rng)))
    assert rng.bit_generator.state == before


def test_generators_of_nested_datasets_stay():
    """Of transforms in transforms, reached through the sampler of a loader first."""
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    data = Augmented(Composed(Composed(Composed(Noise(rng).of))))
    parts = torch.utils.data.ConcatDataset([torch.utils.data.Subset(data, [0, 2]), data])
    le.respond(le.Problem.of(small_net(), "mse"), torch.utils.data.DataLoader(parts, batch_size=2, shuffle=True))
    assert rng.bit_generator.state == before


class Stream(torch.utils.data.IterableDataset):
    """Examples in another order in every epoch."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        for i in np.random.default_rng(self.epoch).permutation(6):
            yield torch.full((4,), float(i)).double(), torch.zeros(2).double()


def test_an_iterable_dataset_counts_no_epoch():
    stream = Stream()
    le.respond(le.Problem.of(small_net(), "mse"), torch.utils.data.DataLoader(stream, batch_size=2))
    assert stream.epoch == 0


class Epochs(torch.utils.data.Sampler):
    epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(range(6))

    def __len__(self):
        return 6


def test_a_sampler_counts_no_epoch():
    sampler = Epochs()
    loader = torch.utils.data.DataLoader(Augmented(lambda value: 0.0), sampler=sampler)
    le.respond(le.Problem.of(small_net(), "mse"), loader)
    assert sampler.epoch == 0


class InPlace(torch.utils.data.Sampler):
    """Shuffles what it holds, whatever that is."""

    def __init__(self, held, shuffle):
        self.held, self.shuffle = held, shuffle

    def __iter__(self):
        self.shuffle(self.held)
        return iter([int(i) for i in (self.held.values() if isinstance(self.held, dict) else self.held)])

    def __len__(self):
        return 6


class Slots:
    """An iterable that is no Sampler, and has no attributes but those it names."""

    __slots__ = ("epoch", "order")

    def __init__(self):
        self.order, self.epoch = list(range(6)), 0

    def __iter__(self):
        self.epoch += 1
        self.order.reverse()
        return iter(self.order)

    def __len__(self):
        return 6


class Buckets(torch.utils.data.IterableDataset):
    """Lists in a list, each shuffled in its place."""

    def __init__(self):
        self.buckets = [list(range(i, i + 3)) for i in range(0, 120, 3)]

    def __iter__(self):
        for bucket in self.buckets:
            bucket.append(bucket.pop(0))
            yield torch.full((4,), float(bucket[0])).double(), torch.zeros(2).double()


class CountedTurns(torch.utils.data.Sampler):
    """Counts, in a class made from dict whose update adds, and in an object that only holds values."""

    def __init__(self):
        self.counts, self.state = Counter(a=1, b=5), SimpleNamespace(turn=0)

    def __iter__(self):
        self.state.turn += 1
        return iter([(i + self.state.turn * self.counts["b"]) % 6 for i in range(6)])

    def __len__(self):
        return 6


class Ragged(torch.utils.data.Sampler):
    """Batches of unequal lengths in an array of objects, in private slots, and in an array of numbers."""

    __slots__ = ("__order", "buckets")

    def __init__(self):
        self.buckets = np.empty(3, dtype=object)
        self.buckets[:] = [np.arange(1), np.arange(1, 3), np.arange(3, 6)]
        self.__order = array("i", range(3))

    def __iter__(self):
        self.__order.append(self.__order.pop(0))
        return iter([self.buckets[i].tolist() for i in self.__order])

    def __len__(self):
        return 3


def _swap(held):
    last = len(held) - 1
    held[0], held[last] = held[last], held[0]


def _swap_tensor(held):
    held.copy_(held.flip(0))


ORDERED = {
    "a list": lambda: {"sampler": InPlace(list(range(6)), _swap)},
    "an array": lambda: {"sampler": InPlace(np.arange(6), lambda held: np.random.default_rng(0).shuffle(held))},
    "a tensor": lambda: {"sampler": InPlace(torch.arange(6), _swap_tensor)},
    "a dict": lambda: {"sampler": InPlace({i: i for i in range(6)}, _swap)},
    "a deque": lambda: {"sampler": InPlace(deque(range(6)), lambda held: held.rotate(1))},
    "slots": lambda: {"sampler": Slots()},
    "batches of slots": lambda: {"batch_sampler": torch.utils.data.BatchSampler(Slots(), 2, False)},
    "buckets": lambda: {"batch_size": 4},
    "a counter": lambda: {"sampler": CountedTurns()},
    "ragged buckets": lambda: {"batch_sampler": Ragged()},
    "an ordered dict": lambda: {"sampler": InPlace(OrderedDict((i, i) for i in range(6)), _to_end)},
    "a tensor without data": lambda: {"sampler": InPlace([*range(6)], lambda held: torch.empty(2, device="meta"))},
}


def _to_end(held):
    held.move_to_end(next(iter(held)))


class Frozen(list):
    """A list that may not be written."""

    def __setitem__(self, place, value):
        raise TypeError("frozen")


def test_what_cannot_be_put_back_keeps_nothing_else_from_it():
    first, last = InPlace(Frozen(range(6)), lambda held: held.append(held.pop(0))), torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(Augmented(lambda value: 0.0), sampler=first, generator=last)
    before = last.get_state()
    le.respond(le.Problem.of(small_net(), "mse"), loader, engine="looped", progress=False)
    assert list(first.held) == list(range(6))
    assert torch.equal(last.get_state(), before)


class Decoded(list):
    """A list that gives something else than it holds."""

    def __iter__(self):
        return iter([SimpleNamespace(path=one) for one in list.__iter__(self)])

    def __len__(self):
        return 1


def test_containers_with_methods_of_their_own_keep_what_they_hold():
    held = Decoded(["a", "b"])
    sampler = InPlace([*range(6)], lambda _: held.append(held.pop(0)))
    sampler.files = held
    loader = torch.utils.data.DataLoader(Augmented(lambda value: 0.0), sampler=sampler)
    le.respond(le.Problem.of(small_net(), "mse"), loader, engine="looped", progress=False)
    assert list.__repr__(held) == "['a', 'b']"


class Turns(torch.utils.data.IterableDataset):
    epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([{"input_ids": torch.arange(6) + i} for i in range(8)])


def test_streams_leave_a_loader_between_batches_as_it_is():
    """Two at once, and one that is left half-way while training goes on."""
    data = Turns()
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    first, second = (read_apart(loader, lambda batch: batch) for _ in range(2))
    for _ in zip(first, second, strict=True):
        assert data.epoch == 0
    half = read_apart(loader, lambda batch: batch)
    next(half)
    assert [len(list(loader)) for _ in range(3)] == [4] * 3
    half.close()
    assert data.epoch == 3


def test_a_stream_over_a_deque_is_read():
    """Nothing is written into it between two batches."""

    class Tokens(torch.utils.data.IterableDataset):
        def __init__(self):
            self.rows = deque({"input_ids": torch.arange(6) + i} for i in range(8))

        def __iter__(self):
            return iter(self.rows)

    found = sequences(torch.utils.data.DataLoader(Tokens(), batch_size=2))
    assert len(found[1]) == 8


@pytest.mark.parametrize("name", ORDERED)
def test_what_a_sampler_shuffles_in_place_is_as_before(name):
    def orders(measured):
        data = Buckets() if name == "buckets" else Augmented(lambda value: float(value))
        loader = torch.utils.data.DataLoader(data, **ORDERED[name]())
        found = []
        for _ in range(3):
            found.append([batch[0].tolist() for batch in loader])
            if measured:
                le.respond(le.Problem.of(small_net(), "mse"), loader, engine="looped", progress=False)
        return found

    assert orders(measured=True) == orders(measured=False)


READING = {"kept_states", "read_apart", "_put", "_put_attributes"}


def test_an_interrupt_while_examples_are_read_leaves_the_loader():
    """At every line of what puts samplers and generators back."""
    sampler, generator = Epochs(), torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(Augmented(lambda value: 0.0), batch_size=2, sampler=sampler)
    loader.generator = generator
    problem, before = le.Problem.of(small_net(), "mse"), (dict(vars(loader.batch_sampler)), generator.get_state())
    for moment in range(10_000):
        left = moment

        def interrupt(frame, event, _):
            nonlocal left
            if frame.f_code.co_name not in READING or not frame.f_code.co_filename.endswith("loader_states.py"):
                return None
            left -= event == "line"
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            le.respond(problem, loader, engine="looped", progress=False)
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(None)
        assert sampler.epoch == 0
        assert vars(loader.batch_sampler) == before[0]
        assert torch.equal(generator.get_state(), before[1])
    assert moment > 20


def test_arrays_of_any_layout_are_read():
    x, y = np.random.default_rng(0).normal(size=(6, 4)), np.zeros((6, 2))
    expected = le.respond(le.Problem.of(small_net(), "mse"), (x, y)).target_change
    for other in (x.astype(">f8"), np.asfortranarray(x), x[::-1][::-1], x.astype(np.longdouble)):
        found = le.respond(le.Problem.of(small_net(), "mse"), (other, y)).target_change
        assert torch.allclose(found, expected, rtol=SAME_IN_FLOAT64)
    for bad in (np.ma.masked_array(x), pd.DataFrame(x)):
        with pytest.raises(TypeError, match="sources or targets: "):
            le.respond(le.Problem.of(small_net(), "mse"), (bad, y))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"params": "("}, "params: '\\(' is not a regular expression"),
        ({"output": "logits"}, "output: expected a function"),
        ({"output": lambda out: out.logits}, "output: it fails on what the model returns, a Tensor"),
    ],
)
def test_a_problem_says_what_is_wrong(given, words):
    with pytest.raises((ValueError, TypeError), match=words):
        le.respond(le.Problem.of(small_net(), "mse", **given), (torch.randn(6, 4).double(), torch.randn(6, 2).double()))


def test_an_interrupt_where_torch_leaves_a_mode():
    """Ctrl-C on the way out of a context manager of torch's, which would put our mode back when it is forgotten."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()
    hit = 0
    for nth in range(1, 8):
        seen = 0

        def interrupt(frame, event, argument, nth=nth):
            nonlocal seen
            code, caller = frame.f_code, frame.f_back
            if event == "call" and code.co_name == "__exit__" and code.co_filename == contextlib.__file__:
                seen += caller is not None and caller.f_code.co_name == "handle_torch_function"
                if seen == nth:
                    sys.settrace(None)
                    raise KeyboardInterrupt

        sys.settrace(interrupt)
        try:
            one_call(model, engine="structured")
        except KeyboardInterrupt:
            hit += 1
        finally:
            sys.settrace(None)
        assert torch._C._len_torch_function_stack() == 0
    assert hit


@pytest.mark.parametrize(("width", "scale", "step_size"), [(4, 100.0, 0.1), (8, 1000.0, 0.01), (16, 100.0, 0.1)])
def test_units_that_a_large_step_turns_off_do_not_cancel_unseen(width, scale, step_size):
    """What units that flip take back of a change in float32 counts as noise, and such rows are computed again."""
    for seed in range(5):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
        sources = scale * torch.randn(10, 4), torch.randn(10)
        problem, update = le.Problem.of(net, "mse"), le.SGD(step_size)
        found = le.relative(le.respond(problem, sources, update=update)).double()
        truth = le.relative(le.respond(problem.to(torch.float64), sources, update=update, engine="looped"))
        known = found.isfinite() & truth.isfinite()
        assert ((found - truth).abs() / truth.clamp_min(1))[known].le(RESOLVED_ERROR).all()


def clipping(net, level):
    """A backward hook that does nothing to small gradients."""
    net[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0].clamp(-level, level),))
    return net


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("engine", ["structured", "vmapped", "linearized"])
def test_backward_hooks_of_modules_run_in_the_loop_alone(deep, engine):
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)]
    net = clipping(nn.Sequential(*(layers if deep else [*layers[:2], nn.Linear(6, 1)])), 1e-3).double()
    x = torch.randn(12, 4).double()
    labels = net(x)[:, 0].detach() + torch.linspace(0, 2, 12).double()
    problem = le.Problem.of(net, "half_mse")
    with pytest.raises(ValueError, match="cannot .* backward hooks of modules"):
        le.respond(problem, (x, labels), engine=engine)
    found = le.respond(problem, (x, labels))
    expected = le.respond(problem, (x, labels), engine="looped")
    assert found.engine == "looped"
    assert torch.equal(found.target_change, expected.target_change)


def test_a_softplus_with_a_low_threshold_is_as_linear_as_it_says():
    net = nn.Sequential(nn.Linear(4, 6), nn.Softplus(threshold=1), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    sources = 3 * torch.randn(8, 4).double(), torch.arange(8) % 2
    problem = le.Problem.of(net, "cross_entropy")
    for step_size in (1e-3, 1.0):
        found, expected = (
            le.respond(problem, sources, update=le.SGD(step_size), engine=engine).target_change
            for engine in ("structured", "looped")
        )
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


class StraightThrough(nn.Module):
    def forward(self, x):
        return x + (torch.sign(x) * x.abs().sqrt() - x).detach()


def test_linearized_says_where_gradients_are_not_derivatives():
    net = nn.Sequential(nn.Linear(4, 6), StraightThrough(), nn.Linear(6, 2)).double()
    sources = torch.randn(8, 4).double(), torch.arange(8) % 2
    response = le.respond(le.Problem.of(net, "cross_entropy"), sources, engine="linearized")
    assert "off the limit of small steps" in response.notes[0]
    honest = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    assert le.respond(le.Problem.of(honest, "cross_entropy"), sources, engine="linearized").notes == ()


class Pieces(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x):
        return torch.cat([self.body(piece) for piece in x.split(16)]) if len(x) > 16 else self.body(x)


@pytest.mark.parametrize("engine", ["auto", "structured"])
def test_two_layers_that_take_large_batches_in_pieces_are_measured(engine):
    problem = le.Problem.of(Pieces().double(), "cross_entropy")
    sources = torch.randn(30, 4).double(), torch.arange(30) % 2
    found = le.respond(problem, sources, engine=engine).target_change
    expected = le.respond(problem, sources, engine="looped").target_change
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-14)


class Conditional(nn.Module):
    """A layer that some examples do not reach."""

    def __init__(self):
        super().__init__()
        self.first, self.extra = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        reached = x[:, :1] > 0
        out = self.first(x)
        return out + self.extra(x) * reached if reached.any() else out


@pytest.mark.parametrize("engine", ["linearized", "structured"])
def test_an_optimizer_that_skips_what_some_sources_do_not_reach_is_left_to_the_loop(engine):
    net = Conditional().double()
    x = torch.randn(8, 4).double()
    x[:, 0] = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    problem, update = le.Problem.of(net, "cross_entropy"), le.FromOptimizer(optimizer)
    with pytest.raises(ValueError, match="which the optimizer may skip"):
        le.respond(problem, (x, torch.arange(8) % 2), update=update, engine=engine)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_copied_once(kind):
    """They write lists of their weights, which follow from the weights, so that one copy serves all passes."""
    net = nn.Sequential(kind(3, 4, batch_first=True), Last(), nn.Linear(4, 2)).double()
    x, update = torch.randn(5, 6, 3).double(), le.SGD(0.1)
    problem, sources = le.Problem.of(net, "cross_entropy"), (x, torch.arange(5) % 2)
    with problem.bound() as bound:
        job = Job.read(bound, sources, None, update)
        runner, kept = LoopedRunner(job), bound.replica._kept
        found = runner.rows(0, 5).target_change
        assert bound.replica._kept is kept is not None
    for row, change in enumerate(found):
        stepped = copy.deepcopy(net)
        stepped.zero_grad()
        nn.functional.cross_entropy(stepped(x[row : row + 1]), sources[1][row : row + 1]).backward()
        torch.optim.SGD(stepped.parameters(), lr=0.1).step()
        assert torch.allclose(change, (stepped(x) - net(x)).detach(), rtol=1e-9, atol=1e-12)


class Last(nn.Module):
    def forward(self, result):
        return result[0][:, -1]


class Counted:
    def __init__(self):
        self.n = 0


class Holder(nn.Module):
    """A net whose forward pass counts in an object that it reaches by way of something else."""

    def __init__(self, hold, reach):
        super().__init__()
        self.net, self.count = small_net(), Counted()
        self.held, self.reach = hold(self.count), reach

    def forward(self, x):
        self.reach(self.held).n += 1
        return self.net(x)


class Row(tuple):
    """A tuple of a class of its own."""


class Bound:
    def __init__(self, count):
        self.count = count

    def add(self):
        return self.count


@pytest.mark.parametrize(
    ("hold", "reach"),
    [
        (weakref.ref, lambda held: held()),
        (weakref.proxy, lambda held: held),
        (lambda one: weakref.WeakValueDictionary(a=one), lambda held: held["a"]),
        (lambda one: weakref.WeakSet([one]), lambda held: next(iter(held))),
        (lambda one: Row([one]), lambda held: held[0]),
        (lambda one: MappingProxyType({"a": one}), lambda held: held["a"]),
        (lambda one: (bound := Bound(one), weakref.WeakMethod(bound.add)), lambda held: held[1]()()),
    ],
    ids=["ref", "proxy", "values", "set", "tuple", "mapping", "method"],
)
def test_what_is_held_weakly_or_in_odd_containers_does_not_change(hold, reach):
    model = Holder(hold, reach)
    one_call(model)
    assert model.count.n == 0


LISTED = {}


class Listed(nn.Module):
    """Its subclasses are listed."""

    def __init_subclass__(cls, *, key, **options):
        super().__init_subclass__(**options)
        LISTED[key] = cls


class Closing(Listed, key="closing"):
    __slots__ = ("__scale",)

    def __init__(self):
        super().__init__()
        self.net, self.__scale = small_net(), 2.0

    def forward(self, x):
        return self.net(x) * self.__scale

    def __del__(self):
        """Release what the network owns."""


def test_a_class_that_lists_its_subclasses_is_not_told_of_the_copy():
    assert len(one_call(Closing()).target_change) == 6
    assert list(LISTED.values()) == [Closing]


class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.__dict__["parent"] = weakref.proxy(parent)

    def forward(self, x):
        return x * self.parent.scale


def test_a_module_may_know_its_parent_by_a_proxy():
    parent = nn.Sequential(small_net())
    parent.scale = nn.Parameter(torch.tensor(2.0).double())
    parent.append(Child(parent))
    found = one_call(parent)
    assert found.target_change.abs().sum() > 0


@pytest.mark.parametrize("over", [KeyboardInterrupt, TimeoutError, SystemExit])
def test_a_call_inside_an_except_clause_is_not_ended_by_what_is_handled_there(over):
    bags = nn.Sequential(nn.EmbeddingBag(10, 6), nn.Linear(6, 2))
    sources = torch.randint(0, 10, (6, 3)), torch.arange(6) % 2
    try:
        raise over
    except over:
        assert len(le.respond(bags, sources, loss="cross_entropy").target_change) == 6  # some engines raise inside
        with pytest.raises(ValueError, match="^sources: "):
            le.respond(bags, (sources[0].float(), sources[1]), loss="cross_entropy")


@pytest.mark.parametrize("setting", ["dtype", "device"])
def test_defaults_of_torch_do_not_matter(setting):
    net, x, y = nn.Linear(4, 2), torch.randn(6, 4), torch.arange(6) % 2
    before = le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD("auto"))
    default = torch.get_default_dtype()
    try:
        if setting == "dtype":
            torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta") if setting == "device" else contextlib.nullcontext():
            after = le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD("auto"))
    finally:
        torch.set_default_dtype(default)
    np.testing.assert_allclose(after, before, rtol=1e-3)


def test_what_cannot_be_read_or_measured_there_is_told():
    x, y = torch.randn(6, 4), torch.arange(6) % 2
    items = [{"x": x[i], "labels": y[i], "id": "a"} for i in range(6)]
    problem = le.Problem.of(nn.Linear(4, 2), "cross_entropy")
    with pytest.raises(TypeError, match=r"DataLoader hold a str; leave it out"):
        le.respond(problem, DataLoader(items, batch_size=2))
    with pytest.raises(RuntimeError, match=r"outside of torch\.func"):
        torch.func.grad(lambda x: le.respond(problem, (x, y)).target_change.sum())(x)
