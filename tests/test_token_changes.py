"""Changes of single tokens: against a step on a copy of the model, written out; and how they reach the page."""

import base64
import copy
import gzip
import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.training.language import answer_problem, sequence_problem, sequences, token_sources
from local_elasticity.training.token_changes import MOST_PAIRS, token_changes
from tests.tolerances import RESOLVED_ERROR, SAME_IN_FLOAT64

WORDS = [f"w{i}" for i in range(9)]
IDS = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 6, 0, 0], [7, 8, 1, 2, 0], [3, 3, 5, 8, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
LABELS = torch.where(MASK.bool(), IDS, -100)
LABELS[0, :3] = -100  # a prompt


class Causal(nn.Module):
    """A causal model whose next token depends on all before it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layer, self.head = nn.Embedding(9, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 9)

    def forward(self, input_ids):
        return self.head(self.layer(self.embedding(input_ids))[0])


@pytest.fixture
def model():
    return Causal().double()


@pytest.fixture
def sources():
    return sequences({"input_ids": IDS, "attention_mask": MASK, "labels": LABELS})


def log_p(net):
    """Of every next token, [b, T − 1]."""
    return net(IDS).log_softmax(-1)[:, :-1].gather(-1, IDS[:, 1:, None])[..., 0].detach()


def stepped(model, row, make):
    """A copy after one step of its own optimizer on one sequence, as in training."""
    net = copy.deepcopy(model)
    optimizer = make(net.parameters())
    nn.functional.cross_entropy(net(IDS[row : row + 1])[0, :-1], LABELS[row, 1:], ignore_index=-100).backward()
    optimizer.step()
    return net


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def test_changes_are_those_of_a_step_on_a_copy(model, sources):
    """The definition, for every pair; NaN at the first token, at a prompt, and nowhere else; no padding."""
    S = le.similarity(sequence_problem(model), sources, update=le.SGD(0.1))
    before = copy.deepcopy(model.state_dict())
    every = [(i, j) for i in range(4) for j in range(4)]
    found = token_changes(S, model, sources, words=WORDS.__getitem__, pairs=every)
    for i, j in every:
        expected = (log_p(stepped(model, i, sgd)) - log_p(model))[j]
        rows = found[(found.source == i) & (found.target == j)]
        length = int(MASK[j].sum())
        assert rows["token"].tolist() == [WORDS[token] for token in IDS[j, :length]]
        assert rows["place"].tolist() == list(range(length))
        shown = torch.tensor(rows["change"].to_numpy()[1:])
        counted = LABELS[j, 1:length] != -100
        assert torch.isnan(shown).tolist() == (~counted).tolist()
        assert np.isnan(rows["change"].iloc[0])
        assert shown[counted].tolist() == pytest.approx(expected[: length - 1][counted].tolist(), rel=SAME_IN_FLOAT64)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_the_step_of_an_optimizer_and_other_targets(model, sources):
    """AdamW as it would step now, read at sequences that are not the sources."""
    net = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    update = le.FromOptimizer(optimizer)
    others = sequences(IDS[:2], MASK[:2])
    S = le.similarity(sequence_problem(net), sources, others[0], update=update)
    found = token_changes(S, net, sources, others[0], words=WORDS.__getitem__, pairs=[(3, 1)], update=update)
    after = stepped(model, 3, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    expected = (log_p(after) - log_p(model))[1, :2]
    assert found["change"].iloc[1:].to_numpy() == pytest.approx(expected.numpy(), rel=SAME_IN_FLOAT64)
    with pytest.raises(ValueError, match="update: expected the step of S"):
        token_changes(S, net, sources, others[0], words=WORDS.__getitem__)


def test_the_strongest_pairs_are_chosen(model, sources):
    S = le.similarity(sequence_problem(model), sources, update=le.SGD(0.1))
    found = token_changes(S, model, sources, words=WORDS.__getitem__)
    values = S.values.copy()
    np.fill_diagonal(values, -np.inf)
    best = sorted(((i, int(values[i].argmax())) for i in range(4)), key=lambda pair: -values[pair])
    assert list(found.groupby(["source", "target"], sort=False).groups) == best
    loss = le.similarity(sequence_problem(model), sources, measure="loss", update=le.SGD(0.1))
    found = token_changes(loss, model, sources, words=WORDS.__getitem__)
    values = loss.values.copy()
    np.fill_diagonal(values, np.nan)
    ends = {(int(end(values[:, j])), j) for j in range(4) for end in (np.nanargmin, np.nanargmax)}
    assert set(found.groupby(["source", "target"]).groups) == ends
    sums = found.groupby(["source", "target"]).change.sum()
    lengths = sources[1]
    for (i, j), change in sums.items():
        assert loss.values[i, j] == pytest.approx(-change / float(lengths[j]), rel=SAME_IN_FLOAT64)
    many = le.as_similarity(np.random.default_rng(0).random((40, 40)), update=repr(le.SGD(0.1)), step_size=0.1)
    with pytest.raises(ValueError, match="sources: expected those of S, with number"):
        token_changes(many, model, sources, words=WORDS.__getitem__)
    assert MOST_PAIRS == 24


def test_a_forecast_problem_takes_the_same_step(model, sources):
    """S of `answer_problem`, whose loss is the same mean over predicted tokens."""
    S = le.similarity(answer_problem(model), token_sources(sources[0]), measure="loss", update=le.SGD(0.1))
    found = token_changes(S, model, sources, words=WORDS.__getitem__, pairs=[(1, 2)])
    assert S.values[1, 2] == pytest.approx(-found["change"].sum() / 3, rel=SAME_IN_FLOAT64)


class Squashed(torch.autograd.Function):
    """tanh, computed by NumPy, which only the loop can follow."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(made := torch.from_numpy(np.tanh(x.detach().numpy())))
        return made

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.saved_tensors[0] ** 2)


class Opaque(Causal):
    def forward(self, input_ids):
        return Squashed.apply(super().forward(input_ids))


@pytest.mark.parametrize(("kind", "resolved"), [(Causal, True), (Opaque, False)])
def test_small_steps_are_right_or_have_no_mark(sources, kind, resolved):
    """A step that float64 cannot hold: right where nothing is subtracted, and unmarked elsewhere."""
    step = 1e-18
    S = le.as_similarity(np.ones((4, 4)), update=repr(le.SGD(step)), step_size=step)
    found = token_changes(S, kind(), sources, words=WORDS.__getitem__, pairs=[(1, 2)])["change"].to_numpy()[1:]
    assert np.isfinite(found).tolist() == [resolved] * 3
    exact = Causal().double()
    larger = log_p(stepped(exact, 1, lambda parameters: torch.optim.SGD(parameters, lr=1e-6))) - log_p(exact)
    if resolved:
        assert found == pytest.approx(step / 1e-6 * larger[2, :3].numpy(), rel=RESOLVED_ERROR)


def test_what_does_not_fit_is_refused(model, sources):
    S = le.similarity(sequence_problem(model), sources, update=le.SGD(0.1))
    with pytest.raises(ValueError, match=r"pairs: \(0, 9\) is not in S"):
        token_changes(S, model, sources, words=WORDS.__getitem__, pairs=[(0, 9)])
    with pytest.raises(ValueError, match="S: it does not say which step"):
        token_changes(le.as_similarity(np.eye(4)), model, sources, words=WORDS.__getitem__)
    with torch.no_grad():
        model.head.weight.mul_(1.5)
    with pytest.raises(ValueError, match="measure S again"):
        token_changes(S, model, sources, words=WORDS.__getitem__, pairs=[(0, 1)])
    with pytest.raises(ValueError, match="changes: expected the columns"):
        S.le.with_token_changes(pd.DataFrame({"source": [0]}))
    rows = pd.DataFrame({"source": [7], "target": [0], "place": [0], "token": ["a"], "change": [0.1]})
    with pytest.raises(ValueError, match=r"changes: \(7, 0\) is not a pair"):
        S.le.with_token_changes(rows)


def payload(page):
    text = page.read_text(encoding="utf-8")
    return text, gzip.decompress(base64.b64decode(re.search(r'id="payload">([^<]*)<', text)[1])).decode()


MISTAKES = {
    "a matrix": ({"S": np.eye(4)}, TypeError, "S: expected what le.similarity returned"),
    "tokens alone": ({"sources": torch.zeros(4, 5)}, TypeError, "sources: expected what `sequences` returned"),
    "a batch": (
        {"sources": {"input_ids": torch.zeros(4, 5)}},
        TypeError,
        "sources: expected what `sequences` returned",
    ),
    "a list of words": ({"words": WORDS}, TypeError, "words: expected a function of a token's number, got list"),
    "one pair": ({"pairs": (0, 1)}, ValueError, "pairs: expected .source, target. numbers"),
    "three numbers": ({"pairs": [(0, 1, 2)]}, ValueError, "pairs: expected .source, target. numbers"),
    "parts of numbers": ({"pairs": [(0.7, 1)]}, ValueError, "pairs: expected .source, target. numbers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(model, sources, name):
    given, kind, words = MISTAKES[name]
    S = le.similarity(sequence_problem(model), sources, update=le.SGD(0.1))
    options = {"S": S, "model": model, "sources": sources, "words": WORDS.__getitem__} | given
    with pytest.raises(kind, match=words):
        token_changes(**options)


def test_no_pairs_have_no_tokens(model, sources):
    S = le.similarity(sequence_problem(model), sources, update=le.SGD(0.1))
    assert token_changes(S, model, sources, words=WORDS.__getitem__, pairs=[]).empty


def test_marks_travel_with_the_result_to_the_page(model, sources, tmp_path):
    S = le.similarity(sequence_problem(model), sources, update=le.SGD(0.1), examples=["a", "b", "c", "d"])
    S = S.le.with_token_changes(token_changes(S, model, sources, words=lambda token: f"<b>{token}</b> "))
    S.le.save(tmp_path / "run.zarr")
    assert le.load(tmp_path / "run.zarr").attrs["token_changes"] == S.attrs["token_changes"]
    text, hidden = payload(le.write_report(tmp_path / "run.zarr", tmp_path / "page.html"))
    assert "<b>7</b> " in hidden
    assert "<b>7</b>" not in text
    assert "For 4 pairs, the change of each token" in text
    assert "4 texts and the tokens of" in text
    assert "token changes" not in text.lower()  # not among the facts of how it was made
    text, hidden = payload(le.write_report(S, tmp_path / "page.html", examples=False))
    assert "<b>" not in hidden
    damaged = S.assign_attrs(token_changes=[{"source": 0, "target": 1, "tokens": ["a"], "changes": []}])
    with pytest.raises(ValueError, match="its token_changes cannot be read"):
        le.write_report(damaged, tmp_path / "page.html")
