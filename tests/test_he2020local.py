"""He & Su's experiments: stacked warm-ups are plain SGD, and shared units are measured once."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.data.images import load
from local_elasticity.data.manifolds import manifold
from local_elasticity.models.small import fnn
from local_elasticity.papers.experiment import Cell, Unit, Values
from local_elasticity.papers.he2020local import grid, nets, photos, simulation
from local_elasticity.papers.he2020local.clusters import (
    Similarities,
    accuracies,
    similarities_along,
    similarities_of,
    simple_baselines,
)
from local_elasticity.papers.he2020local.moves import Moves
from local_elasticity.papers.he2020local.pretrained import triples
from local_elasticity.papers.he2020local.probe import kernel_of_small_steps, relative_of_small_steps, resolved_sources
from local_elasticity.papers.he2020local.released_probe import in_pixels, released_similarities
from local_elasticity.papers.he2020local.stack import initial_weights, loss_gradient
from local_elasticity.papers.he2020local.task import Samples, Task, draw
from local_elasticity.papers.he2020local.warm_up import (
    Learned,
    TrainingTask,
    WarmUpSchedule,
    learn_one,
    learn_three_layers,
    learn_two_layers,
)
from local_elasticity.papers.runner import find_experiment, judged_claims
from tests.tolerances import SAME_IN_FLOAT64


def task(n, d, seed, rate=0.02):
    """Inputs with a few that never change, as the rims of images are."""
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    x[:, : 1 + seed % 2] = -1.0
    return TrainingTask(x, (torch.arange(n) % 2).double(), rate * (1 + seed), seed)


def plain_sgd(task, schedule, width, activation):
    """One net in PyTorch's words: nn.MSELoss or nn.BCELoss, torch.optim.SGD, the same draws."""
    net = fnn(task.x.shape[1], width=width, activation=activation).double()
    Wb, V, c = initial_weights(task.x.shape[1], width, seed=task.seed, device="cpu", dtype=torch.float64)
    linear = [m for m in net if isinstance(m, nn.Linear)]
    with torch.no_grad():
        linear[0].weight.copy_(Wb[:, :-1]), linear[0].bias.copy_(Wb[:, -1])
        linear[1].weight.copy_(V[None]), linear[1].bias.copy_(c[None])
    optimizer = torch.optim.SGD(net.parameters(), lr=task.rate)
    order = torch.Generator().manual_seed(task.seed)
    for epoch in torch.rand(schedule.epochs, len(task.x), generator=order).argsort(1):
        for rows in epoch.split(schedule.batch_size):
            optimizer.zero_grad()
            f = net(task.x[rows])[:, 0]
            loss = nn.MSELoss()(f, task.y[rows]) if schedule.loss == "l2" else nn.BCELoss()(f.sigmoid(), task.y[rows])
            loss.backward()
            optimizer.step()
    return net


@pytest.mark.parametrize("d", [4, 30], ids=["weights", "pre-activations"])
@pytest.mark.parametrize("activation", ["relu", "linear", "sigmoid"])
@pytest.mark.parametrize("loss", ["l2", "bce", "bce of probabilities"])
def test_stacked_warm_up_is_plain_sgd(d, activation, loss):
    """In the cheaper coordinates, batches of unequal size among them: the same predictions and the same kernel."""
    tasks = [task(20, d, seed) for seed in range(3)]
    schedule = WarmUpSchedule(loss, epochs=6, batch_size=8)
    learned = learn_two_layers(tasks, schedule, width=70, activation=activation, device="cpu", dtype=torch.float64)
    for one, found in zip(tasks, learned, strict=True):
        expected = plain_sgd(one, schedule, 70, activation)
        assert torch.allclose(found.net(found.x), expected(one.x), rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)
        kernels = [le.ntk(le.Problem.of(net, "mse"), x) for net, x in ((found.net, found.x), (expected, one.x))]
        assert torch.allclose(*kernels, rtol=SAME_IN_FLOAT64)


@pytest.mark.parametrize("d", [4, 30], ids=["weights", "pre-activations"])
def test_units_that_fall_silent_are_left_out(d):
    """Examples that are close together: on one side of most units. Each net loses another number of them."""
    near = [
        replace(one, x=torch.where(one.x == -1, one.x, one.x / 20)) for one in (task(20, d, s, 0.005) for s in range(3))
    ]
    schedule = WarmUpSchedule("l2", epochs=6, batch_size=8)
    learned = learn_two_layers(near, schedule, width=300, activation="relu", device="cpu", dtype=torch.float64)
    assert 50 < len(learned[0].net[0].weight) < 250
    for one, found in zip(near, learned, strict=True):
        expected = plain_sgd(one, schedule, 300, "relu")
        assert torch.allclose(found.net(found.x), expected(one.x), rtol=SAME_IN_FLOAT64)
        kernels = [le.ntk(le.Problem.of(net, "mse"), x) for net, x in ((found.net, found.x), (expected, one.x))]
        assert torch.allclose(*kernels, rtol=SAME_IN_FLOAT64)


def test_a_net_does_not_depend_on_its_company():
    tasks = [task(20, 6, seed) for seed in range(4)]
    schedule = WarmUpSchedule("l2", epochs=5, batch_size=5)
    options = {"width": 30, "activation": "relu", "device": "cpu", "dtype": torch.float64}
    together = learn_two_layers(tasks, schedule, **options)
    alone = learn_two_layers(tasks[2:3], schedule, **options)[0]
    assert torch.allclose(together[2].net(together[2].x), alone.net(alone.x), rtol=SAME_IN_FLOAT64)


def test_probabilities_that_round_to_one_have_no_gradient():
    f, y = torch.tensor([[30.0, 3.0]]), torch.zeros(1, 2)
    assert loss_gradient(f, y, "bce of probabilities")[0, 0] == 0
    assert loss_gradient(f, y, "bce")[0, 0] == 0.5


def test_any_net_can_be_warmed_up():
    one = task(20, 6, 0)
    schedule = WarmUpSchedule("l2", epochs=5, batch_size=8)
    before = torch.get_rng_state()
    learned = [learn_one(one, schedule, lambda: fnn(6, width=30).double(), "cpu") for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(learned[0].net(one.x), learned[1].net(one.x))
    assert (learned[0].net(one.x)[:, 0] - one.y).square().mean() < 0.3


@pytest.mark.parametrize("activation", ["relu", "linear", "sigmoid"])
def test_three_layer_nets_learn_together_as_they_do_alone(activation):
    tasks = [task(20, 4, seed) for seed in range(3)]
    schedule = WarmUpSchedule("l2", epochs=6, batch_size=8)
    together = learn_three_layers(tasks, schedule, width=30, activation=activation, device="cpu")
    for one, found in zip(tasks, together, strict=True):
        alone = learn_one(one, schedule, lambda: fnn(4, width=30, layers=3, activation=activation).double(), "cpu")
        assert torch.allclose(found.net(found.x), alone.net(one.x), rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)
        for part, expected in zip(found.net.parameters(), alone.net.parameters(), strict=True):
            assert torch.allclose(part, expected, rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)


def test_samples_are_the_first_ones_as_released_and_draws_as_defined():
    task = Task("mnist", (5, 8), (3, 9))
    sizes = {"per_class": 30, "auxiliary": 40}
    images = load("mnist")
    released = [draw(task, seed=seed, reading="as_released", **sizes) for seed in (0, 1)]
    first = torch.isin(images.y_train, torch.tensor([3, 9])).nonzero().flatten()[:40]
    assert torch.equal(released[0].x, released[1].x)
    assert torch.equal(released[0].x[60:], images.x_train[first].float() / 255 * 2 - 1)
    assert released[0].classes.tolist() == [5] * 30 + [8] * 30
    defined = [draw(task, seed=seed, reading="as_defined", **sizes) for seed in (0, 1)]
    assert not torch.equal(defined[0].x, defined[1].x)
    assert draw(task, seed=0, reading="as_released", normalized=False, **sizes).x.min() == 0
    assert defined[0].labels(-1.0).tolist() == [1.0] * 60 + [-1.0] * 40


def test_of_colours_only_red_is_normalised_as_released():
    """As Normalize((0.5,), (0.5,)) did it in early versions of torchvision; Table 2's K-means comes out so."""
    try:
        images = load("cifar10")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    task = Task("cifar10", (3, 2), (1,))
    x = draw(task, per_class=500, auxiliary=1000, seed=0, reading="as_released")
    first = images.x_train[images.y_train == 3][:500].float() / 255
    assert torch.allclose(x.x[:500, 0], 2 * first[:, 0] - 1)
    assert torch.allclose(x.x[:500, 1:], first[:, 1:])
    assert simple_baselines(x, seed=0, reading="as_released")["K-means"] == pytest.approx(51.1, abs=0.3)
    assert draw(task, per_class=5, auxiliary=10, seed=0, reading="as_defined").x[:, 1:].min() < 0


def test_kernel_kmeans_starts_as_released():
    """From seed 0 in the shuffled order, whatever the unit's seed: 5 vs 8 without a network, where starts matter."""
    if len(load("mnist").x_train) < 60000:
        pytest.skip("only a part of MNIST is here: name the folder of mnist.npz in LOCAL_ELASTICITY_DATA")
    samples = draw(Task("mnist", (5, 8), (3, 9)), per_class=500, auxiliary=1000, seed=0, reading="as_released")
    pixels = samples.primary.flatten(1).double().numpy()
    K = pixels @ pixels.T + 1
    found = [accuracies(Similarities(K, K), samples, seed=seed, reading="as_released") for seed in (0, 1)]
    assert [one["kernelized"] for one in found] == [50.2, 50.2]
    assert found[0]["kernelized, one random start"] > 80


def test_small_steps_are_the_limit_of_real_ones():
    net = fnn(6, width=40).double()
    x = torch.randn(8, 6, dtype=torch.float64)
    K = kernel_of_small_steps(net, x)
    response = le.respond(le.Problem.of(net, "mse"), (x, torch.full((8,), 3.0)), update=le.SGD(1e-8))
    assert torch.allclose(relative_of_small_steps(K), le.relative(response), rtol=1e-5)
    assert torch.allclose(K, le.kernel(response), rtol=1e-5)
    problem = le.Problem.of(nn.Sequential(net, nn.Sigmoid()), "mse")
    response = le.respond(problem, (x, torch.full((8,), 3.0)), update=le.SGD(1e-8))
    K = kernel_of_small_steps(net, x, probabilities=True)
    assert torch.allclose(relative_of_small_steps(K), le.relative(response), rtol=1e-5)


def test_a_saturated_probability_is_marked_where_it_is_computed():
    """Float64 can divide by its slope; a net in float32 shows no movement there, so nothing follows from the ratio."""
    points = manifold("two_spheres", seed=0)
    unit, x = Unit("two_spheres relu bce", 0), points.points.float()
    small, large = nn.Linear(x.shape[1], 1), nn.Linear(x.shape[1], 1)
    nn.init.constant_(small.weight, 0.01)
    nn.init.constant_(large.weight, 10.0)
    assert resolved_sources(small, x, probabilities=True).all()
    assert resolved_sources(large, x).all()
    assert not resolved_sources(large, x, probabilities=True).all()
    found = {
        name: simulation._found(unit, Learned(net, x, 3e-3), points, 3e-3, True)
        for name, net in (("small", small), ("large", large))
    }
    for what in (simulation.WITH, simulation.WITHOUT, "mean"):
        assert found["small"][what] is not None
        assert found["large"][what] is None
    assert found["small"][simulation.UNRESOLVED] == 0 < found["large"][simulation.UNRESOLVED]
    assert None in found["large"]["S"]
    cell = simulation.cell({unit: found["large"]}, ("two_spheres", "relu bce"), simulation.WITHOUT)
    assert (cell.values, cell.mean) == ((None,), None)
    assert cell.reason == "not resolved: sources with saturated probabilities do not move at 1 of 1 seeds"


def test_published_means_that_are_rounding_are_left_out_again_and_again():
    """Only at their seeds, only of their net, and what had been computed stays."""

    def one(what, column, values):
        return Cell(f"two spheres: {what}", column, None, values).as_json()

    cells = [
        one(simulation.WITHOUT, "relu bce", (0.1, 0.2)),
        one("mean", "relu bce", (0.5, 3e31)),
        one("accuracy", "relu bce", (0.5, 0.6)),
        one(simulation.WITHOUT, "relu", (-0.9, -0.8)),
        one("mean", "relu", (0.5, 0.4)),
    ]
    fig4 = find_experiment("he2020local/fig4")
    found = fig4.resolved(cells)
    assert [cell["values"] for cell in found[:2]] == [[0.1, None], [0.5, None]]
    assert [cell[simulation.COMPUTED] for cell in found[:2]] == [[0.1, 0.2], [0.5, 3e31]]
    assert found[0]["reason"] == "not resolved: sources with saturated probabilities do not move at 1 of 2 seeds"
    assert found[2:] == cells[2:]
    assert fig4.resolved(found) == found
    claims = {claim["id"]: claim["verdict"] for claim in judged_claims(fig4, found, 2)}
    assert claims["two_spheres_released"] == "not measured"


def test_the_sequential_protocol_is_the_frozen_one_for_small_steps():
    """Rows come in the examples' own order, whatever the walk's."""
    one = task(20, 6, 0)
    learned = learn_two_layers(
        [one], WarmUpSchedule("l2", 5, 8), width=40, activation="relu", device="cpu", dtype=torch.float64
    )
    samples = Samples(one.x, torch.arange(12) % 2)
    frozen = similarities_of(learned[0], samples, probabilities=False)
    walk = similarities_along(learned[0], samples, one.y + 2, step_size=1e-9, seed=3)
    assert np.allclose(frozen.relative, walk.relative, rtol=1e-4)
    assert np.allclose(frozen.kernel, walk.kernel, rtol=1e-4)


def test_a_kernel_of_two_blobs_is_clustered_and_a_broken_one_is_not():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 5)) + 6 * (np.arange(40) < 20)[:, None]
    K = features @ features.T
    samples = Samples(torch.zeros(60, 1), torch.arange(40) < 20)
    found = accuracies(Similarities(np.abs(K) / K.diagonal()[:, None], K), samples, seed=0, reading="as_defined")
    assert found["kernelized"] == 100
    assert set(found) == {
        "relative",
        "kernelized",
        "kernelized, one random start",
        "normalized-kernelized",
        "normalized-kernelized, one random start",
    }
    broken = accuracies(Similarities(K * np.nan, K * np.nan), samples, seed=0, reading="as_released")
    assert set(broken.values()) == {None}


def test_nets_of_one_schedule_are_batched_and_every_unit_has_its_place():
    table = find_experiment("he2020local/table1")
    settings = table.scales["paper"]
    units = [Unit(part, seed) for seed in range(3) for part in table.parts(settings)]
    batches = table.batches(units, settings)
    assert sorted(unit.name for batch in batches for unit in batch) == sorted(unit.name for unit in units)
    assert max(map(len, batches)) == settings["nets at once"]
    for batch in batches:
        assert len({unit.part.split(" ", 4)[4] for unit in batch}) == 1
        assert len({"3-5" in unit.part for unit in batch if "relu" in unit.part}) <= 1


def test_nets_of_a_batch_are_handed_over_as_they_are_clustered(monkeypatch):
    """The second one's clustering waits until the first one is there."""
    table = find_experiment("he2020local/table5")
    settings = table.scales["smoke"]
    units = [Unit(table.parts(settings)[0], seed) for seed in (0, 1)]
    there = threading.Event()

    def slow(S, samples, *, seed, reading):
        assert seed == 0 or there.wait(60)
        return {"relative": 50.0 + seed}

    monkeypatch.setattr("local_elasticity.papers.he2020local.clusters.accuracies", slow)
    batch = table.measure_batch(units, settings, "as_released", "cpu")
    first, _ = next(batch)
    there.set()
    assert [first, *dict(batch)] == units


def test_the_tables_print_the_papers_numbers():
    """300 cells, and rows that are printed twice are the same."""
    tables = [find_experiment(f"he2020local/table{number}") for number in range(1, 9)]
    printed = [(row.net, row.measure, table.tasks, row.paper) for table in tables for row in table.rows if row.paper]
    assert sum(len(paper) for *_, paper in printed) == 300
    seen = {}
    for net, measure, tasks, paper in printed:
        for task, value in zip(tasks, paper, strict=True):
            assert seen.setdefault((net, measure, task), value) == value


def judged(table, measured, seeds):
    cells = [cell.as_json() for cell in table.find(measured).cells]
    return {claim["id"]: claim for claim in judged_claims(table, cells, seeds)}


def values_of(rows):
    """Rows of a table by name, [columns, seeds]."""
    cells = [
        {"row": row, "column": str(place), "paper": None, "values": list(seeds)}
        for row, columns in rows.items()
        for place, seeds in enumerate(columns)
    ]
    return Values(cells, len(next(iter(rows.values()))[0]))


def test_rows_are_compared_seed_by_seed():
    values = values_of({"a": [[60, 70], [80, 90]], "b": [[55, 75], [70, 80]], "c": [[60, 70], [50, 60]]})

    def compared(measure):
        return [{name: list(x) for name, x in one.items()} for one in measure(values)]

    assert compared(grid.best("a", ["b", "c"])) == [{"a − b": [7.5, 2.5], "a − c": [15, 15]}]
    assert compared(grid.some_best(["a", "b"], ["c"])) == [{"a − c": [15, 15]}, {"b − c": [7.5, 12.5]}]
    assert compared(grid.best_elsewhere(["a"], ["b", "c"])) == [{"a − b": [5, -5], "a − c": [0, 0]}]
    assert compared(grid.gains([("a", "b")], np.median)) == [{"a − b": [7.5, 2.5]}]
    assert compared(grid.gains_everywhere([("a", "b")])) == [{"a − b, 0": [5, -5], "a − b, 1": [10, 10]}]
    assert compared(grid.gains_somewhere("a", "b")) == [{"a − b, 0": [5, -5]}, {"a − b, 1": [10, 10]}]
    assert compared(grid.by_choice(["a"])) == [{"a, 0": [60, 70], "a, 1": [80, 90]}]
    assert compared(grid.ratio("a", "c")) == [{"a / c": pytest.approx([70 / 55, 80 / 65])}]


def test_a_diverged_row_is_not_measured_and_never_zero():
    table = find_experiment("he2020local/table2")
    measured = {}
    for seed in range(3):
        for net in ("baselines", "linear l2", "linear bce", "relu bce"):
            names = ["K-means", "PCA + K-means", "relative", "kernelized"]
            found = {name: 50.0 + seed + len(name) for name in names}
            measured[Unit(f"cifar10 car-cat aux bird {net}", seed)] = found
        measured[Unit("cifar10 car-cat aux bird relu l2", seed)] = {"diverged": True}
    assert {claim["verdict"] for claim in judged(table, measured, 3).values()} == {"not measured"}


def test_the_released_probe_is_the_limit_but_for_rounding():
    """In float64 nothing is rounded, and the literal probe gives the limit of small steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    x = torch.randn(8, 5, dtype=torch.float64)
    S, rates = released_similarities(net, x, torch.full((8,), 3.0, dtype=torch.float64))
    K = kernel_of_small_steps(net, x)
    assert np.allclose(S.kernel, K.numpy(), rtol=1e-3, atol=1e-4)
    assert np.allclose(S.relative, relative_of_small_steps(K).numpy(), rtol=1e-3, atol=1e-4)
    assert (rates == 1e-6).all()
    nn.init.zeros_(net[2].weight)
    nn.init.constant_(net[2].bias, 3.0)  # fits exactly: no source has a gradient
    S, rates = released_similarities(net, x, torch.full((8,), 3.0, dtype=torch.float64))
    assert np.isnan(rates).all()
    assert np.isnan(S.relative).all()


def test_a_net_on_pixels_is_the_net_on_gathered_inputs():
    pixels = torch.rand(20, 6)
    pixels[:, :3] = -1.0
    one = TrainingTask(pixels, (torch.arange(20) % 2).float(), 0.02, 3)
    learned = learn_two_layers([one], WarmUpSchedule("l2", 3, 5), width=32, activation="relu", device="cpu")[0]
    net = in_pixels(learned, pixels, 0)
    assert torch.allclose(net(pixels), learned.net(learned.x), atol=1e-5)
    assert net[0].weight[:, 0].std() > 0.1  # the weights of inputs that never change have the usual size


def test_the_tables_hand_on_what_the_paper_printed():
    """5 vs 8 and 4 vs 9 were measured, at 3 seeds: gains over these two columns, the paper's as well."""
    table = find_experiment("he2020local/table7")
    measured = {}
    for seed in range(3):
        for task in ("mnist 5-8 aux 3,9", "mnist 4-9 aux 5,7"):
            measured[Unit(f"{task} relu l2", seed)] = {"kernelized": 60.0, "normalized-kernelized": 61.0 + seed}
    claim = judged(table, measured, 3)["normalized_l2"]
    assert claim["decisive"]["estimate"] == pytest.approx(2)
    assert claim["decisive"]["values"] == [1, 2, 3]
    assert claim["paper"] == pytest.approx([(71.3 - 71.0 + 62.3 - 63.8) / 2])
    later = {unit: found for unit, found in measured.items() if "4-9" in unit.part}
    assert {cell.paper for cell in table.find(later).cells if cell.row == "l2-kernelized (ours)"} == {63.8}


def test_steps_are_compared_by_class():
    change = np.array([[4.0, 4.0, 1.0, 1.0]] * 6 + [[1.0, 1.0, 3.0, 3.0]] * 2)
    moves = Moves(change, change / 2, change)
    similar = np.array([True, True, False, False])
    found = moves.compared(np.ones(8, dtype=bool), similar, ~similar)
    assert found["share"] == 0.75
    assert found["median similar"] == 2
    assert moves.compared(np.arange(8) < 6, similar, ~similar)["rank-sum p"] < 0.01
    assert moves.compared(np.arange(8) < 6, ~similar, similar)["rank-sum p"] > 0.99
    with pytest.raises(ValueError, match="no step"):
        Moves(change, change * np.nan, change).compared(np.ones(8, dtype=bool), similar, ~similar)
    assert len(triples(range(10))) == 6 * 5 * 4 + 4 * 3 * 6


def test_a_warm_up_that_explodes_leaves_no_numbers(monkeypatch):
    """Such a net is said to have diverged, and nothing else is said of it; the run goes on."""
    monkeypatch.setattr("local_elasticity.papers.he2020local.nets.rate", lambda kind: 1e30)
    table = find_experiment("he2020local/table5")
    settings = table.scales["smoke"]
    unit = Unit(table.parts(settings)[1], 0)
    assert unit.part.endswith("relu l2")
    found = table.measure(unit, settings, "as_defined", "cpu")
    assert found == {"diverged": True}
    cells = [cell for cell in table.find({unit: found}).cells if cell.row.endswith("(ours)")]
    assert {(cell.verdict, cell.reason) for cell in cells} == {("not measured", "diverged at the paper's rate")}


def test_a_table_says_why_values_are_missing_and_gives_no_verdict_on_few():
    table = find_experiment("he2020local/table5")
    part = table.parts(table.scales["paper"])[6]
    assert part == "mnist 5-8 aux 3,9 relu l2"
    measured = {Unit(part, 0): {"relative": 75.0}, Unit(part, 1): {"diverged": True}}
    elsewhere = {Unit("mnist 4-9 aux 5,7 relu l2", seed): {"relative": 55.0} for seed in range(3)}
    cells = {(cell.row, cell.column): cell for cell in table.find(measured | elsewhere).cells}
    few = cells["l2-relative (ours)", "5 vs 8 (aux 3, 9)"]
    assert few.values == (75.0, None, None)
    assert few.verdict is None
    why = "diverged at the paper's rate at 1 of 3 seeds; not run at 1 of 3 seeds; no verdict below 3 seeds"
    assert few.as_json()["reason"] == few.reason == why
    enough = cells["l2-relative (ours)", "4 vs 9 (aux 5, 7)"]
    assert (enough.verdict, enough.reason) == ("agrees", "")
    assert cells["l2-relative (random)", "4 vs 9 (aux 5, 7)"].reason == "not run"


def test_linear_nets_and_regression_are_compared_by_one_procedure():
    """Footnote 3: the best of ten starts on either side, where single starts land 30 points apart."""
    table = find_experiment("he2020local/table1")
    ways = {"kernelized, best of ten starts": 50.3, "kernelized, one random start": 50.3}
    linear = {"relative": 51.0, "kernelized": 80.8, **ways}
    baselines = {"regression-relative": 51.2, "regression-kernelized": 50.2}
    baselines |= {f"regression-{way}": value for way, value in ways.items()}
    measured = {}
    for seed in range(3):
        measured[Unit("mnist 5-8 aux 3,9 linear l2", seed)] = linear
        measured[Unit("mnist 5-8 aux 3,9 baselines", seed)] = baselines
    claim = judged(table, measured, 3)["regression"]
    assert claim["verdict"] == "supported"
    names = [one["name"] for one in claim["alternatives"][0]]
    assert any(
        name.startswith("l2-kernelized (linear), best of ten starts − kernelized (linear regression), best")
        for name in names
    )


def test_linear_regression_is_clustered_as_the_linear_nets_are():
    samples = draw(Task("mnist", (5, 8), (3, 9)), per_class=30, auxiliary=40, seed=0, reading="as_released")
    pixels = samples.primary.flatten(1).double().numpy()
    K = pixels @ pixels.T + 1
    for reading in ("as_released", "as_defined"):
        expected = accuracies(Similarities(K, K), samples, seed=0, reading=reading)
        found = simple_baselines(samples, 0, reading)
        kernelized = [measure for measure in expected if measure.startswith("kernelized")]
        assert kernelized
        assert all(found[f"regression-{measure}"] == expected[measure] for measure in kernelized)


def test_a_stable_rate_is_one_at_which_the_net_does_not_diverge():
    generator = torch.Generator().manual_seed(0)
    samples = Samples(5 + torch.randn(60, 30, generator=generator), torch.arange(40) % 2)
    learned = {}
    for name in ("relu l2", "relu l2 stable"):
        plan = WarmUpSchedule("l2", epochs=40, batch_size=60)
        (learned[name],) = nets.learn(
            nets.KINDS[name], [samples], ["net"], plan, settings={"width": 4096}, reading="as_defined", device="cpu"
        )
    y = nets.labels(samples, nets.KINDS["relu l2"], "as_defined")
    losses = {name: float((one.net(one.x)[:, 0] - y).detach().square().mean()) for name, one in learned.items()}
    assert learned["relu l2"].rate == 3e-3 > 2 * learned["relu l2 stable"].rate
    assert losses["relu l2 stable"] < 1
    assert not losses["relu l2"] < 1


def _update(photograph, own, other, unresolved=()):
    kinds = {
        name: own if (name in photos.ANIMALS) == (photograph in photos.ANIMALS) else other for name in photos.LABELS
    }
    values = {name: None if name in unresolved else value for name, value in kinds.items() if name != photograph}
    return {"photograph": photograph, "KL": values, "S_rel": values, "distance": values}


def test_each_photograph_is_one_unit_and_an_unresolved_one_is_not_dropped():
    units = [Unit(kind, seed) for seed in range(25) for kind in photos.KINDS]
    names = [photos._photograph(unit) for unit in units]
    assert len(set(names)) == 50
    assert {photos.UPDATED, photos.SIMILAR, photos.OTHER} <= set(names)
    with pytest.raises(ValueError, match="--seeds: expected at most 25, one for each photograph, got seed 25"):
        photos._photograph(Unit("animal", 25))
    experiment = find_experiment("he2020local/photos")
    measured = {unit: _update(name, 2.0 + unit.seed / 100, 1.0) for unit, name in zip(units, names, strict=True)}
    verdicts = {}
    for lacking in ((), ("vehicle-cab",)):
        measured[units[0]] = _update(names[0], 2.0, 1.0, lacking)
        cells = [cell.as_json() for cell in experiment.find(measured).cells]
        verdicts[lacking] = {one["id"]: one["verdict"] for one in judged_claims(experiment, cells, 25)}
    assert verdicts[()] == {
        "resnet152": "not measured",
        "photos": "supported",
        "vehicles": "supported",
        "figure_6": "not measured",
    }
    assert verdicts["vehicle-cab",] == {**verdicts[()], "photos": "not measured"}
    shares = [cell for cell in cells if cell["row"] == photos.SHARE]
    assert [cell["values"] for cell in shares] == [[None], [1.0]]
    assert shares[0]["reason"] == "1 of 25 updates are not resolved"
