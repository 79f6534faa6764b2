"""A.2 and Figure 6 with EfficientNet-Lite0, trained on ImageNet, on photographs of animals and vehicles.

The paper updates a ResNet-152 on 50 tabby cats, one after another from the same weights, and compares by a rank test
over the 50 updates how far tiger cats and warplanes move. Here 25 animals (5 cats, 20 dogs) and 25 vehicles update, one
photograph of each kind; all other photographs are watched. There is one network, so the unit of replication is the
update, as in the paper's own test: seed i is the i-th animal and the i-th vehicle. Figure 6 is the tabby cat's update
with the tiger cat and the warplane. The step size is ours; the paper gives none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from local_elasticity.data.images import FOLDER
from local_elasticity.models.pretrained import pretrained
from local_elasticity.papers.experiment import (
    Cell,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    Values,
    not_at_hand,
)
from local_elasticity.papers.he2020local.moves import Moves
from local_elasticity.papers.smallest_effects import ANY_RATIO
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.statistics.verdicts import rank_tests

ANIMALS = {
    "cat-egyptian_cat": 285,
    "cat-persian_cat": 283,
    "cat-siamese_cat": 284,
    "cat-tabby": 281,
    "cat-tiger_cat": 282,
    "dog-airedale": 191,
    "dog-basset": 161,
    "dog-bedlington_terrier": 181,
    "dog-blenheim_spaniel": 156,
    "dog-briard": 226,
    "dog-chihuahua": 151,
    "dog-clumber": 216,
    "dog-collie": 231,
    "dog-curly-coated_retriever": 206,
    "dog-dalmatian": 251,
    "dog-doberman": 236,
    "dog-entlebucher": 241,
    "dog-great_dane": 246,
    "dog-irish_water_spaniel": 221,
    "dog-italian_greyhound": 171,
    "dog-keeshond": 261,
    "dog-miniature_poodle": 266,
    "dog-miniature_schnauzer": 196,
    "dog-newfoundland": 256,
    "dog-norwich_terrier": 186,
    "dog-saluki": 176,
    "dog-silky_terrier": 201,
    "dog-vizsla": 211,
    "dog-walker_hound": 166,
}
VEHICLES = {
    "vehicle-aircraft_carrier": 403,
    "vehicle-airliner": 404,
    "vehicle-ambulance": 407,
    "vehicle-beach_wagon": 436,
    "vehicle-cab": 468,
    "vehicle-container_ship": 510,
    "vehicle-convertible": 511,
    "vehicle-fire_engine": 555,
    "vehicle-garbage_truck": 569,
    "vehicle-jeep": 609,
    "vehicle-limousine": 627,
    "vehicle-liner": 628,
    "vehicle-minivan": 656,
    "vehicle-moving_van": 675,
    "vehicle-pickup": 717,
    "vehicle-racer": 751,
    "vehicle-space_shuttle": 812,
    "vehicle-speedboat": 814,
    "vehicle-sports_car": 817,
    "vehicle-submarine": 833,
    "vehicle-tow_truck": 864,
    "vehicle-trailer_truck": 867,
    "vehicle-trimaran": 871,
    "vehicle-warplane": 895,
    "vehicle-wing": 908,
}
"""Photograph → its class in ImageNet."""

KINDS = {"animal": ANIMALS, "vehicle": VEHICLES}
LABELS = ANIMALS | VEHICLES
UPDATED, SIMILAR, OTHER = "cat-tabby", "cat-tiger_cat", "vehicle-warplane"
"""The three photographs of Figure 6."""

PAPER_CHANGE = {SIMILAR: 0.03, OTHER: 0.002}
PAPER_DISTANCE = {SIMILAR: 854, OTHER: 511}
"""With ResNet-152 and other photographs."""

STEP_SIZE = 1e-4
"""At 1e-3 a step moves the tabby cat's own prediction by 2.3 nats, far from small."""

OWN, FOREIGN = "mean KL at its own kind", "mean KL at the other kind"
RATIO = "KL at its own kind over the other kind, geometric mean"
SHARE = "share of updates that move their own kind more"
RANK_SUM, SIGNED_RANK = "rank-sum p (the paper's ResNet-152: 0.0007)", "signed-rank p"


def _ratios(kinds: Sequence[str]) -> Callable[[Values], Alternatives]:
    """By update, how much further its own kind moves."""
    return lambda values: [{f"{kind} updates": values.of(OWN, kind) / values.of(FOREIGN, kind) for kind in kinds}]


RESNET152 = "ResNet-152 is not at hand"
OTHERS = "and neither are the paper's three photographs; the table has three others of the same classes"


STATISTIC = "by update: mean KL at the photographs of its own kind over mean KL at those of the other kind"


def _moves_more(name: str, sentence: str, kind: str) -> Claim:
    return Claim(name, sentence, "A.2", STATISTIC, _ratios([kind]), ANY_RATIO, scale="log", ours=True)


class Photos(Experiment):
    name = "he2020local/photos"
    title = "One step of EfficientNet-Lite0 on a photograph: KL at its own kind and at the other, and Figure 6"
    claims = (
        Claim(
            "resnet152",
            "When ResNet-152 is updated on a tabby cat, the predictions of tiger cats change more drastically than of "
            "warplanes",
            "A.2",
            "by update: mean KL at 25 tiger cats over mean KL at 25 warplanes",
            not_at_hand(RESNET152),
            ANY_RATIO,
            scale="log",
        ),
        _moves_more(
            "photos",
            "The same in EfficientNet-Lite0: when it is updated on an animal, other animals change more than vehicles",
            "animal",
        ),
        _moves_more("vehicles", "The other way round: when it is updated on a vehicle, other vehicles do", "vehicle"),
        Claim(
            "figure_6",
            "After an update on the tabby cat the tiger cat changes more (KL 0.03) than the warplane (0.002), although "
            "the warplane is closer (511 against 854)",
            "Fig. 6",
            "KL and Euclidean distance of three photographs",
            not_at_hand(f"{RESNET152}, {OTHERS}"),
        ),
    )
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"pixels": 64, "watched": 2, "at once": 4},
        "small": {"pixels": 224, "watched": 12, "at once": 25},
        "paper": {"pixels": 224, "watched": len(ANIMALS), "at once": 25},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(KINDS)

    def batches(self, units: Sequence[Unit], settings: Settings) -> list[list[Unit]]:
        """A few updates of one kind together: the predictions before the step are computed once for all of them."""
        size = settings["at once"]
        groups = [[unit for unit in units if unit.part == kind] for kind in KINDS]
        return [group[i : i + size] for group in groups for i in range(0, len(group), size)]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        return dict(self.measure_batch([unit], settings, reading, device))[unit]

    def measure_batch(
        self, units: Sequence[Unit], settings: Settings, reading: Reading, device: str
    ) -> Iterator[tuple[Unit, Measured]]:
        updating = [_photograph(unit) for unit in units]
        watched = _watched(settings["watched"])
        pixels = _pixels([*updating, *watched])
        chosen = pretrained("efficientnet_lite0")
        x = F.interpolate(chosen.prepare(pixels * 2 - 1), size=settings["pixels"], mode="bilinear").to(device)
        y = torch.tensor([LABELS[name] for name in updating], device=device)
        n = len(updating)
        moves = _moves(chosen.net.to(device), x[:n], y, x[n:])
        distance = torch.cdist(255 * pixels[:n].flatten(1), 255 * pixels[n:].flatten(1))
        for place, unit in enumerate(units):
            yield unit, _found(unit, moves, distance[place], place, watched)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = [cell for kind in KINDS for cell in _cells(measured, kind)]
        return Findings([*cells, *_figure_6(measured)])


def _moves(net: nn.Module, x: Tensor, y: Tensor, watched: Tensor) -> Moves:
    """In float32; updates of which float32 does not resolve every pair are measured again in float64."""
    moves = Moves.of(net, x, y, watched, step_size=STEP_SIZE, engine="looped")
    again = np.isnan(moves.relative).any(1)
    if again.any():
        rows = torch.from_numpy(again).to(x.device)
        better = Moves.of(
            net.double(), x[rows].double(), y[rows], watched.double(), step_size=STEP_SIZE, engine="looped"
        )
        moves.change[again], moves.relative[again] = better.change, better.relative
        net.float()
    return moves


def _photograph(unit: Unit) -> str:
    names = list(KINDS[unit.part])
    if unit.seed >= len(VEHICLES):
        raise ValueError(f"--seeds: expected at most {len(VEHICLES)}, one for each photograph, got seed {unit.seed}")
    return names[unit.seed]


def _watched(of_each_kind: int) -> list[str]:
    """Photographs of both kinds, those of Figure 6 first."""
    first = [sorted(names, key=lambda name: name not in (SIMILAR, OTHER)) for names in KINDS.values()]
    return [name for names in first for name in names[:of_each_kind]]


def _found(unit: Unit, moves: Moves, distance: Tensor, place: int, watched: Sequence[str]) -> Measured:
    """One update: KL at every other photograph, and S_rel; both are None where S_rel is not resolved."""
    me = _photograph(unit)
    others = [(i, name) for i, name in enumerate(watched) if name != me]
    known = np.isfinite(moves.relative[place])
    return {
        "photograph": me,
        "KL": {name: float(moves.change[place, i]) if known[i] else None for i, name in others},
        "S_rel": {name: float(moves.relative[place, i]) if known[i] else None for i, name in others},
        "distance": {name: round(float(distance[i]), 1) for i, name in others},
    }


def _cells(measured: Mapping[Unit, Measured], kind: str) -> list[Cell]:
    runs = [found for unit, found in measured.items() if unit.part == kind]
    cells = []
    for name, key, same in (
        (OWN, "KL", True),
        (FOREIGN, "KL", False),
        ("mean S_rel, own kind", "S_rel", True),
        ("mean S_rel, other kind", "S_rel", False),
    ):
        cells.append(Cell(name, kind, None, tuple(_mean(run[key], kind, same) for run in runs)))
    a, b = (np.array(cell.values, dtype=float) for cell in cells[:2])
    unresolved = int(np.isnan(a + b).sum())
    whole = dict.fromkeys((SHARE, RATIO, RANK_SUM, SIGNED_RANK), None) if unresolved else _over_updates(a, b)
    reason = f"{unresolved} of {len(runs)} updates are not resolved" if unresolved else ""
    return cells + [Cell(row, f"{kind}, all updates", None, (value,), reason=reason) for row, value in whole.items()]


def _over_updates(own: np.ndarray, foreign: np.ndarray) -> dict[str, float]:
    rank_sum, signed_rank = rank_tests(own, foreign)
    ratio = float(np.exp(np.log(own / foreign).mean()))
    return {SHARE: float((own > foreign).mean()), RATIO: ratio, RANK_SUM: rank_sum, SIGNED_RANK: signed_rank}


def _mean(values: Mapping[str, float | None], kind: str, same: bool) -> float:
    """Over the watched photographs of the kind, or of the other one; NaN where one is not resolved."""
    chosen = [value for name, value in values.items() if (name in KINDS[kind]) == same]
    return float(np.mean([np.nan if value is None else value for value in chosen]))


def _figure_6(measured: Mapping[Unit, Measured]) -> Iterator[Cell]:
    """The tabby cat's update; the paper's numbers are those of another network and other photographs."""
    run = next((found for found in measured.values() if found["photograph"] == UPDATED), None)
    if run is None:
        return
    for name in (SIMILAR, OTHER):
        words = name.partition("-")[2].replace("_", " ")
        yield Cell(f"KL (the paper: {PAPER_CHANGE[name]})", f"Fig. 6: {words}", None, (run["KL"][name],))
        yield Cell("S_rel", f"Fig. 6: {words}", None, (run["S_rel"][name],))
        distance = (run["distance"][name],)
        yield Cell(f"Euclidean distance (the paper: {PAPER_DISTANCE[name]})", f"Fig. 6: {words}", None, distance)


def _pixels(names: Sequence[str]) -> Tensor:
    """[n, 3, H, W] in [0, 1]."""
    from matplotlib.image import imread

    folder = Path(os.environ.get(FOLDER, ".")) / "photos"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: put photos/ into a folder and name it in {FOLDER}")
    pixels = np.stack([imread(folder / f"{name}.png")[:, :, :3] for name in names])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
