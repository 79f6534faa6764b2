"""The index of influences: scores as TracIn defines them, resumed after a kill, refused where something differs."""

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset

import local_elasticity as le
from local_elasticity.api import sketched
from local_elasticity.scale.sketch import Sketch, loss_gradient_sketch
from local_elasticity.scale.stream import ExampleStream
from local_elasticity.store.result import verify
from tests.tolerances import SAME_IN_FLOAT32


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def data(n=60, seed=2):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, 1, 8, 8, generator=generator) + y[:, None, None, None], y


def gradients(net, x, y):
    """[n, p], by torch.func."""

    def loss(params, one, label):
        return cross_entropy(functional_call(net, params, (one[None],)), label[None])

    found = vmap(grad(loss), (None, 0, 0))(dict(net.named_parameters()), x, y)
    return torch.cat([part.flatten(1) for part in found.values()], dim=1).detach()


def index(store, net=None, given=None, **options):
    options = {"dimension": 512, "loss": "cross_entropy", "progress": False, **options}
    return le.influence_index(net or network(), data() if given is None else given, store=store, **options)


class Plain(Dataset):
    """Examples one at a time, as most users have them; of another kind where it draws at random."""

    def __init__(self, n=60, *, random=False):
        self.x, self.y = data(n)
        self.random = random

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + (torch.randn(()) if self.random else 0), int(self.y[i])


def test_sketches_are_those_of_the_gradients():
    """Over many seeds the mean inner product is that of autograd's gradients, and its error as large as is said."""
    net, (x, y) = network(), data(12)
    G = gradients(net, x, y)
    expected = G @ G.T
    problem = le.Problem.of(net, "cross_entropy")
    dimension, seeds = 128, 60
    found = torch.stack(
        [s @ s.T for s in (loss_gradient_sketch(problem, x, y, Sketch(dimension, seed)) for seed in range(seeds))]
    )
    scale = G.norm(dim=1) * G.norm(dim=1)[:, None]
    error = (found - expected) / scale
    spread = error.square().mean().sqrt() * dimension**0.5
    assert 0.5 < spread < 2
    assert (error.mean(0).abs() < 5 * error.std(0) / seeds**0.5).all()


def test_scores_are_the_sum_over_checkpoints(tmp_path):
    """With so many buckets that hardly anything collides, scores are TracIn's to a few percent of their size."""
    nets, (x, y), targets = [network(1), network(2)], data(), data(5, seed=9)
    rates = 0.1, 0.02
    expected = sum(
        -rate * gradients(net, x, y) @ gradients(net, *targets).T for net, rate in zip(nets, rates, strict=True)
    )
    checkpoints = [(net.state_dict(), rate) for net, rate in zip(nets, rates, strict=True)]
    made = index(tmp_path / "i.zarr", checkpoints=checkpoints, dimension=1 << 16)
    scores = made.scores(targets)
    assert np.abs(scores - expected.numpy()).max() < 0.02 * float(expected.abs().max())
    found = made.query(targets, top=2)
    first = found.frame().query("target == 0")
    assert first["effect"].tolist() == ["helps"] * 2 + ["harms"] * 2
    assert first["source"].tolist()[:2] == expected[:, 0].argsort().tolist()[:2]
    assert first["source_class"].tolist() == y[first["source"].tolist()].tolist()
    assert found.limit_rank_correlation > 0.99
    assert found.sign_agreement == 1
    assert found.checkpoints == 2
    assert "2 checkpoints" in repr(found)
    assert f"step sizes {min(rates):g} to {max(rates):g}," in repr(made)
    assert len(list((tmp_path / "i.zarr").glob("*/zarr.json"))) == 2


def test_the_check_compares_with_exact_responses(tmp_path):
    """The correlation is Spearman's with `le.similarity(measure="loss")` at the same examples."""
    from scipy.stats import spearmanr

    net, (x, y), targets = network(3), data(40), data(3, seed=9)
    made = index(tmp_path / "i.zarr", net, (x, y), step_size=0.05)
    scores, found = made.scores(targets), made.query(targets, top=1)
    exact = le.similarity(net, (x, y), targets, loss="cross_entropy", measure="loss", update=le.SGD(0.05)).values
    wanted = np.mean([spearmanr(a, b).statistic for a, b in zip(scores.T, exact.T, strict=True)])
    assert found.checked == (40, 3)
    assert found.rank_correlation == pytest.approx(wanted, abs=1e-3)
    assert np.isnan(made.query(targets, check=False).rank_correlation)


@pytest.mark.parametrize(
    "given",
    [
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: TensorDataset(x, y),
        lambda x, y: Plain(),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True),
    ],
    ids=["arrays", "tensor dataset", "dataset", "loader", "shuffled loader"],
)
def test_however_examples_are_given(tmp_path, given, monkeypatch):
    monkeypatch.setattr(sketched, "BLOCK", 16)
    x, y = data()
    expected = index(tmp_path / "tensors.zarr").scores((x[:4], y[:4]))
    found = index(tmp_path / "other.zarr", given=given(x, y)).scores((x[:4], y[:4]))
    np.testing.assert_allclose(found, expected, rtol=SAME_IN_FLOAT32, atol=1e-6)


def test_a_finished_index_is_opened_and_a_new_checkpoint_is_added(tmp_path):
    calls = []
    path, net = tmp_path / "i.zarr", network()
    index(path, net, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 1)]
    index(path, net, progress=lambda done, total: calls.append((done, total)))
    assert len(calls) == 1
    later = network(5)
    index(path, net, checkpoints=[(later.state_dict(), 0.1)], progress=lambda *at: calls.append(at))
    assert len(calls) == 2
    torch.save(later.state_dict(), tmp_path / "later.pt")
    index(path, net, checkpoints=[(tmp_path / "later.pt", 0.1)], progress=lambda *at: calls.append(at))
    assert len(calls) == 2
    assert len(list(path.glob("*/zarr.json"))) == 2


def chunks(path):
    """The bytes of all sketches, by name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.glob("*/sketch/c/*/*")}


@pytest.mark.parametrize("blocks", [1, 4])
def test_it_resumes_after_a_kill(tmp_path, monkeypatch, blocks):
    """Killed with SIGKILL after some blocks, while the next is computed, it ends with the same bytes."""
    monkeypatch.setattr(sketched, "BLOCK", 10)
    given, seen = Plain(80), []
    index(tmp_path / "whole.zarr", given=given)
    path, (reading, writing) = tmp_path / "killed.zarr", os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        index(path, given=given, progress=lambda done, total: os.write(writing, b"."))
        os._exit(0)
    os.close(writing)
    for _ in range(blocks):
        assert os.read(reading, 1) == b"."
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    os.close(reading)
    kept = len(chunks(path))
    assert blocks <= kept < 8
    index(path, given=given, progress=lambda done, total: seen.append(done))
    assert len(seen) <= 8 - blocks
    assert chunks(path) == chunks(tmp_path / "whole.zarr")


class Rows(IterableDataset):
    def __iter__(self):
        return iter([])


def test_bad_input_is_one_sentence(tmp_path):
    path, (x, y) = tmp_path / "i.zarr", data()
    made = index(path)
    weights = network().state_dict()
    bad = [
        ({"net": nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, ValueError, "is an index of another model"),
        ({"given": data(50)}, ValueError, "is an index of other examples"),
        ({"dimension": 256}, ValueError, "dimension"),
        ({"loss": "nll"}, ValueError, "another model"),
        ({"given": (x, y[:10])}, ValueError, "data: inputs and labels have shapes"),
        ({"given": (x[:0], y[:0])}, ValueError, "data: there are no examples"),
        ({"given": x}, TypeError, "data: expected a pair"),
        ({"given": Rows()}, TypeError, "data: a Rows has no positions"),
        ({"given": Plain(random=True)}, ValueError, "data: an example is another each time"),
        (
            {"given": DataLoader(Plain(), sampler=torch.utils.data.SubsetRandomSampler([1, 2]))},
            ValueError,
            "data: the sampler of the DataLoader",
        ),
        ({"dimension": 1}, ValueError, "dimension: expected a whole number"),
        ({"step_size": 0}, ValueError, "step_size: expected a positive number"),
        ({"checkpoints": []}, ValueError, "checkpoints: expected a list"),
        ({"checkpoints": [weights]}, TypeError, "checkpoints: expected"),
        ({"checkpoints": [(weights, -1.0)]}, ValueError, "checkpoints, step size at place 0"),
        ({"checkpoints": [({}, 0.1)]}, ValueError, "checkpoints: 0.weight is missing"),
        ({"checkpoints": [(tmp_path / "no.pt", 0.1)]}, FileNotFoundError, "checkpoints: there is no"),
        ({"checkpoints": [({**weights, "0.weight": x}, 0.1)]}, ValueError, "checkpoints: 0.weight has the shape"),
    ]
    for options, kind, sentence in bad:
        with pytest.raises(kind, match=sentence) as caught:
            index(path, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="data: "):
        index(tmp_path / "new.zarr", given=(x, torch.full((60,), 7)))
    assert not (tmp_path / "new.zarr").exists()
    with pytest.raises(ValueError, match="top: expected a whole number"):
        made.query((x, y), top=0)
    with pytest.raises(TypeError, match="targets: expected a pair"):
        made.query(x)
    for label in (y[3], int(y[3])):
        with pytest.raises(ValueError, match=r"targets: .* Pass a single example as x\[i : i \+ 1\]"):
            made.query((x[3], label))
    with pytest.raises(ValueError, match="targets: "):
        made.query((x[:2], torch.tensor([0, 9])))
    with pytest.raises(ValueError, match="It is an index of influences"):
        le.load(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError, match="is no index"):
        index(tmp_path / "folder")
    le.similarity(network(), (x[:4], y[:4]), loss="cross_entropy", store=tmp_path / "s.zarr")
    with pytest.raises(FileExistsError, match="no index of influences"):
        index(tmp_path / "s.zarr")


def test_weights_that_changed_since_are_noticed(tmp_path):
    """Gradients of targets at other weights than those of the training examples would be worth nothing."""
    net, targets = network(), tuple(part[:2] for part in data(seed=5))
    present = index(tmp_path / "present", net)
    copied = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    kept, live = (
        index(tmp_path / name, net, checkpoints=[(weights, 1e-3)])
        for name, weights in (("kept", copied), ("live", net.state_dict()))
    )
    before = present.scores(targets)
    with torch.no_grad():
        net[0].weight += 0.1
    assert np.array_equal(kept.scores(targets), before)
    for one, words in ((present, "the model has other weights"), (live, "a checkpoint has other weights")):
        for ask in (one.scores, one.query):
            with pytest.raises(ValueError, match=f"^problem: {words} than when the index was built"):
                ask(targets)


def test_a_damaged_block_is_computed_again(tmp_path, caplog):
    path = tmp_path / "i.zarr"
    made = index(path)
    expected = made.scores(data(4))
    chunk = next(path.glob("*/sketch/c/0/0"))
    content = bytearray(chunk.read_bytes())
    assert not verify(path)["damaged"]
    content[100] ^= 255
    chunk.write_bytes(content)
    assert verify(path)["damaged"] == [f"{chunk.parents[3].name} 0"]
    with pytest.raises(ValueError, match="the same le.influence_index"):
        made.scores(data(4))
    assert np.array_equal(index(path).scores(data(4)), expected)


def test_examples_without_a_finite_gradient_have_no_score(tmp_path):
    x, y = data()
    x[3] = 1e38
    found = index(tmp_path / "i.zarr", nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), (x, y)).query((x[:1], y[:1]))
    assert found.without == 1
    assert 3 not in found.frame()["source"].tolist()
    assert "1 examples have no finite gradient" in repr(found)


def test_streams_read_by_position():
    x, y = data(10)
    stream = ExampleStream.of(DataLoader(TensorDataset(x, y), sampler=RandomSampler(y)))
    inputs, labels = stream.read([7, 2], torch.device("cpu"), torch.float32)
    assert torch.equal(inputs, x[[7, 2]])
    assert labels.tolist() == [1, 2]
    assert ExampleStream.of(Subset(TensorDataset(x, y), [3, 4])).n == 2
