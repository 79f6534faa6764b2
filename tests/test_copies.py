"""What models, losses and optimizers hold is copied part by part, so that a measurement writes to none of it."""

import copy
import ctypes
import functools
import gc
import io
import itertools
import logging
import math
import queue
import random
import signal
import sys
import threading
import weakref
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import PIL.Image
import pydantic
import pytest
import torch
from torch import nn

import local_elasticity as le
from tests.tolerances import SAME_IN_FLOAT32, SAME_IN_FLOAT64

pytestmark = pytest.mark.usefixtures("unchecked")  # the checks of annotations draw random numbers

CLOSE = {"rtol": SAME_IN_FLOAT32, "atol": SAME_IN_FLOAT32}

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


def measured(model, engine="looped", output=None, update=None):
    problem = le.Problem.of(model, "cross_entropy", output=output)
    return le.respond(problem, (X, Y), update=update or le.SGD(0.1), engine=engine).target_change


class Net(nn.Linear):
    """Holds something, and uses it in its forward pass; `made` counts its calls."""

    def __init__(self, hold, use):
        torch.manual_seed(0)
        super().__init__(4, 3)
        self.use, self.made_so_far = use, 0
        self.held = hold(self)

    def made(self, *args):
        self.made_so_far += 1
        return self.made_so_far

    def forward(self, x):
        self.use(self.held)
        return super().forward(x)


class Count:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1


@dataclass(slots=True)
class Slotted:
    """Not copied by `copy.deepcopy`: a lock, and an activation that is part of a graph."""

    n: int = 0
    lock: Any = field(default_factory=threading.Lock)
    last: Any = field(default_factory=lambda: torch.ones(2, requires_grad=True) * 2)

    def up(self):
        self.n += 1


class Loud:
    """Containers that log what is written to them."""

    def log(self, what):
        self.seen.append(what)


class Table(Loud, dict):
    def __setitem__(self, key, value):
        self.log(key)
        super().__setitem__(key, value)


class Row(Loud, list):
    def append(self, value):
        self.log(value)
        super().append(value)

    def extend(self, values):
        self.log(values)
        super().extend(values)


class Turns(Loud, deque):
    def append(self, value):
        self.log(value)
        super().append(value)


class Values(weakref.WeakValueDictionary):
    """A weak dict of a class of its own."""


class Members(weakref.WeakSet):
    """A weak set of a class of its own."""


class Pair(namedtuple("Pair", ["a"])):
    """A named tuple with attributes."""


class Rebuilt(Count):
    """Copied by its own `__reduce__`."""

    def __reduce__(self):
        return Rebuilt, (), {"n": self.n}


class Deep(Count):
    """Copied by its own `__deepcopy__`, which cannot copy the activation that it holds."""

    def __init__(self):
        super().__init__()
        self.last = torch.ones(2, requires_grad=True) * 2
        self.gone = weakref.proxy(Count())

    def __deepcopy__(self, memo):
        made = Deep()
        made.n, made.last = self.n, copy.deepcopy(self.last, memo)
        return made


class Refusing(Count):
    """An object that says that it cannot be copied."""

    def __reduce_ex__(self, protocol):
        raise TypeError("not to be pickled")

    def __deepcopy__(self, memo):
        raise TypeError("not to be copied")


class InC(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int),)


def with_attribute(value, **attributes):
    vars(value).update(attributes)
    return value


def beside(**others):
    """A counter that also holds something that has no copy."""
    return lambda net: with_attribute(Count(), **others)


def kept(net, holder, one):
    """A holder that refers to something weakly, which the net keeps."""
    net.kept = one
    return holder(one)


def local(net):
    return with_attribute(threading.local(), n=0)


def add(held):
    held.n += 1


def objects(net):
    made = np.empty(2, object)
    made[0], made[1] = net.weight, Count()
    return made


@functools.lru_cache(maxsize=8)
def doubled(n):
    return 2 * n


def read_to(position, made):
    """A file that was read up to a position."""
    made.seek(position)
    return made


HELD = {
    "a namespace with an activation": (
        lambda net: SimpleNamespace(n=0, last=net.weight * 2),
        add,
        lambda net: (net.held.n, id(net.held.last)),
    ),
    "a namespace with a lock": (lambda net: SimpleNamespace(n=0, lock=threading.Lock()), add, lambda net: net.held.n),
    "slots": (lambda net: Slotted(), Slotted.up, lambda net: net.held.n),
    "a queue": (lambda net: queue.Queue(), lambda held: held.put(1), lambda net: net.held.qsize()),
    "a user's dict": (
        lambda net: UserDict(last=net.weight * 2),
        lambda held: held.update(n=1),
        lambda net: list(net.held),
    ),
    "a simple queue beside": (beside(other=queue.SimpleQueue()), Count.up, lambda net: net.held.n),
    "a view of memory beside": (beside(other=memoryview(bytearray(2))), Count.up, lambda net: net.held.n),
    "a thread's own": (local, add, lambda net: net.held.n),
    "a structure of C": (lambda net: InC(), add, lambda net: net.held.n),
    "a rebuilt object": (lambda net: Rebuilt(), Count.up, lambda net: net.held.n),
    "a deep copy": (lambda net: Deep(), Count.up, lambda net: net.held.n),
    "an object without copies": (lambda net: Refusing(), Count.up, lambda net: net.held.n),
    "a cached method": (
        lambda net: functools.lru_cache(4)(net.made),
        lambda held: held(1),
        lambda net: (net.made_so_far, net.held.cache_info().currsize),
    ),
    "a cached function": (lambda net: doubled, lambda held: held(1), lambda net: net.held.cache_info()),
    "a partial of a cached function": (
        lambda net: functools.partial(doubled, 2),
        lambda held: held(),
        lambda net: doubled.cache_info(),
    ),
    "a default that is made": (
        lambda net: defaultdict(functools.partial(net.made, 0)),
        lambda held: held["a"],
        lambda net: (net.made_so_far, len(net.held)),
    ),
    "what max returns": (
        lambda net: torch.ones(3, 4).max(0),
        lambda held: held.values.mul_(2),
        lambda net: net.held.values.tolist(),
    ),
    "a loud dict": (
        lambda net: with_attribute(Table(a=1), seen=[]),
        lambda held: held.update(b=2),
        lambda net: (dict(net.held), vars(net.held)),
    ),
    "a loud list": (
        lambda net: with_attribute(Row([1]), seen=[]),
        lambda held: held.append(2),
        lambda net: (list(net.held), vars(net.held)),
    ),
    "a loud deque": (
        lambda net: with_attribute(Turns([1], 3), seen=[]),
        lambda held: held.append(2),
        lambda net: (list(net.held), vars(net.held)),
    ),
    "an ordered dict": (
        lambda net: OrderedDict(a=[]),
        lambda held: held["a"].append(1),
        lambda net: dict(net.held),
    ),
    "a weak dict": (
        lambda net: kept(net, lambda one: Values(a=one), Count()),
        lambda held: held["a"].up(),
        lambda net: net.kept.n,
    ),
    "a weak set": (
        lambda net: kept(net, lambda one: Members([one]), Count()),
        lambda held: next(iter(held)).up(),
        lambda net: net.kept.n,
    ),
    "a large mapping": (
        lambda net: MappingProxyType({**{i: [i] for i in range(300)}, "a": Count()}),
        lambda held: held["a"].up(),
        lambda net: net.held["a"].n,
    ),
    "a saved method": (
        lambda net: kept(net, lambda one: one.append, []),
        lambda held: held(1),
        lambda net: net.kept,
    ),
    "a tuple's attribute": (
        lambda net: with_attribute(Pair(1), seen=[]),
        lambda held: held.seen.append(1),
        lambda net: net.held.seen,
    ),
    "a tensor's attribute": (
        lambda net: with_attribute(torch.ones(2), seen=[]),
        lambda held: held.seen.append(1),
        lambda net: net.held.seen,
    ),
    "a frame": (
        lambda net: pd.DataFrame({"a": [[1], Count()], "b": [1.0, 2.0]}),
        lambda held: (held.loc[0, "a"].append(1), held.loc[1, "a"].up(), held.__setitem__("b", 0.0)),
        lambda net: (net.held.loc[0, "a"], net.held.loc[1, "a"].n, list(net.held["b"])),
    ),
    "a series": (lambda net: pd.Series([[1]]), lambda held: held[0].append(1), lambda net: net.held[0]),
    "a text in memory": (
        lambda net: read_to(2, io.StringIO("text")),
        lambda held: (held.read(1), held.write("more")),
        lambda net: (net.held.getvalue(), net.held.tell()),
    ),
    "a file in memory": (
        lambda net: read_to(2, io.BytesIO(b"text")),
        lambda held: (held.read(1), held.write(b"more")),
        lambda net: (net.held.getvalue(), net.held.tell()),
    ),
    "a file's attribute": (
        lambda net: with_attribute(io.BytesIO(), seen=[]),
        lambda held: held.seen.append(1),
        lambda net: net.held.seen,
    ),
    "an image": (
        lambda net: PIL.Image.new("RGB", (2, 2)),
        lambda held: held.putpixel((0, 0), (1, 2, 3)),
        lambda net: net.held.tobytes(),
    ),
    "an array of objects": (objects, lambda held: (held[0] + 1, held[1].up()), lambda net: net.held[1].n),
}


@pytest.mark.parametrize("name", HELD)
def test_what_a_model_holds_does_not_change(name):
    hold, use, read = HELD[name]
    net = Net(hold, use)
    before = copy.deepcopy(read(net))
    found = measured(net)
    assert read(net) == before
    assert torch.equal(found, measured(Net(lambda net: None, lambda held: None)))


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "jagged", "nested"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
def test_tensors_of_other_layouts_do_not_change(layout):
    def hold(net):
        if layout.startswith("to"):
            return getattr(torch.eye(4), layout)()
        options = {"layout": torch.jagged} if layout == "jagged" else {}
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **options)

    net = Net(hold, lambda held: held.mul_(0.5))
    measured(net)
    parts = net.held.unbind() if net.held.is_nested else [net.held.to_dense()]
    assert all(part.max() == 1 for part in parts)


def hooked(state):
    """A net whose hook writes to a state."""
    net = Net(lambda net: None, lambda held: None)

    def note(module, given, out):
        state.n += 1
        state.last = out

    net.register_forward_hook(note)
    return net


@pytest.mark.parametrize("make", [Slotted, lambda: SimpleNamespace(n=0, last=torch.ones(2, requires_grad=True) * 2)])
def test_what_hooks_and_outputs_write_does_not_change(make):
    state = make()
    last = state.last
    measured(hooked(state))
    net = Net(lambda net: None, lambda held: None)

    def read(out):
        state.n += 1
        state.last = out
        return out

    measured(net, output=read)
    assert state.n == 0
    assert state.last is last


def test_a_method_that_is_a_hook_writes_to_a_copy():
    class Store:
        __slots__ = ("seen",)

        def __init__(self):
            self.seen = [torch.ones(2, requires_grad=True) * 2]

        def note(self, module, given, out):
            self.seen.append(out)

    store, net = Store(), Net(lambda net: None, lambda held: None)
    net.register_forward_hook(store.note)
    measured(net)
    assert len(store.seen) == 1


def test_what_functions_and_weights_carry_does_not_change():
    net = Net(lambda net: None, lambda held: None)
    old = net.forward

    def forward(x):
        forward.log.append(1)
        return old(x)

    forward.log = []
    net.forward = forward
    net.weight.seen = {"x": []}
    net.register_forward_hook(lambda module, given, out: module.weight.seen["x"].append(1))
    net.register_buffer("scale", with_attribute(torch.ones(1), seen=[]))
    net.register_forward_hook(lambda module, given, out: module.scale.seen.append(1))
    measured(net)
    assert (forward.log, net.weight.seen, net.scale.seen) == ([], {"x": []}, [])


class Stateful(nn.Module):
    """Its outputs are divided by how often it was called."""

    def __init__(self, state, count):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.state, self.count = nn.Linear(4, 3), state, count

    def forward(self, x):
        return self.body(x) / self.count(self.state)


def counted(state):
    state.n += 1
    return state.n


def counted_in(state):
    state += 1
    return int(state[0])


STATES = {
    "a namespace": (lambda: SimpleNamespace(n=0), counted),
    "slots": (Slotted, counted),
    "an object": (Count, counted),
    "a rebuilt object": (Rebuilt, counted),
    "an array": (lambda: np.zeros(2), counted_in),
    "a structure of C": (InC, counted),
}


@pytest.mark.parametrize("name", STATES)
def test_states_that_outputs_read_are_measured_as_they_are(name):
    """Each forward pass of a measurement starts from the state at that moment."""
    make, count = STATES[name]
    for calls in (0, 60):
        net = Stateful(make(), count)
        for _ in range(calls):
            count(net.state)
        expected = Stateful(Count(), lambda state, calls=calls: calls + 1)
        assert torch.equal(measured(net, "auto"), measured(expected, "auto"))
        assert count(net.state) == calls + 1


def test_a_watched_run_is_the_run():
    def trained(watched):
        torch.manual_seed(0)
        net = Stateful(SimpleNamespace(n=0, last=None), counted)
        net.register_forward_hook(lambda module, given, out: setattr(module.state, "last", out))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(X)
        monitor = le.Monitor(net, (X, Y), loss="cross_entropy", every=5, budget=None) if watched else None
        for step in range(30):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), Y).backward()
            optimizer.step()
            if monitor is not None:
                monitor.step(step)
        return net.body.weight.detach(), net.state.n

    alone, watched = trained(False), trained(True)
    assert torch.equal(alone[0], watched[0])
    assert alone[1] == watched[1]


class Told(ValueError):  # noqa: N818
    """What a signal handler of the user's raises."""


@pytest.fixture
def told():
    def stop(number, frame):
        raise Told("told")

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


def ringing(method, again):
    """An object during whose copying a signal arrives."""

    def copied(self, *args):
        signal.raise_signal(signal.SIGUSR1)
        return again(self)

    return type("Ringing", (Count,), {method: copied})()


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    "one", [ringing("__reduce__", lambda one: (Count, ())), ringing("__deepcopy__", lambda one: Count())]
)
def test_what_a_signal_handler_raises_while_objects_are_copied_ends_the_call(one):
    net = Net(lambda net: one, lambda held: held.up())
    with pytest.raises(Told, match="^told$"):
        measured(net)
    assert net.held.n == 0


class Rings(Count):
    """An object with an attribute that a signal interrupts, whose handler raises what an empty slot raises."""

    __slots__ = ("empty",)


LOOKING = ("slot", "proxied", "cell_contents", "_assembled", "tried")


@pytest.mark.parametrize("what", [AttributeError, ValueError, TypeError, ReferenceError])
def test_what_a_signal_handler_raises_is_no_missing_part(what):
    """While an object's parts are looked at, where such errors are expected."""
    told = type("Told", (what,), {})

    def stop(number, frame):
        raise told("told")

    def trace(frame, event, _):
        nonlocal left
        code = frame.f_code
        if code.co_name not in LOOKING or not code.co_filename.endswith(("object_parts.py", "copier.py")):
            return None
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
        return trace

    net = Net(lambda net: Rings(), lambda held: held.up())
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        for moment in range(12):
            left = moment
            sys.settrace(trace)
            with pytest.raises(told, match="^told$"):
                measured(net)
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGUSR1, before)
    assert net.held.n == 0


@pytest.mark.usefixtures("told")
def test_what_a_signal_handler_raises_ends_the_search_for_a_step_size(monkeypatch):
    place = "local_elasticity.measurement.Measurement.with_step_size"

    def ringing(self):
        if math.isnan(self.update.step_size):  # "auto"
            signal.raise_signal(signal.SIGUSR1)
        return self

    monkeypatch.setattr(place, ringing)
    with pytest.raises(Told, match="^told$"):
        le.check_step(nn.Linear(4, 3), (X, Y), loss="cross_entropy", update=le.SGD(0.1))


class Turned(nn.Module):
    """Reads a complex matrix whose values torch keeps as the conjugate or the negative of what is in memory."""

    def __init__(self, turn, buffer):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)
        turned = turn(torch.randn(4, 4, dtype=torch.complex64))
        if buffer:
            self.register_buffer("turned", turned)
        else:
            self.turned = turned

    def forward(self, x):
        return self.head(torch.view_as_real(x.to(self.turned.dtype) @ self.turned).sum(-1))


class Negative(Turned):
    def forward(self, x):
        return self.head(x @ self.turned)


@pytest.mark.parametrize(
    ("kind", "turn"), [(Turned, lambda w: w.conj()), (Negative, lambda w: w.conj().imag)], ids=["conj", "neg"]
)
def test_conjugates_and_negatives_are_read_as_they_are(kind, turn):
    expected = measured(kind(turn, buffer=True))
    torch.testing.assert_close(measured(kind(turn, buffer=False)), expected, **CLOSE)


@pytest.mark.parametrize("hold", [dict, SimpleNamespace, lambda flat: Slotted(last=flat), lambda flat: Deeper(flat)])
def test_a_view_of_a_weight_is_refused_wherever_it_is_held(hold):
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)
            self.held = hold(flat=self.body.weight.detach().view(-1))

        def forward(self, x):
            held = self.held
            flat = held["flat"] if isinstance(held, dict) else getattr(held, "flat", getattr(held, "last", None))
            return self.body(x) + x @ flat.view(3, 4).T

    problem = le.Problem.of(Viewing(), "cross_entropy")
    for one, x in ((problem, X), (problem.to(torch.float64), X.double())):
        with pytest.raises(ValueError, match="model: its forward pass, or output=, reads body.weight from"):
            le.respond(one, (x, Y), update=le.SGD(0.1))


class Deeper:
    """Copied by its own `__deepcopy__`."""

    def __init__(self, flat):
        self.flat = flat

    def __deepcopy__(self, memo):
        return Deeper(copy.deepcopy(self.flat, memo))


def test_a_dead_proxy_is_left_alone():
    net = nn.Linear(4, 3)
    one = Count()
    net.held = weakref.proxy(one)
    del one
    assert measured(net, "auto").isfinite().all()


@pytest.mark.parametrize("engine", ["auto", "structured", "vmapped"])
@pytest.mark.parametrize("hold", [lambda layer: SimpleNamespace(layer=layer), lambda layer: Slotted(last=layer)])
def test_layers_in_namespaces_are_measured_by_all_engines(hold, engine):
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.held = nn.Linear(4, 3), hold(nn.Linear(4, 3))

        def forward(self, x):
            layer = self.held.layer if isinstance(self.held, SimpleNamespace) else self.held.last
            return self.body(x) + layer(x)

    torch.testing.assert_close(measured(Beside(), engine), measured(Beside()), **CLOSE)


class Guarded(torch.optim.SGD):
    """An optimizer with what `copy.deepcopy` does not copy."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.lock, self.steps = threading.Lock(), SimpleNamespace(n=0)
        self.scale = torch.ones((), requires_grad=True) * 0.5

    @torch.no_grad()
    def step(self, closure=None):
        with self.lock:
            self.steps.n += 1
            for p in self.param_groups[0]["params"]:
                p.add_(p.grad * self.scale, alpha=-0.1)


def test_optimizers_with_locks_and_graphs_are_copied():
    net = nn.Linear(4, 3).double()
    optimizer = Guarded(net.parameters())
    problem, sources = le.Problem.of(net, "cross_entropy"), (X.double(), Y)
    found = le.respond(problem, sources, update=le.FromOptimizer(optimizer), engine="looped").target_change
    expected = le.respond(problem, sources, update=le.SGD(0.05), engine="looped").target_change
    torch.testing.assert_close(found, expected, rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)
    assert optimizer.steps.n == 0


class Knows(Count):
    """Holds what it is given."""

    def __init__(self, *held):
        super().__init__()
        self.held = list(held)

    def __call__(self):
        self.n += 1


class Hashed(Knows):
    """An element of sets that is hashed by its name, which is written after the set."""

    def __init__(self, name):
        super().__init__()
        self.near, self.name = frozenset(), name

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


class Made(Knows):
    """Made again from parts that refer to it."""

    def __reduce__(self):
        return Made, tuple(self.held), {"n": self.n}


def tree(net):
    """A tree whose leaves know their parent weakly; the net holds a leaf before the root."""
    root = Knows()
    root.held = [with_attribute(Knows(), parent=weakref.ref(root)) for _ in range(2)]
    net.leaf = root.held[1]
    return root


def in_a_tuple(kind):
    def hold(net):
        one, other = Knows(), Knows()
        one.all = kind((one, other))
        net.other = other
        return one.all

    return hold


def leading_back(wrap, name="way"):
    """What leads to a counter that holds it; the net holds it before the counter."""

    def hold(net):
        counter = Knows()
        setattr(counter, name, wrap(counter))
        net.first = getattr(counter, name)
        return counter

    return hold


def closed(counter):
    return lambda: counter()


def by_default(counter):
    return lambda counter=counter: counter()


def by_attribute(counter):
    def way():
        way.counter()

    way.counter = counter
    return way


def near(net):
    one, other = Hashed("one"), Hashed("other")
    one.near, other.near = frozenset([other]), frozenset([one])
    net.other = other
    return one


def remade(net):
    one = Made()
    one.held = [one, [one]]
    net.listed = one.held
    return one


CYCLES = {
    "a tree with weak parents": (
        tree,
        lambda root: root.held[0].parent()(),
        lambda net: net.held.n,
    ),
    "a tuple": (in_a_tuple(tuple), lambda held: held[0].all[1](), lambda net: net.other.n),
    "a named tuple": (
        in_a_tuple(lambda both: namedtuple("Both", ["one", "other"])(*both)),
        lambda held: held.one.all.other(),
        lambda net: net.other.n,
    ),
    "a tuple in a frozen set": (
        in_a_tuple(lambda both: (frozenset([both]), both[1])),
        lambda held: next(iter(next(iter(held[0]))[0].all[0]))[1](),
        lambda net: net.other.n,
    ),
    "a bound method": (leading_back(lambda one: one.up), lambda one: one.way(), lambda net: net.held.n),
    "a partial": (
        leading_back(lambda one: functools.partial(Knows.up, one)),
        lambda one: one.way(),
        lambda net: net.held.n,
    ),
    "a cached method": (
        leading_back(lambda one: functools.lru_cache(one.up)),
        lambda one: one.way(),
        lambda net: (net.held.n, net.first.cache_info().currsize),
    ),
    "a weak reference": (leading_back(weakref.ref), lambda one: one.way()(), lambda net: net.held.n),
    "a weak method": (
        leading_back(lambda one: weakref.WeakMethod(one.up)),
        lambda one: one.way()(),
        lambda net: net.held.n,
    ),
    "a proxy": (leading_back(weakref.proxy), lambda one: one.way.up(), lambda net: net.held.n),
    "a read-only mapping": (
        leading_back(lambda one: MappingProxyType({"a": one})),
        lambda one: one.way["a"](),
        lambda net: net.held.n,
    ),
    "a closure": (leading_back(closed), lambda one: one.way(), lambda net: net.held.n),
    "a default": (leading_back(by_default), lambda one: one.way(), lambda net: net.held.n),
    "an attribute of a function": (leading_back(by_attribute), lambda one: one.way.counter(), lambda net: net.held.n),
    "frozen sets of each other": (near, lambda one: next(iter(one.near))(), lambda net: net.other.n),
    "an object made of itself": (remade, lambda one: one.held[1][0](), lambda net: net.held.n),
}


@pytest.mark.parametrize("name", CYCLES)
def test_cycles_end_at_the_copy(name):
    hold, use, read = CYCLES[name]
    net = Net(hold, use)
    before = copy.deepcopy(read(net))
    found = measured(net)
    assert read(net) == before
    assert torch.equal(found, measured(Net(lambda net: None, lambda held: None)))


def test_parts_that_know_their_tuple_are_measured_as_they_are():
    class Scaled(Net):
        def forward(self, x):
            return super().forward(x) * self.held[1].n

    net = Scaled(in_a_tuple(tuple), lambda held: held[0].all[1]())
    torch.testing.assert_close(measured(net), measured(Scaled(lambda net: [None, SimpleNamespace(n=1)], id)), **CLOSE)


def chain(link, length):
    def hold(net):
        first = None
        for _ in range(length):
            first = link(first)
        return first

    return hold


@pytest.mark.parametrize(
    ("link", "length"),
    [
        (lambda after: with_attribute(Count(), after=after), 190),
        (lambda after: {"after": after}, 3000),
        (lambda after: [after], 3000),
    ],
)
def test_long_chains_are_copied(link, length):
    assert measured(Net(chain(link, length), lambda held: None), "auto").isfinite().all()


def test_an_object_that_is_nested_too_deeply_is_named():
    with pytest.raises(ValueError, match="model: an object that it holds cannot be copied, because its parts are nes"):
        measured(Net(chain(lambda after: (after, []), 3000), lambda held: None))


def test_an_object_of_python_s_own_that_is_made_of_itself_is_named():
    def hold(net):
        made = [1]
        made.append(itertools.cycle(made))
        return made[1]

    with pytest.raises(ValueError, match="model: an object of cycle, which it holds, is made of parts"):
        measured(Net(hold, lambda held: None))


@functools.lru_cache
def drawn(size):
    return torch.randn(4, size)


class Projected(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.drawn = drawn

    def forward(self, x):
        return super().forward(x @ self.drawn(4))


def test_what_a_cached_function_gave_is_what_it_gives():
    """Its entries are draws that are made once; a cache of its own would draw others."""
    drawn.cache_clear()
    net = Projected()
    expected = net(X).detach()
    found = le.respond(le.Problem.of(net, "cross_entropy"), (X, Y), update=le.SGD(0.1), engine="looped")
    torch.testing.assert_close(found.target_before, expected)


@dataclass(frozen=True)
class Task:
    """A key that hashes by what it holds, of which an empty copy has the defaults."""

    name: str = "easy"
    level: int = 1


class ByTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.task, self.layer = Task("hard", 2), nn.Linear(4, 3)
        self.scale = {Task(): 0.5, self.task: 4.0, (self.task, 1): 2.0}

    def forward(self, x):
        return self.layer(x) * self.scale.get(self.task, 1.0) * self.scale.get((self.task, 1), 1.0)


def test_keys_that_hash_by_what_they_hold_are_complete_when_they_are_put():
    net = ByTask()
    found = le.respond(le.Problem.of(net, "cross_entropy"), (X, Y), update=le.SGD(0.1), engine="looped")
    torch.testing.assert_close(found.target_before, net(X).detach())
    assert list(net.scale) == [Task(), net.task, (net.task, 1)]


def test_a_helper_with_a_logger_is_copied():
    loggers = [logging.getLogger(f"{__name__}.{i}") for i in range(300)]
    net = Net(lambda net: with_attribute(Count(), log=loggers[0]), lambda held: (held.up(), held.log.name))
    measured(net)
    assert net.held.n == 0


class Running(nn.Module):
    """Writes statistics and reads them by another name."""

    def __init__(self, kind, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kind = nn.Linear(4, 3, dtype=dtype), kind
        self.register_buffer("stats", torch.ones(2, 3, dtype=dtype))
        if kind == "two buffers":
            self.register_buffer("mean", self.stats[0])
        elif kind == "attributes":
            self.mean, self.whole = self.stats[0], self.stats.view(-1)

    def forward(self, x):
        if self.kind == "attributes":
            self.whole.mul_(0.5)
            self.stats.add_(1.0)
        else:
            self.stats.mul_(0.5).add_(1.0)
        return self.body(x) * (self.stats[0] if self.kind == "one buffer" else self.mean)


@pytest.mark.parametrize("engine", ["looped", "auto"])
@pytest.mark.parametrize("kind", ["two buffers", "attributes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_that_share_memory_share_it_in_the_copy(kind, dtype, engine):
    def found(kind):
        problem = le.Problem.of(Running(kind, dtype), "cross_entropy").to(torch.float64)
        return le.respond(problem, (X.double(), Y), update=le.SGD(0.1), engine=engine).target_change

    torch.testing.assert_close(found(kind), found("one buffer"), rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)


def test_memory_that_is_shared_with_another_type_is_named():
    class Bits(Running):
        def __init__(self):
            super().__init__("one buffer")
            self.bits = self.stats.view(torch.int64)

        def forward(self, x):
            return super().forward(x) + (self.bits > 0).sum()

    with pytest.raises(ValueError, match="model: its forward pass writes stats, which shares memory with a tensor"):
        measured(Bits())


class OwnCopy:
    """Copied by its own method, with its state inside of a container."""

    def __init__(self, calls=()):
        self.calls = list(calls)

    def __deepcopy__(self, memo):
        return OwnCopy(self.calls)


class OwnReduce:
    """Made again from its state, which its class copies."""

    def __init__(self, calls=()):
        self.calls = list(calls)

    def __reduce__(self):
        return OwnReduce, (self.calls,)


class OwnTensor:
    """Copied by its own method, which gives the copy another tensor."""

    def __init__(self, n=None):
        self.n = torch.zeros(()) if n is None else n

    def __deepcopy__(self, memo):
        return OwnTensor(self.n.clone())


class Model(pydantic.BaseModel):
    calls: list = []


def called(state):
    state.calls.append(1)
    return len(state.calls)


def structured(calls=()):
    made = np.empty(1, dtype=[("calls", object)])
    made["calls"][0] = list(calls)
    return made


def called_in_a_row(state):
    state["calls"][0].append(1)
    return len(state["calls"][0])


def counted_in_memory(state):
    state[0] = state[0] + 1
    return state[0]


def counted_in_pixels(state):
    state.putpixel((0, 0), state.getpixel((0, 0)) + 1)
    return state.getpixel((0, 0))


INSIDE = {
    "a pydantic model": (Model, called),
    "its own deep copy": (OwnCopy, called),
    "its own parts": (OwnReduce, called),
    "a tensor": (OwnTensor, lambda state: int(state.n.add_(1))),
    "an array of records": (structured, called_in_a_row),
    "a storage": (lambda: torch.zeros(2, dtype=torch.uint8).untyped_storage(), counted_in_memory),
    "itertools": (lambda: itertools.count(1), next),
    "a frame": (lambda: pd.DataFrame({"calls": [[]]}), lambda state: called(SimpleNamespace(calls=state.iloc[0, 0]))),
    "a file in memory": (io.BytesIO, lambda state: state.write(b"1") and state.tell()),
    "an image": (lambda: PIL.Image.new("L", (1, 1)), counted_in_pixels),
}


@pytest.mark.parametrize("name", INSIDE)
def test_states_inside_of_objects_are_measured_as_they_are(name):
    """Those of objects that are copied by their class, or are written in C. Outputs change after 15 calls."""
    make, count = INSIDE[name]

    def warmed_up(state):
        return 1.0 if count(state) <= 15 else 30.0

    net = Stateful(make(), warmed_up)
    assert torch.equal(measured(net, "auto"), measured(Stateful(None, lambda state: 1.0), "auto"))
    assert count(net.state) == 1


@pytest.mark.parametrize(
    "make", [lambda: random.Random(1), lambda: np.random.default_rng(1), lambda: torch.Generator().manual_seed(1)]
)
def test_generators_that_a_model_holds_draw_the_same_in_each_pass(make):
    def drawn(state):
        if isinstance(state, torch.Generator):
            return torch.rand((), generator=state)
        return state.random()

    first = drawn(make())
    found = measured(Stateful(make(), drawn), "auto")
    torch.testing.assert_close(found, measured(Stateful(None, lambda state: first), "auto"), **CLOSE)


def test_a_closed_file_in_memory_is_shared():
    net = Net(lambda net: io.StringIO("text"), lambda held: None)
    net.held.close()
    assert measured(net, "auto").isfinite().all()


def test_a_state_that_cannot_be_read_is_taken_to_change():
    class Closed(random.Random):
        def __deepcopy__(self, memo):
            return Closed(0)

        def __reduce__(self):
            raise TypeError("not to be pickled")

    net = Stateful(Closed(0), lambda state: 1.0 if state.random() > 0.5 else 30.0)
    assert torch.equal(measured(net, "auto"), measured(Stateful(None, lambda state: 1.0), "auto"))


def test_an_object_that_is_only_held_costs_no_speed():
    for make, _ in INSIDE.values():
        problem = le.Problem.of(Stateful(make(), lambda state: 1.0), "cross_entropy")
        with problem.bound() as bound:
            bound.watched(X)
            assert not bound.replica.effects.writes


def test_a_parameter_in_a_list_is_one_in_the_copy():
    class Listed(nn.Linear):
        def __init__(self):
            torch.manual_seed(0)
            super().__init__(4, 3)
            self.held = [nn.Parameter(torch.full((3,), 5.0), requires_grad=False)]

        def forward(self, x):
            return super().forward(x) * math.prod(one for one in self.held if isinstance(one, nn.Parameter))

    class Plain(Listed):
        def forward(self, x):
            return nn.Linear.forward(self, x) * self.held[0]

    assert torch.equal(measured(Listed()), measured(Plain()))


class Branching(nn.Module):
    """Takes another branch where a tensor that is not registered requires a gradient."""

    def __init__(self, hold, required):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.required = nn.Linear(4, 8), nn.Linear(8, 3), required
        self.held = hold(torch.linspace(1.0, 2.0, 8).requires_grad_(required))

    def forward(self, x):
        scale = self.held["scale"] if isinstance(self.held, dict) else self.held[0]
        assert scale.requires_grad == self.required
        return self.head(self.body(x).tanh() * scale)


HOLDS = {
    "a dict": lambda tensor: {"scale": tensor},
    "a list of parameters": lambda tensor: [nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)],
    "a view": lambda tensor: [tensor.detach().view(2, 4).view(8).requires_grad_(tensor.requires_grad)],
}


def responded(**options):
    return lambda net: le.respond(net, (X, Y), loss="cross_entropy", **options).target_change


def alike(measure, **options):
    return lambda net: torch.as_tensor(
        le.similarity(net, (X, Y), loss="cross_entropy", measure=measure, **options).values
    )


ASKED = {
    **{engine: responded(update=le.SGD(0.1), engine=engine) for engine in ("auto", "looped", "vmapped", "structured")},
    "linearized": responded(update=le.SGD(1e-6), approximate=True),
    **{measure: alike(measure, update=le.SGD(0.1)) for measure in ("kl", "loss", "relative_l1")},
    "stiffness": alike("stiffness_cos"),
    "ntk": lambda net: le.ntk(net, X),
    "sketch": lambda net: le.gradient_sketch(net, X, dimension=16),
    "live optimizer": lambda net: responded(update=le.FromOptimizer(torch.optim.Adamax(net.parameters())))(net),
    "sequence": lambda net: (
        le.respond_in_sequence(le.Problem.of(net, "cross_entropy"), (X, Y), X, update=le.SGD(0.1)).target_change
    ),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_tensors_that_are_not_registered_require_gradients_as_in_the_model(hold, ask):
    net = Branching(hold, required=True)
    found, expected = ask(net), ask(Branching(hold, required=False))
    assert torch.equal(found, expected)
    assert not found.requires_grad
    assert (net.held["scale"] if isinstance(net.held, dict) else net.held[0]).grad is None


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("required", [False, True])
def test_parameters_do_not_count_as_reached_because_a_tensor_that_is_not_registered_is(required, ask):
    class Unreached(Branching):
        def forward(self, x):
            return super().forward(x).detach() * self.held[0][:3]

    with pytest.raises(ValueError, match="^model: none of the parameters that step"):
        ask(Unreached(lambda tensor: [tensor], required))


class ByIdentity(torch.optim.Optimizer):
    """Keeps rates by the identity of parameters, and ends with something to release."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        held = self.param_groups[0]["params"]
        self.rates = {(id(p), "rate"): 0.1 for p in held}
        self.known = {id(p) for p in held}

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if id(p) in self.known:
                p.sub_(self.rates.get((id(p), "rate"), 0.0) * p.grad)

    def __del__(self): ...


def test_optimizers_that_know_parameters_by_identity_take_their_own_step():
    net = nn.Linear(4, 3).double()
    problem, sources = le.Problem.of(net, "cross_entropy"), (X.double(), Y)
    update = le.FromOptimizer(ByIdentity(net.parameters()))
    found = le.respond(problem, sources, update=update, engine="looped").target_change
    expected = le.respond(problem, sources, update=le.SGD(0.1), engine="looped").target_change
    torch.testing.assert_close(found, expected, rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)


class Word(str):
    """A word with attributes."""


def known_by_its_class():
    class Closed(nn.Linear):
        def forward(self, x):
            return super().forward(x) * bool(net.out_features)

    net = Closed(4, 3)
    return net


def known_by_a_word():
    net = nn.Linear(4, 3)
    net.word = with_attribute(Word("a"), owner=net)
    return net


def known_by_the_class_of_a_part():
    net = nn.Linear(4, 3)
    kind = type("Part", (), {"net": net})
    net.part = kind()
    return net


@pytest.mark.parametrize("make", [known_by_its_class, known_by_a_word, known_by_the_class_of_a_part])
def test_a_model_that_its_class_refers_to_is_freed(make):
    net = make()
    measured(net, "auto")
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


class Asked:
    """Counts how often its containers and attributes are read."""

    asked = 0

    def count(self, *args):
        type(self).asked += 1
        raise LookupError("asked")

    __len__ = __iter__ = items = values = __hash__ = __eq__ = count


class AskedTable(Asked, dict):
    """A dict."""


class AskedRow(Asked, list):
    """A list."""


class AskedTuple(Asked, tuple):
    """A tuple."""

    __slots__ = ()


class AskedFunction(Asked):
    def __call__(self): ...

    def __getattr__(self, name):
        self.count()


@pytest.mark.parametrize("engine", ["looped", "auto"])
def test_containers_of_the_user_are_not_asked(engine):
    net = nn.Linear(4, 3)
    net.table, net.row, net.both, net.function = AskedTable(a=1), AskedRow([1]), AskedTuple((1,)), AskedFunction()
    measured(net, engine)
    assert Asked.asked == 0
    assert all(kind.asked == 0 for kind in Asked.__subclasses__())


class CountsInKeys(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.seen = {0: None}

    def forward(self, x):
        (count,) = self.seen
        del self.seen[count]
        self.seen[count + 1] = None
        return super().forward(x) * (2 if count < 5 else 3)


class CountsInData(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.count = torch.zeros(1)

    def forward(self, x):
        self.count.data = self.count.data + 1
        return super().forward(x) * (2 if float(self.count) < 8 else 3)


@pytest.mark.parametrize("make", [CountsInKeys, CountsInData])
@pytest.mark.parametrize("engine", ["looped", "auto"])
def test_states_in_keys_and_in_data_are_measured_as_they_are(make, engine):
    torch.manual_seed(0)
    net, x, y = make(), torch.randn(3, 4), torch.arange(3)
    plain = nn.Sequential(nn.Linear(4, 3))
    plain[0].load_state_dict(net.state_dict())
    problem = le.Problem.of(plain, "cross_entropy", output=lambda out: 2 * out)
    exact = le.respond(problem, (x, y), update=le.SGD(0.1)).target_change
    for _ in range(3):
        found = le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(0.1), engine=engine).target_change
        assert torch.allclose(found, exact, rtol=1e-4, atol=1e-6)
    assert net.seen == {0: None} if make is CountsInKeys else float(net.count) == 0


@dataclass
class Setting:
    """Hashed and compared by identity."""

    name: str
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def keyed(make, place=lambda one: one, modules=False):
    """A table with keys that the net holds as well: before the table, or after it."""

    def hold(net):
        one, other = (nn.Identity(), nn.Identity()) if modules else (Setting("one"), Setting("other"))
        net.before = one
        table = make({place(one): torch.tensor(2.0), place(other): net.bias, "name": torch.tensor(5.0)})
        net.after = [other]
        return table

    return hold


KEYED = {
    "a dict": (keyed(dict), lambda one: one),
    "an ordered dict": (keyed(OrderedDict), lambda one: one),
    "a loud dict": (keyed(lambda held: with_attribute(Table(held), seen=[])), lambda one: one),
    "a weak dict": (
        keyed(lambda held: weakref.WeakKeyDictionary({k: v for k, v in held.items() if k != "name"})),
        lambda one: one,
    ),
    "a user's dict": (keyed(UserDict), lambda one: one),
    "modules": (keyed(dict, modules=True), lambda one: one),
    "modules in tuples": (keyed(dict, lambda one: ("at", one), modules=True), lambda one: ("at", one)),
    "tuples": (keyed(dict, lambda one: ("at", one)), lambda one: ("at", one)),
}


@pytest.mark.parametrize("engine", ["looped", "vmapped", "auto"])
@pytest.mark.parametrize("name", KEYED)
def test_dictionaries_are_asked_for_what_the_model_holds(name, engine):
    hold, place = KEYED[name]

    class Scaled(Net):
        def forward(self, x):
            scale, shift = self.held[place(self.before)], self.held[place(self.after[0])]
            assert list(self.held)[:2] == [place(self.before), place(self.after[0])]
            return super().forward(x) * scale + shift

    class Plain(Net):
        def forward(self, x):
            return super().forward(x) * 2.0 + self.bias

    net = Scaled(hold, lambda held: None)
    torch.testing.assert_close(measured(net, engine), measured(Plain(lambda net: None, id)), **CLOSE)
    assert [key for key in net.held if key != "name"] == [place(net.before), place(net.after[0])]


SHARED_KEY = Setting("shared")


def test_dictionaries_are_asked_for_global_names():
    class Scaled(Net):
        def forward(self, x):
            return super().forward(x) * self.held[SHARED_KEY]

    net = Scaled(lambda net: {SHARED_KEY: 1.0}, id)
    assert torch.equal(measured(net), measured(Net(lambda net: None, id)))


class KeepsItsLast(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.last = torch.zeros(1)

    def forward(self, x):
        found = super().forward(x)
        self.last = found.detach()
        return found


@pytest.mark.parametrize("engine", ["looped", "vmapped", "structured"])
def test_a_tensor_that_is_kept_from_pass_to_pass_is_measured(engine):
    torch.manual_seed(0)
    net, x, y = KeepsItsLast(), torch.randn(3, 4), torch.arange(3)
    plain = nn.Sequential(nn.Linear(4, 3))
    plain[0].load_state_dict({name: part for name, part in net.state_dict().items() if name != "last"})
    exact = le.respond(plain, (x, y), loss="cross_entropy", update=le.SGD(0.1)).target_change
    found = le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(0.1), engine=engine).target_change
    assert torch.allclose(found, exact, rtol=1e-4, atol=1e-6)
    assert torch.equal(net.last, torch.zeros(1))
