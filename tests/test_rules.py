"""The rules one by one: f(h + δ) − f(h) as the function itself gives it, for small and large δ, and without cancelling
in float32."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from local_elasticity.engine import structured  # noqa: F401 (registers the rules)
from local_elasticity.engine.composites import COMPOSITES
from local_elasticity.engine.difference import (
    AS_ANOTHER,
    IN_PLACE,
    LINEAR,
    READ_AS,
    RULES,
    Difference,
    Writable,
    base_of,
    delta_of,
)
from local_elasticity.engine.supported import ChangedChoiceError, UnsupportedModelError
from tests.calls import CALLS, Moves, rotated, set_item
from tests.tolerances import CANCELLED, SAME_IN_FLOAT64

SOURCES = 3

COMPLEX = {torch.view_as_complex, torch.view_as_real, torch.real, torch.imag}
COMPLEX |= {Tensor.real.__get__, Tensor.imag.__get__}
"""Functions of complex numbers, which are tried together."""

each_call = pytest.mark.parametrize("i", range(len(CALLS)), ids=lambda i: f"{i}-{CALLS[i].name}")


def drawn(call, size, dtype=torch.float64):
    """Arguments before the step and their differences [c, …], None where nothing moves; of float32's numbers."""
    leaves, spec = tree_flatten((call.args, call.kwargs))
    bases, deltas = [], []
    for leaf in leaves:
        if isinstance(leaf, Moves):
            h, noise = torch.randn(leaf.shape), size * torch.randn(SOURCES, *leaf.shape)
            h = h.abs() + 0.5 if leaf.positive else h
            noise = h * torch.expm1(noise.clamp(-3, 3)) if leaf.positive else noise
            bases.append(h.to(dtype)), deltas.append(noise.to(dtype))
        else:
            bases.append(_cast(leaf, dtype)), deltas.append(None)
    return bases, deltas, spec


def subsets(deltas):
    """All that may move moving, and each alone."""
    moving = [i for i, delta in enumerate(deltas) if delta is not None]
    alone = [{i} for i in moving] if len(moving) > 1 else []
    return [[d if i in some else None for i, d in enumerate(deltas)] for some in [set(moving), *alone]]


def called(function, leaves, spec):
    args, kwargs = tree_unflatten(leaves, spec)
    found = [leaf for leaf in tree_leaves(function(*args, **kwargs)) if isinstance(leaf, Tensor)]
    return [leaf for leaf in found if leaf.is_floating_point()]


def before_and_after(function, bases, deltas, spec):
    """Values before, and after the step of each source, in float64."""
    bases, deltas = ([_cast(leaf, torch.float64) for leaf in leaves] for leaves in (bases, deltas))
    before, after = called(function, bases, spec), []
    for i in range(SOURCES):
        moved = [b if d is None else b + d[i] for b, d in zip(bases, deltas, strict=True)]
        after.append(called(function, moved, spec))
    return before, [torch.stack(parts) for parts in zip(*after, strict=True)]


def differences(call, bases, deltas):
    """Arguments as Structured has them: activations and weights are differences whether they move or not."""
    leaves, _ = tree_flatten((call.args, call.kwargs))
    found = zip(leaves, bases, deltas, strict=True)
    return [Difference.of(b.clone(), d) if isinstance(leaf, Moves) else b for leaf, b, d in found]


def assert_right(found, before, after, *, share, rounding):
    """Each output and its difference: to a share of the difference's norm, and some rounding of the values."""
    assert len(found) == len(before)
    for out, old, new in zip(found, before, after, strict=True):
        base, delta = base_of(out).double(), delta_of(out)
        assert base.shape == old.shape
        assert delta is None or delta.shape == new.shape
        delta = torch.zeros_like(new) if delta is None else delta.double()
        largest = rounding * max(1.0, float(old.abs().max()), float(new.abs().max()))
        assert (base - old).abs().max() <= max(largest, share * old.abs().max())
        change = new - old
        assert (delta - change).norm() <= share * change.norm() + largest * change.numel() ** 0.5


def _cast(leaf, dtype):
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def test_every_rule_is_tried():
    tried = {function for call in CALLS for function in call.functions}
    tried |= {Tensor.__setitem__} if set_item in tried else set()
    tried |= CHOICES | (COMPLEX if rotated in tried else set())
    of_rules = "local_elasticity.engine.rules."  # a docstring's example registers one too
    ours = [function for function, written in RULES.items() if str(written.__module__).startswith(of_rules)]
    assert not [function for function in (*ours, *LINEAR, *COMPOSITES) if function not in tried]
    assert not [function for function in (*IN_PLACE.values(), *READ_AS.values()) if function not in tried]


@each_call
@pytest.mark.parametrize("size", [1e-3, 1.0, 10.0])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@torch.no_grad()
def test_rules_give_the_difference(i, size):
    """Of arguments that all move, and of each that moves alone."""
    call = CALLS[i]
    for function in call.functions:
        bases, all_deltas, spec = drawn(call, size)
        for deltas in subsets(all_deltas):
            found = called(function, differences(call, bases, deltas), spec)
            before, after = before_and_after(function, bases, deltas, spec)
            assert_right(found, before, after, share=SAME_IN_FLOAT64, rounding=1e-6 if call.coarse else 1e-13)


@each_call
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@torch.no_grad()
def test_rules_do_not_cancel_in_float32(i):
    """Differences of a millionth, of which a subtraction would leave no digit."""
    call = CALLS[i]
    if call.coarse:
        pytest.skip("rounds to float32 itself")
    for function in call.functions:
        bases, deltas, spec = drawn(call, 1e-6, torch.float32)
        found = called(function, differences(call, bases, deltas), spec)
        before, after = before_and_after(function, bases, deltas, spec)
        assert_right(found, before, after, share=CANCELLED, rounding=1e-13)


@each_call
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@torch.no_grad()
def test_constants_may_be_differences_that_do_not_differ(i):
    """As inputs are, and what a forward pass makes."""
    call = CALLS[i]
    for function in call.functions:
        bases, deltas, spec = drawn(call, 0.1)
        leaves = differences(call, bases, deltas)
        leaves = [Difference.of(one.clone(), None) if type(one) is Tensor else one for one in leaves]
        before, after = before_and_after(function, bases, deltas, spec)
        found = called(function, leaves, spec)
        assert_right(found, before, after, share=SAME_IN_FLOAT64, rounding=1e-6 if call.coarse else 1e-13)


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda function: function.__name__)
@torch.no_grad()
def test_functions_in_place_leave_the_difference(function):
    """Every name for what was written into sees the new values."""
    plain, tried = IN_PLACE[function], 0
    for call in CALLS:
        if plain not in call.functions or not isinstance(call.args[0], Moves) or "inplace" in call.kwargs:
            continue
        bases, deltas, spec = drawn(call, 0.5)
        before, after = before_and_after(plain, bases, deltas, spec)
        if before[0].shape != bases[0].shape:
            continue
        leaves = differences(call, bases, deltas)
        called(function, leaves, spec)
        assert_right([leaves[0]], before, after, share=SAME_IN_FLOAT64, rounding=1e-13)
        tried += 1
    assert tried


def first_constant(call, kind):
    """Arguments of which the first tensor of numbers is a constant of this type, and all others move."""
    bases, deltas, spec = drawn(call, 0.5)
    numbers = [i for i, one in enumerate(bases) if isinstance(one, Tensor) and one.is_floating_point()]
    if len(numbers) < 2:
        return None
    first, *others = numbers
    deltas = [0.1 * torch.randn(SOURCES, *one.shape).double() if i in others else None for i, one in enumerate(bases)]
    mask = bases[first] > 0
    bases[first] = mask if kind is torch.bool else (mask + 1).to(kind)
    return bases, deltas, spec


def as_differences(bases, deltas):
    """Constants are differences as well, as inputs are."""
    return [Difference.of(b.clone(), d) if isinstance(b, Tensor) else b for b, d in zip(bases, deltas, strict=True)]


@each_call
@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@torch.no_grad()
def test_a_first_argument_that_does_not_move(i, kind):
    """Such as a mask that is cast to what moves. Its change is none, whatever its type, or the call is refused."""
    call = CALLS[i]
    for function in call.functions:
        made = first_constant(call, kind)
        if made is None:
            continue
        bases, deltas, spec = made
        try:
            before, after = before_and_after(function, bases, deltas, spec)
        except (RuntimeError, IndexError, TypeError):  # torch does not take this type here
            continue
        for some in subsets(deltas):
            try:
                found = called(function, as_differences(bases, some), spec)
            except (UnsupportedModelError, RuntimeError):  # of both, the engine says that it cannot read the function
                assert function not in AS_ANOTHER
                continue
            before, after = before_and_after(function, bases, some, spec)
            assert_right(found, before, after, share=SAME_IN_FLOAT64, rounding=1e-6 if call.coarse else 1e-13)


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda function: function.__name__)
@torch.no_grad()
def test_what_moves_is_written_into_a_constant(function):
    """Into one that may take differences, as what a forward pass makes may; into another tensor it is refused."""
    plain = IN_PLACE[function]
    for call in CALLS:
        made = first_constant(call, torch.float64) if plain in call.functions and "inplace" not in call.kwargs else None
        if made is None or not isinstance(tree_leaves(call.args)[0], (Moves, Tensor)):
            continue
        bases, deltas, spec = made
        before, after = before_and_after(plain, bases, deltas, spec)
        if deltas[0] is not None or before[0].shape != bases[0].shape:
            continue
        leaves = as_differences(bases, deltas)
        try:
            called(function, leaves, spec)
        except UnsupportedModelError:
            continue
        assert_right([leaves[0]], before, after, share=SAME_IN_FLOAT64, rounding=1e-13)
        with pytest.raises(UnsupportedModelError):
            called(function, [bases[0], *leaves[1:]], spec)


def cast(mask, h):
    """A mask as numbers of the type and shape of h, in all ways that look at h alone."""
    yield from (mask.to(h), mask.type_as(h), mask.to(h.dtype), mask.to(h, copy=True))
    yield from (one.to(h) for one in (mask.expand_as(h), mask.view_as(h), mask.reshape_as(h), mask.expand(h.shape)))
    yield from (h.new_tensor(mask.tolist()), torch.ones_like(h) * mask, h.new_ones(h.shape) * mask)
    yield torch.zeros_like(h).masked_fill(mask.bool(), 1)
    yield torch.full_like(h, 1).where(mask.bool(), torch.zeros_like(h))
    yield torch.zeros_like(h).copy_(mask)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["an input", "made inside"])
@torch.no_grad()
def test_a_mask_that_is_cast_to_what_moves_stays(kind, known):
    h, d = torch.randn(2, 3).double(), torch.randn(SOURCES, 2, 3).double()
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]]).to(kind)
    for found in cast(Difference.of(mask, None) if known else mask, Difference.of(h, d)):
        assert delta_of(found) is None
        assert torch.equal(base_of(found), mask.double())
        product = found * Difference.of(h, d)
        assert torch.equal(delta_of(product), mask.double() * d)


def test_what_moves_is_not_rounded_to_whole_numbers():
    x = Difference.of(torch.randn(2, 3), torch.randn(SOURCES, 2, 3))
    counts = Difference.of(torch.zeros(2, 3).long(), None)
    for refused in (
        lambda: x.sum(0, dtype=torch.long),
        lambda: counts.__setitem__(0, x[0]),
        lambda: counts.slice_scatter(x, 0),
        lambda: counts.copy_(x),
    ):
        with pytest.raises(UnsupportedModelError):
            refused()
    found = x.select_scatter(torch.tensor([True, False, True]), 0, 1)
    assert torch.equal(delta_of(found), torch.stack([delta_of(x)[:, 0], torch.zeros(SOURCES, 3)], 1))


def test_functions_that_ask_through_another_are_named():
    """As fractional_max_pool3d, whose code hands itself over from within."""
    h, d = torch.randn(2, 1, 4, 4, 4).double(), torch.randn(SOURCES, 2, 1, 4, 4, 4).double()
    with pytest.raises(UnsupportedModelError, match="fractional_max_pool3d"):
        torch.nn.functional.fractional_max_pool3d(Difference.of(h, d), 2, 2)


def test_properties_are_named():
    x = Difference.of(torch.randn(2, 3), torch.randn(SOURCES, 2, 3))
    with pytest.raises(UnsupportedModelError, match="Tensor.data = of a value that moves"):
        x.data = torch.zeros(2, 3)


def test_what_cannot_follow_is_refused():
    """Values that Python asks for, what moves written into what does not, and functions that have no rule."""
    h, d = torch.randn(2, 3).double(), torch.randn(SOURCES, 2, 3).double()
    for refused in (
        lambda x: float(x.sum()),
        lambda x: bool((x.sum() > 0) & (x.mean() > 0)),
        lambda x: x.tolist(),
        lambda x: torch.zeros(2, 3).double().add_(x),
        lambda x: torch.zeros(2, 3).double().__setitem__(0, x[0]),
        lambda x: (x[:, :2].__setitem__(0, 1.0), x * 1),
        lambda x: torch.sort(x),
        lambda x: x.to(torch.float16),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: torch.full_like(x, x.sum()),
        lambda x: torch.ones(3).double().fill_(x.sum()),
        lambda x: F.max_pool1d(x, 2, return_indices=True),
        lambda x: F.adaptive_max_pool1d(x, 2, return_indices=True),
        lambda x: torch.linalg.norm(x, 2),
        lambda x: torch.linalg.norm(x, "nuc"),
        lambda x: x.norm(0),
        lambda x: x.scatter(1, torch.zeros(2, 1).long(), x, reduce="add"),
        lambda x: x.masked_fill(x > 0, 0.0),
        lambda x: torch.nn.functional.dropout(x, 0.5, True),
    ):
        with pytest.raises(UnsupportedModelError):
            refused(Difference.of(h, d))


@torch.no_grad()
def test_what_is_written_into_a_view_reaches_the_whole_or_is_refused():
    h, d = torch.randn(2, 3).double(), torch.randn(SOURCES, 2, 3).double()
    x = Difference.of(h.clone(), d)
    try:
        x[:, 0].mul_(2)
        found = delta_of(x * 1)
    except UnsupportedModelError:
        return
    assert torch.equal(found[:, :, 0], 2 * d[:, :, 0])


@pytest.mark.parametrize("function", [F.elu, F.selu, F.celu], ids=lambda function: function.__name__)
def test_exponential_units_take_changes_of_any_size(function):
    h, d = torch.tensor([-2000.0, -3.0, 5.0]), torch.tensor([[3000.0, -2000.0, -3000.0], [1e-5, 2.0, -6.0]])
    found = function(Difference.of(h, d)).delta.double()
    expected = function(h.double() + d.double()) - function(h.double())
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-30)


CHOICES = {torch.topk, Tensor.topk, torch.argmax, Tensor.argmax, torch.argmin, Tensor.argmin}


def test_choices_that_do_not_change_are_read_and_others_refused():
    h = torch.tensor([[3.0, -1.0, 2.0], [0.5, 4.0, -2.0]]).double()
    d = 0.1 * torch.randn(SOURCES, 2, 3).double().clamp(-2, 2)
    x = Difference.of(h, d)
    values, places = x.topk(2, 1)
    assert torch.equal(base_of(places), torch.tensor([[0, 2], [1, 0]]))
    assert torch.equal(delta_of(values), d.gather(2, base_of(places).expand(SOURCES, 2, 2)))
    assert torch.equal(delta_of(x.gather(1, places)), delta_of(values))
    assert torch.topk(x, 1, 0, False).values.delta.shape == (SOURCES, 1, 3)
    assert base_of(x.argmax(1)).tolist() == base_of(torch.argmax(x, dim=-1)).tolist() == [0, 1]
    assert base_of(x.argmin(1, keepdim=True)).tolist() == [[1], [2]]
    assert int(base_of(torch.argmin(x))) == 5
    moved = Difference.of(h, 10 * torch.randn(SOURCES, 2, 3).double())
    for choice in (lambda t: t.topk(2), lambda t: t.argmax(1), torch.argmin):
        with pytest.raises(ChangedChoiceError, match="whose choice changes with the step"):
            choice(moved)


def test_what_is_written_by_another_name_is_refused_only_where_it_differs():
    x = Difference.of(torch.randn(3), torch.randn(SOURCES, 3))
    with Writable():
        made = torch.zeros(2, 3)
        part = made[0]
        part.fill_(1)
        assert made.sum() == 3
        made[0] = x
        assert torch.equal(delta_of(made * 1)[:, 0], delta_of(x))
        with pytest.raises(UnsupportedModelError, match="written into by another name"):
            part * 1
        made = torch.zeros(3)
        made.data.copy_(x)
        with pytest.raises(UnsupportedModelError, match="written into by another name"):
            made + 1


def test_the_place_of_a_maximum_is_not_followed():
    x = Difference.of(torch.randn(3, 4), torch.randn(2, 3, 4))
    values, places = x.max(1)
    assert values.delta.shape == (2, 3)
    with pytest.raises(UnsupportedModelError, match="place of a maximum"):
        x.gather(1, places[:, None])
