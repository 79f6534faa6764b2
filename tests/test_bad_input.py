"""Bad input gets an error that names the argument and says what to do."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import local_elasticity as le

pytestmark = pytest.mark.usefixtures("unchecked")

x, y = torch.randn(6, 3), torch.randn(6)


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def problem(**options):
    return le.Problem.of(net(), "mse", **options)


def with_nan(values):
    values = values.clone()
    values[0] = torch.nan
    return values


BAD_MEASUREMENTS = {
    "no sources": ((x[:0], y[:0]), None, {}, ValueError, "sources: there are no examples"),
    "an empty list of sources": ([], None, {}, ValueError, "sources: there are no examples"),
    "no targets": ((x, y), x[:0], {}, ValueError, "targets: there are no examples"),
    "an empty list of targets": ((x, y), [], {}, ValueError, "targets: there are no examples"),
    "a source short": ((x, y[:5]), None, {}, ValueError, "sources: 6 inputs but labels"),
    "not a pair": (x, None, {}, TypeError, "sources: expected a pair"),
    "strings": ((["a"], y), None, {}, TypeError, "sources: expected inputs that are a tensor.*got a str"),
    "no label tensor": ((x, [1, 2, 3]), None, {}, TypeError, "labels must be a tensor"),
    "uneven pytree": (((x, x[:3]), y), None, {}, ValueError, "sources: inputs of shapes"),
    "not finite": ((with_nan(x), y), None, {}, ValueError, "sources: inputs contain NaN"),
    "labels not finite": ((x, with_nan(y)), None, {}, ValueError, "sources: labels contain NaN"),
    "target not finite": ((x, y), with_nan(x), {}, ValueError, "targets: inputs contain NaN"),
    "labels of the wrong size": ((x, torch.randn(6, 2)), None, {}, ValueError, "do not fit outputs"),
    "other device": ((x.to("meta"), y), None, {}, ValueError, "sources: inputs are on meta"),
    "other device for labels": ((x, y.to("meta")), None, {}, ValueError, "labels are on meta"),
    "other device for targets": ((x, y), x.to("meta"), {}, ValueError, "targets: inputs are on meta"),
    "unknown engine": ((x, y), None, {"engine": "warp"}, ValueError, "engine: 'warp'"),
    "no engine": ((x, y), None, {"engine": 3}, TypeError, "engine"),
    "no update": ((x, y), None, {"update": 0.1}, TypeError, "update: expected le.SGD"),
    "too large a step": ((x, y), None, {"update": le.SGD(1e39)}, ValueError, "step_size: 1e\\+39 is larger than the"),
    "uneven batches": ((x, y), None, {"source_batch_size": 4}, ValueError, "leave 2 out"),
    "empty batches": ((x, y), None, {"source_batch_size": 0}, ValueError, "source_batch_size"),
    "batches of a float": (
        (x, y),
        None,
        {"source_batch_size": 2.0},
        ValueError,
        "source_batch_size: expected a positive whole",
    ),
    "no memory": ((x, y), None, {"memory": 0}, ValueError, "memory"),
    "memory in words": ((x, y), None, {"memory": "2GB"}, ValueError, "memory: expected a positive number of bytes"),
    "memory not a number": (
        (x, y),
        None,
        {"memory": float("nan")},
        ValueError,
        "memory: expected a positive number of bytes",
    ),
    "whole numbers": ((x.long(), y), None, {}, ValueError, "sources: the model does not take one example of int64"),
    "wrong features": ((x[:, :2], y), None, {}, ValueError, r"sources: the model does not take .* float32 \(1, 2\)"),
    "wrong features of targets": ((x, y), x[:, :2], {}, ValueError, "targets: the model does not take"),
    "an engine's class": (
        (x, y),
        None,
        {"engine": le.Looped},
        TypeError,
        "engine: expected a name or an engine such as",
    ),
}


@pytest.mark.parametrize("name", BAD_MEASUREMENTS)
def test_respond_says_what_is_wrong(name):
    sources, targets, options, kind, words = BAD_MEASUREMENTS[name]
    with pytest.raises(kind, match=words):
        le.respond(problem(), sources, targets, **options)


@pytest.mark.parametrize("call", [le.respond, le.estimate, le.respond_in_sequence, le.similarity, le.stiffness])
def test_a_bare_model_needs_a_loss(call):
    with pytest.raises(ValueError, match="loss: a bare model needs one"):
        call(net(), (x, y), (x, y))
    with pytest.raises(ValueError, match="loss: the problem has one already"):
        call(problem(), (x, y), (x, y), loss="mse")
    with pytest.raises(TypeError, match=r"problem: expected le.Problem.of\(model, loss\) or an nn.Module"):
        call("net", (x, y), (x, y))
    call(net(), (x, y), (x, y), loss="half_mse")


@pytest.mark.parametrize("name", ["no sources", "a source short", "not finite", "unknown engine", "no update"])
def test_estimate_says_the_same(name):
    sources, targets, options, kind, words = BAD_MEASUREMENTS[name]
    with pytest.raises(kind, match=words):
        le.estimate(problem(), sources, targets, **options)


classes = le.Problem.of(net(), "cross_entropy")
whole = torch.zeros(6, dtype=torch.long)
BAD_FOR_MEASURES = {
    "ntk": (lambda: le.ntk(problem(), x[:, :2]), r"x: the model does not take one example of float32 \(1, 2\)"),
    "ntk of two": (lambda: le.ntk(problem(), x, x[:, :2]), "x2: the model does not take one example"),
    "ntk, not finite": (lambda: le.ntk(problem(), x, with_nan(x)), "x2: inputs contain NaN"),
    "activation": (lambda: le.activation(problem(), x[:, :2]), "x: the model does not take one example"),
    "stiffness": (lambda: le.stiffness(problem(), (x[:, :2], y)), "sources: the model does not take one example"),
    "stiffness of two": (lambda: le.stiffness(problem(), (x, y), (x[:, :2], y)), "targets: the model does not take"),
    "stiffness, labels": (lambda: le.stiffness(classes, (x, whole), (x, whole + 9)), "targets: label 9 is outside"),
    "sketch": (lambda: le.gradient_sketch(problem(), x[:, :2]), "x: the model does not take one example"),
}


@pytest.mark.parametrize("name", BAD_FOR_MEASURES)
def test_measures_of_the_network_say_what_is_wrong(name):
    call, words = BAD_FOR_MEASURES[name]
    with pytest.raises(ValueError, match=f"^{words}"):
        call()


BAD_PROBLEMS = {
    "its constructor": (lambda: le.Problem(net(), "mse"), TypeError, "le.Problem.of.model, loss."),
    "unknown loss": (lambda: le.Problem.of(net(), "hinge"), ValueError, "loss: 'hinge'"),
    "no loss": (lambda: le.Problem.of(net(), 3), TypeError, "loss: expected a name"),
    "no model": (lambda: le.Problem.of("net", "mse"), TypeError, "model: expected an nn.Module"),
    "no gradient": (lambda: le.Problem.of(net().requires_grad_(False), "mse"), ValueError, "requires a gradient"),
    "nothing selected": (lambda: problem(params="conv"), ValueError, "params: nothing is selected"),
    "odd selection": (lambda: problem(params={"w": y}), TypeError, "params"),
    "function alone": (lambda: le.Problem.of(lambda p, x: x, "mse"), TypeError, "params: a plain function"),
    "odd mode": (lambda: problem(mode="test"), ValueError, "mode"),
    "odd kind": (lambda: problem(kind="words"), ValueError, "kind"),
    "training with batch norm": (
        lambda: le.Problem.of(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "mse", mode="train"),
        ValueError,
        'mode: "train" is refused because 1 is batch norm',
    ),
    "training with dropout": (
        lambda: le.Problem.of(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1)), "mse", mode="train"),
        ValueError,
        "dropout",
    ),
}


@pytest.mark.parametrize("name", BAD_PROBLEMS)
def test_problem_says_what_is_wrong(name):
    make, kind, words = BAD_PROBLEMS[name]
    with pytest.raises(kind, match=words):
        make()


def test_parameters_that_need_no_gradient_can_be_stepped_on_demand():
    frozen = le.Problem.of(net().requires_grad_(False), "mse", params=".*")
    assert len(frozen.stepped) == 4
    with pytest.warns(DeprecationWarning, match="problem.stepped"):
        assert frozen.steps == frozen.stepped
    assert le.respond(frozen, (x, y)).target_change.abs().sum() > 0


def test_training_mode_without_chance_is_allowed():
    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):
            return self.linear(x) * (2 if self.training else 1)

    model = Doubles().eval()
    evaluated = le.respond(le.Problem.of(model, "mse"), (x, y))
    trained = le.respond(le.Problem.of(model, "mse", mode="train"), (x, y))
    assert torch.allclose(trained.source_before, 2 * evaluated.source_before)
    assert trained.policy == "training mode"
    assert not model.training


def test_a_loss_that_is_not_scalar():
    elementwise = le.Problem.of(net(), lambda outputs, labels: (outputs[:, 0] - labels).expand(2))
    with pytest.raises(ValueError, match="loss: it returns .* not a scalar"):
        le.respond(elementwise, (x, y))
    squeezed = le.Problem.of(net(), lambda outputs, labels: (outputs[:, 0] - labels).square().squeeze())
    with pytest.raises(ValueError, match="loss: it returns shape .2,. for 2 examples, not a scalar"):
        le.respond(squeezed, (x, y))


def test_a_loss_that_does_not_depend_on_the_outputs():
    for loss in (lambda outputs, labels: labels.sum(), lambda outputs, labels: outputs.detach().sum()):
        with pytest.raises(ValueError, match="loss: it does not depend on the outputs"):
            le.respond(le.Problem.of(net(), loss), (x, y))


def test_outputs_that_are_not_a_tensor():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):
            return {"logits": self.linear(x)}

    with pytest.raises(TypeError, match="pass output="):
        le.respond(le.Problem.of(Wrapped(), "mse"), (x, y))
    read = le.Problem.of(Wrapped(), "mse", output=lambda out: out["logits"])
    assert le.respond(read, (x, y)).target_change.shape == (6, 6, 1)


def test_outputs_without_examples_or_of_another_size():
    with pytest.raises(ValueError, match="first axis must be the examples"):
        le.respond(le.Problem.of(net(), "mse", output=lambda out: out.expand(3, -1)), (x, y))
    sequence = le.Problem.of(nn.Linear(3, 1), lambda outputs, labels: outputs.mean())
    with pytest.raises(ValueError, match="targets: outputs have shape"):
        le.respond(sequence, (torch.randn(6, 5, 3), y), torch.randn(6, 4, 3))
    with pytest.raises(TypeError, match="floating-point"):
        le.respond(le.Problem.of(net(), lambda o, t: o.float().mean(), output=lambda out: out > 0), (x, y))


def test_class_labels_must_be_whole():
    classes = le.Problem.of(nn.Linear(3, 2), "cross_entropy")
    with pytest.raises(TypeError, match="labels.long"):
        le.respond(classes, (x, torch.zeros(6)))


def test_a_model_without_outputs():
    nothing = le.Problem.of(nn.Linear(3, 2), "mse", output=lambda out: out[:, :0])
    with pytest.raises(ValueError, match=r"model: one example gives outputs of shape \(1, 0\)"):
        le.respond(nothing, (torch.ones(4, 3), torch.ones(4, 0)))


def test_a_model_on_two_devices():
    model = net()
    model[2].to("meta")
    with pytest.raises(ValueError, match="several devices"):
        le.respond(le.Problem.of(model, "mse"), (x, y))


class InPlace(nn.Module):
    """Writes into a tensor that vmap does not batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        out = torch.zeros(len(x), 1)
        out += self.linear(x)
        return out


class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        out = self.linear(x)
        return out * 2 if out.sum() > 0 else out


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("model", [InPlace, DataDependent])
def test_auto_falls_back_to_the_loop_and_says_so(model, caplog):
    odd = le.Problem.of(model(), "mse")
    sources = torch.randn(20, 3), torch.randn(20)
    with caplog.at_level("INFO", logger="local_elasticity"):
        response = le.respond(odd, sources)
    assert response.engine == "looped"
    assert any("auto: not vmapped (" in note for note in response.notes)
    assert "auto: not vmapped (" in caplog.text
    assert torch.allclose(response.target_change, le.respond(odd, sources, engine="looped").target_change, atol=1e-6)


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "linearized"])
def test_a_source_that_does_not_move_is_a_row_without_values(engine):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
    nn.init.constant_(model[0].bias, -100)
    nn.init.constant_(model[0].weight, 1)
    inputs = torch.tensor([[0.0, 0.0, 0.0], [200.0, 0.0, 0.0], [150.0, 1.0, 0.0]])
    S = le.similarity(le.Problem.of(model, "mse"), (inputs, torch.ones(3)), update=le.SGD(1e-6), engine=engine)
    assert S[0].isnull().all()
    assert S[1:].notnull().all()
    assert S.attrs["unresolved"] == pytest.approx(1 / 3)


def test_similarity_checks_before_it_works(tmp_path):
    with pytest.raises(ValueError, match="sources: there are no examples"):
        le.similarity(problem(), [])
    with pytest.raises(TypeError, match="sources: expected a pair"):
        le.similarity(problem(), x[:1])
    with pytest.raises(ValueError, match="measure: expected one of .*, got 'size'"):
        le.similarity(problem(), (x, y), measure="size")
    measured = []
    for examples, words in (
        ({"ids": x, "mask": x}, "examples: a dict of inputs cannot be shown; give texts, pictures or vectors"),
        ((x, {"ids": x}), "examples: a dict of inputs cannot be shown"),
        (["a", "b"], "examples of the sources: 2 do not fit 6 examples"),
    ):
        with pytest.raises(ValueError, match=words):
            le.similarity(problem(), (x, y), x.clone(), measure=measured.append, examples=examples)
    assert measured == []
    with pytest.raises(FileExistsError, match="store"):
        le.similarity(problem(), (x, y), store=tmp_path)
    with pytest.raises(ValueError, match="source_labels: expected 6 classes"):
        le.similarity(problem(), (x, y), source_labels=[1, 2])
    with pytest.raises(ValueError, match="normalized_kernel needs"):
        le.similarity(problem(), (x, y), x.clone(), measure="normalized_kernel")


def test_an_optimizer_is_not_an_update(tmp_path):
    model = problem()
    optimizer = torch.optim.SGD(model.model.parameters(), lr=0.1)
    for call in (le.respond, le.estimate, le.similarity, le.Monitor, partial(le.similarity, store=tmp_path / "a.zarr")):
        with pytest.raises(
            TypeError, match=r"^update: an optimizer was given; wrap it: le.FromOptimizer\(optimizer\)$"
        ):
            call(model, (x, y), update=optimizer)
    assert list(tmp_path.iterdir()) == []


NOT_WHAT_IS_MEANT = {
    "labels in place of where they come from": (
        lambda: le.similarity(problem(), x, labels=y.numpy()),
        ValueError,
        "labels: expected one of given, predicted",
    ),
    "a path that is none": (
        lambda: le.load(None),
        TypeError,
        "path: expected that of a stored similarity, got NoneType",
    ),
    "a matrix of words": (lambda: le.as_similarity([["a"]]), ValueError, "S: expected a matrix .* of numbers"),
    "no matrix": (lambda: le.as_similarity(None), ValueError, "S: expected a matrix .* of numbers"),
    "one number for examples": (
        lambda: le.similarity(problem(), (x, y), examples=3),
        TypeError,
        "examples: expected one for each example, got int",
    ),
}


@pytest.mark.parametrize("name", NOT_WHAT_IS_MEANT)
def test_other_arguments_than_are_meant_are_named(name):
    call, kind, message = NOT_WHAT_IS_MEANT[name]
    with pytest.raises(kind, match=message):
        call()


def test_a_matrix_may_be_a_frame_or_another_similarity():
    S = le.as_similarity(np.eye(3))
    assert (le.as_similarity(S).values == le.as_similarity(pd.DataFrame(S.values)).values).all()


def test_measures_say_what_is_wrong():
    with pytest.raises(ValueError, match="form"):
        le.stiffness(problem(), (x, y), form="tan")
    with pytest.raises(ValueError, match="reduce"):
        le.ntk(problem(), x, reduce="sum")
    with pytest.raises(ValueError, match="level: expected a share between 0 and 1"):
        le.class_pairs(torch.eye(3), [0, 0, 1], level=95)
    with pytest.raises(ValueError, match="square"):
        le.symmetrized(torch.zeros(2, 3))


def test_classes_are_checked_and_may_be_of_any_whole_number_type():
    net, x, y = torch.nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3
    problem = le.Problem.of(net, "cross_entropy")
    wanted = le.relative(le.respond(problem, (x, y), engine="looped"))
    assert torch.equal(le.relative(le.respond(problem, (x, y.int()), engine="looped")), wanted)
    with pytest.raises(ValueError, match="sources: label 3 is outside the model's 3 outputs"):
        le.respond(problem, (x, y + 1))
    with pytest.raises(ValueError, match="sources: cross_entropy expects one class for each example"):
        le.respond(problem, (x, torch.nn.functional.one_hot(y)))


def test_a_loss_of_your_own_may_be_called_cross_entropy():
    def cross_entropy(outputs, labels):
        return (outputs - labels).square().mean()

    own = le.Problem.of(nn.Linear(3, 2), cross_entropy)
    S = le.similarity(own, (x, torch.ones(6, 2).long()))
    assert "source_class" not in S.coords
    assert (
        "source_class"
        in le.similarity(le.Problem.of(nn.Linear(3, 2), nn.functional.cross_entropy), (x, torch.arange(6) % 2)).coords
    )


def by_place(labels):
    torch.manual_seed(1)
    images = nn.Conv2d(1, 3, 3, padding=1).double()
    return le.Problem.of(images, "cross_entropy"), (torch.randn(4, 1, 2, 2).double(), labels)


def test_logits_of_many_places_need_a_loss_that_says_where_classes_are():
    problem, sources = by_place(torch.randint(0, 3, (4, 2, 2)))
    own = le.Problem.of(problem.model, lambda z, y: nn.functional.cross_entropy(z, y), kind="logits")
    response = le.respond(own, sources)
    assert response.kind == "logits_by_place"
    assert le.relative(response).isfinite().all()
    with pytest.raises(ValueError, match="kl needs a distribution, but the outputs have more than one axis"):
        le.relative(response, change=le.kl)
    with pytest.raises(ValueError, match="as_probabilities: the outputs have more than one axis"):
        response.as_probabilities()
    with pytest.raises(ValueError, match="as_probabilities: the outputs have more than one axis"):
        le.similarity(own, sources, measure="relative_l1")
    one_place = le.Problem.of(nn.Conv2d(1, 3, 2), "cross_entropy")
    at_one = le.respond(one_place, (torch.randn(4, 1, 2, 2), torch.zeros(4, 1, 1).long()))
    assert at_one.as_probabilities().kind == "probabilities"


@pytest.mark.parametrize("batch", [None, 2])
def test_places_without_a_class_are_left_out_by_every_engine(batch):
    labels = torch.randint(0, 3, (4, 2, 2))
    labels[0, 0], labels[1, 1, 1] = -100, -100
    problem, sources = by_place(labels)
    update = le.SGD(1e-6)
    looped = le.respond(problem, sources, update=update, engine="looped", source_batch_size=batch)
    for engine in ("vmapped", "structured", "linearized"):
        other = le.respond(problem, sources, update=update, engine=engine, source_batch_size=batch)
        assert torch.allclose(other.loss_gradient, looped.loss_gradient)
        assert torch.allclose(other.target_change, looped.target_change, rtol=1e-5)


def test_classes_of_places_are_checked():
    labels = torch.zeros(4, 2, 2).long()
    with pytest.raises(ValueError, match="sources: label 7 is outside the model's 3 outputs"):
        le.respond(*by_place(labels + 7))
    with pytest.raises(ValueError, match="one class for each example and place, not labels of shape"):
        le.respond(*by_place(labels[:, 0]))
    labels[2] = -100
    with pytest.raises(ValueError, match="sources: an example has the label -100 at every place"):
        le.respond(*by_place(labels))


def test_probabilities_in_place_of_logits_are_warned_of():
    logits = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
    classes = torch.arange(6) % 5
    le.respond(logits, (x, classes), loss="cross_entropy")
    with pytest.warns(UserWarning, match="model: its outputs are probabilities, which sum to 1, but the loss takes"):
        le.respond(nn.Sequential(logits, nn.Softmax(1)), (x, classes), loss="cross_entropy")


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


tokens, kinds_of_tokens = torch.arange(100).reshape(20, 5) % 10, torch.arange(20) % 3
WITH_ONE_EXAMPLE_THAT_IS_NOT_TAKEN = {
    "respond": ("sources", lambda net, ids: le.respond(net, (ids, kinds_of_tokens), loss="cross_entropy")),
    "structured": (
        "sources",
        lambda net, ids: le.respond(net, (ids, kinds_of_tokens), loss="cross_entropy", engine="structured"),
    ),
    "targets": ("targets", lambda net, ids: le.respond(net, (tokens, kinds_of_tokens), ids, loss="cross_entropy")),
    "similarity": ("sources", lambda net, ids: le.similarity(net, (ids, kinds_of_tokens), loss="cross_entropy")),
    "ntk": ("x", lambda net, ids: le.ntk(net, ids)),
    "ntk of two": ("x2", lambda net, ids: le.ntk(net, tokens, ids)),
    "estimate": ("sources", lambda net, ids: le.estimate(net, (ids, kinds_of_tokens), loss="cross_entropy")),
    "Monitor": ("sources", lambda net, ids: le.Monitor(net, (ids, kinds_of_tokens), loss="cross_entropy", every=1)),
    "forecast": (
        "old",
        lambda net, ids: le.forecast(
            net, (tokens, kinds_of_tokens), (ids, kinds_of_tokens), loss="cross_entropy", update=le.SGD(0.1), steps=1
        ),
    ),
}


@pytest.mark.parametrize("place", [2, 7, 19])
@pytest.mark.parametrize("name", WITH_ONE_EXAMPLE_THAT_IS_NOT_TAKEN)
def test_an_example_that_the_model_does_not_take_is_named(name, place):
    """Also one that is not among the few that are tried first."""
    argument, call = WITH_ONE_EXAMPLE_THAT_IS_NOT_TAKEN[name]
    ids = tokens.clone()
    ids[place, 1] = 11
    with pytest.raises(ValueError, match=f"^{argument}: the model does not take example {place}, .*out of range"):
        call(Tokens(), ids)


def test_an_example_that_the_model_does_not_take_is_named_among_those_of_all_blocks(tmp_path):
    ids = tokens.clone()
    ids[13, 1] = 11
    with pytest.raises(ValueError, match="^sources: the model does not take example 13, "):
        le.similarity(Tokens(), (ids, kinds_of_tokens), loss="cross_entropy", store=tmp_path / "blocks.zarr", block=4)


def test_an_error_that_no_example_causes_stays():
    """It comes from the user's code, and all examples are taken."""

    def fails(done, total):
        raise ZeroDivisionError("of the callback")

    with pytest.raises(ZeroDivisionError, match="of the callback"):
        le.respond(Tokens(), (tokens, kinds_of_tokens), loss="cross_entropy", progress=fails)


class Reads(nn.Module):
    """A forward pass that raises what `read` raises."""

    def __init__(self, read):
        super().__init__()
        self.layer, self.read = nn.Linear(3, 1), read
        self.known = {id(self.layer): 2.0}

    def forward(self, x):
        return self.layer(x) * self.read(self)


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda net: {"a": 1.0}["mask"], "KeyError: 'mask'"),
        (lambda net: net.linear, "AttributeError: 'Reads' object has no attribute 'linear'"),
        (lambda net: not_there, "NameError: name 'not_there' is not defined"),  # noqa: F821
    ],
)
def test_what_a_forward_pass_does_not_find_is_no_matter_of_the_copy(read, error):
    with pytest.raises(ValueError, match=f"^model: its forward pass raises {error}"):
        le.respond(Reads(read), (x, y), loss="mse")


def test_parts_that_are_looked_up_by_identity_are_told():
    with pytest.raises(ValueError, match="^model: its forward pass fails on a private copy .* not by their identity"):
        le.respond(Reads(lambda net: net.known[id(net.layer)]), (x, y), loss="mse")


class Unreached(nn.Module):
    """No parameter reaches the output."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured", "linearized"])
def test_a_model_that_no_parameter_reaches_is_told_by_every_engine(engine):
    with pytest.raises(ValueError, match="^model: none of the parameters that step"):
        le.respond(Unreached(), (x, torch.arange(6) % 3), loss="cross_entropy", engine=engine)
