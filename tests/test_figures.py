"""Figures for print: names that do not touch, words on axes, the numbers of class pairs."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

import local_elasticity as le
from local_elasticity.measures.registry import OURS

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def similarity(names, each=6, measure="relative", seed=0):
    labels = np.repeat(names, each)
    values = np.random.default_rng(seed).random((len(labels), len(labels)))
    return le.as_similarity(values, source_labels=labels, measure=measure)


def texts(made):
    """The boxes of all that is written in a figure."""
    made.canvas.draw()
    axes = made.axes[0]
    written = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes.yaxis.label, *axes.texts]
    low, high = made.axes[1].get_ylim()
    ticks = zip(made.axes[1].get_yticks(), made.axes[1].get_yticklabels(), strict=True)
    written += [made.axes[1].yaxis.label, *(label for place, label in ticks if low <= place <= high)]
    return {
        (text.get_text(), at): text.get_window_extent() for at, text in enumerate(written) if text.get_text().strip()
    }


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("by", ["example", "class"])
@pytest.mark.parametrize(
    "names", [CIFAR, [f"a class with a long name {i}" for i in range(10)], [f"class {i:03}" for i in range(60)]]
)
def test_no_words_of_a_matrix_overlap(names, by, columns):
    made = similarity(names, each=2).le.plot(columns, by=by)
    boxes = texts(made)
    assert len(boxes) > 10
    assert not [(a, b) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]
    width, height = made.canvas.get_width_height()
    for name, box in boxes.items():
        assert box.x0 >= -1, name
        assert box.x1 <= width + 1, name
        assert box.y0 >= -1, name
        assert box.y1 <= height + 1, name


def test_the_class_figure_has_the_medians():
    S = similarity(CIFAR)
    made = S.le.plot(by="class")
    table = S.le.classes(resamples=0).pivot(index="source_class", columns="target_class", values="value")
    assert [label.get_text() for label in made.axes[0].get_yticklabels()] == list(table.index)
    np.testing.assert_array_equal(made.axes[0].images[0].get_array(), table.to_numpy())
    assert [float(text.get_text()) for text in made.axes[0].texts] == pytest.approx(table.to_numpy().ravel(), abs=0.006)


def test_classes_are_in_natural_order_everywhere():
    """In frames, figures and legends: 2 before 10, also as text or as part of a name."""
    names = ["class 10", "class 9", "class 2"]
    S = similarity(names)
    order = ["class 2", "class 9", "class 10"]
    assert list(dict.fromkeys(S.le.classes(resamples=0).source_class)) == order
    assert list(dict.fromkeys(le.compare(S, S + 0.1).frame().target_class)) == order
    for by in ("class", "example"):
        made = S.le.plot(by=by)
        assert [label.get_text() for label in made.axes[0].get_yticklabels()] == order
    rows = np.argsort(S.source_class.values == "class 10", kind="stable")[-6:]
    np.testing.assert_array_equal(made.axes[0].images[0].get_array()[-6:, -6:], S.values[np.ix_(rows, rows)])
    monitor = le.Monitor(
        torch.nn.Linear(4, 3),
        (torch.randn(6, 4), torch.arange(6) % 3),
        loss="cross_entropy",
        source_labels=[["10", "9", "2"][i % 3] for i in range(6)],
        every=1,
        budget=None,
    )
    monitor.step(0)
    drawn = monitor.plot().subfigs[0]
    assert [axes.get_title() for axes in drawn.axes] == ["source: 2", "source: 9", "source: 10"]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["target: 2", "target: 9", "target: 10"]


def test_the_class_figure_needs_classes():
    with pytest.raises(ValueError, match="no classes"):
        le.as_similarity(np.eye(3), square=True).le.plot(by="class")
    with pytest.raises(ValueError, match="by: expected one of example, class, got 'classes'"):
        similarity(CIFAR).le.plot(by="classes")


@pytest.mark.parametrize("measure", [one.name for one in OURS])
def test_axes_have_words(measure):
    label = similarity(["a", "b"], measure=measure).le.plot().axes[1].get_ylabel()
    assert " " in label
    assert "_" not in label


def test_what_is_not_resolved_is_said():
    S = similarity(["a", "b"])
    assert "grey" not in S.le.plot().axes[1].get_ylabel()
    S[0, 1] = np.nan
    assert "grey: unresolved" in S.le.plot().axes[1].get_ylabel().replace("\n", " ")


@pytest.mark.parametrize("columns", [1, 2])
def test_the_legend_of_a_history_is_beside_its_curves(columns):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    sources = torch.randn(12, 4), torch.arange(12) % 3
    monitor = le.Monitor(net, sources, loss="cross_entropy", measure=("relative", "kl"), every=1, budget=None)
    for step in range(3):
        monitor.step(step)
    made = monitor.plot(columns)
    made.canvas.draw()
    part = made.subfigs[0]
    legend = part.legends[0].get_window_extent()
    assert not [axes for axes in part.axes if legend.overlaps(axes.get_window_extent())]
    assert {axes.get_xlabel() for axes in part.axes[-3:]} == {"training step"}
    assert part.axes[0].get_ylabel().startswith("change at the target")


def influences(targets=2, **columns):
    """Two helpers and two harmers of each target, a thousand times weaker from target to target."""
    import pandas as pd

    rows = [
        {"target": target, "source": 10 + place, "source_class": place % 3, "value": value / 1000**target}
        for target in range(targets)
        for place, value in enumerate((-0.2, -0.1, 0.3, 0.05))
    ]
    frame = pd.DataFrame(rows).assign(effect=["helps", "helps", "harms", "harms"] * targets, **columns)
    return le.Influences(0.9, 0.9, 1.0, (4, targets), 20, targets, 0, 1, 0.1, frame)


@pytest.mark.parametrize("columns", [1, 2])
def test_influences_are_bars_with_their_names_classes_and_values(columns):
    made = influences().plot(columns)
    made.canvas.draw()
    assert [axes.get_title(loc="right") for axes in made.axes] == ["target 0", "target 1"]
    for axes in made.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            *("10 (class 0)", "11 (class 1)", "12 (class 2)", "13 (class 0)")
        ]
        assert axes.yaxis_inverted()
        widths = [bar.get_width() for bar in axes.patches]
        assert abs(axes.get_xlim()[0]) < 2 * max(map(abs, widths))  # a scale of its own
        colours = [bar.get_facecolor() for bar in axes.patches]
        assert colours[0] == colours[1] != colours[2] == colours[3]
    assert [text.get_text() for text in made.axes[0].texts] == ["−0.2", "−0.1", "0.3", "0.05"]
    assert made.get_supxlabel() == "change of the target's loss by the step\neach target has its own scale"
    assert [text.get_text() for text in made.legends[0].get_texts()] == [
        "helps: the loss falls",
        "harms: the loss rises",
    ]


def test_influences_of_many_targets_or_none_are_drawn():
    made = influences(15).plot(2)
    assert len(made.axes) == 12
    assert "12 of 15 targets" in made.get_supxlabel()
    none = influences(1)
    assert not replace(none, _frame=none.frame().head(0)).plot().axes[0].patches
    with pytest.raises(ValueError, match="columns: expected 1 or 2"):
        influences().plot(3)


def test_names_of_influences_are_no_mathematics_and_keep_within_the_figure():
    from local_elasticity.report.bars import influence_figure

    hostile = "$\\frac{$ <b>\n\u202e$x^2$ " + "a" * 300
    frame = influences(1).frame().assign(source_class=hostile, target_file=hostile)
    made = influence_figure(frame)
    made.canvas.draw()
    width, _ = made.canvas.get_width_height()
    for label in (*made.axes[0].get_yticklabels(), made.axes[0]._right_title):
        assert label.get_window_extent().x0 >= -1
        assert label.get_window_extent().x1 <= width + 1
