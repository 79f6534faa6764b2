"""Does the forecast serve for a language model? Which facts a fine-tune loses, and replay of those at risk.

    python benchmarks/forecast_language.py

A small GPT (two layers, 121,000 weights) learns 480 synthetic facts: a subject, a relation, an answer of two tokens.
Half of the first tokens follow from the subject's group. Eight facts that it has not seen are then taught, by SGD or
AdamW on all weights or by AdamW on LoRA adapters of rank 4. A fact is known where greedy decoding gives its answer.
Before the fine-tune, every score ranks the known facts by how likely they are to be lost; after it, the AUROC is taken.
For replay, 16 of half of the known facts join the eight in every step, and the other half is read. Five seeds, two
draws each; intervals (95 %) resample both. Figures go to benchmarks/results/forecast-language-cpu.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from forecast import _plain, _told, collected, differences
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.statistics.ranking import auroc
from local_elasticity.training.language import answer_problem, token_sources

RESULTS = Path(__file__).parent / "results"
SUBJECTS, RELATIONS, GROUPS, VALUES = 130, 4, 10, 30
FACTS, NEW, REPLAYED, TRIALS = 480, 8, 16, 2
VOCABULARY = SUBJECTS + RELATIONS + VALUES
VIRTUAL = (0, 1, 3, 5)
FORECAST = (
    "auroc",
    "rank correlation",
    "forecast lost",
    "lost where forecast",
    "gradient cosine where forecast",
    "seconds",
)
"""What is kept of a forecast; and of the draws that were not refused, what is lost and the AUROC of the gradients."""

Facts = tuple[dict[str, Tensor], Tensor]
"""Inputs and labels, as `token_sources` makes them."""


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        found: Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return found


class GPT(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(4, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def features(self, input_ids: Tensor) -> Tensor:
        """What both answer tokens are predicted from."""
        places = torch.arange(input_ids.shape[1])
        found: Tensor = self.norm(self.blocks(self.tokens(input_ids) + self.places(places)))
        return found

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(input_ids))
        return found


def facts(seed: int) -> Tensor:
    """All facts, shuffled: [subjects × relations, 4] tokens."""
    rng = np.random.default_rng(seed)
    group = rng.integers(GROUPS, size=SUBJECTS)
    usual = rng.integers(VALUES, size=(GROUPS, RELATIONS))
    table = []
    for subject in range(SUBJECTS):
        for relation in range(RELATIONS):
            first = usual[group[subject], relation] if rng.random() < 0.5 else rng.integers(VALUES)
            answer = [SUBJECTS + RELATIONS + value for value in (first, rng.integers(VALUES))]
            table.append([subject, SUBJECTS + relation, *answer])
    return torch.tensor(table)[rng.permutation(len(table))]


def as_facts(tokens: Tensor) -> Facts:
    """The answer alone is predicted."""
    labels = tokens.clone()
    labels[:, :2] = -100
    return token_sources({"input_ids": tokens, "labels": labels})


def loss(net: nn.Module, tokens: Tensor) -> Tensor:
    """As a training loop has it."""
    return F.cross_entropy(net(tokens)[:, 1:-1].flatten(0, 1), tokens[:, 2:].flatten())


def known(net: nn.Module, tokens: Tensor) -> np.ndarray:
    """Whether greedy decoding gives the answer."""
    shown = tokens[:, :2]
    with torch.no_grad():
        for _ in range(2):
            shown = torch.cat([shown, net(shown)[:, -1].argmax(1, keepdim=True)], 1)
    return (shown == tokens).all(1).numpy()


def train(net: nn.Module, tokens: Tensor, steps: int = 700) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / steps)
        optimizer.zero_grad()
        loss(net, tokens[torch.randperm(len(tokens))[:160]]).backward()
        optimizer.step()


def with_lora(net: GPT) -> nn.Module:
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["qkv", "out", "up", "down"])
    torch.manual_seed(0)
    return get_peft_model(copy.deepcopy(net), config)


FINE_TUNES: dict[str, tuple[Callable[[GPT], nn.Module], Any, int]] = {
    "SGD 0.01, 10 steps": (copy.deepcopy, lambda p: torch.optim.SGD(p, lr=0.01), 10),
    "SGD 0.003, 40 steps": (copy.deepcopy, lambda p: torch.optim.SGD(p, lr=0.003), 40),
    "AdamW 0.0003, 10 steps": (copy.deepcopy, lambda p: torch.optim.AdamW(p, lr=0.0003), 10),
    "LoRA, AdamW 0.002, 15 steps": (with_lora, lambda p: torch.optim.AdamW(p, lr=0.002), 15),
}


def replay_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.0003)


REPLAY_STEPS = 20


def fine_tuned(net: nn.Module, make: Any, tokens: Tensor, steps: int) -> nn.Module:
    moved = copy.deepcopy(net)
    optimizer = make([p for p in moved.parameters() if p.requires_grad])
    for _ in range(steps):
        optimizer.zero_grad()
        loss(moved, tokens).backward()
        optimizer.step()
    return moved


def forecast(net: nn.Module, make: Any, new: Tensor, old: Tensor, steps: int, virtual: int) -> le.Forecast:
    """The forecast; with every step taken where it is refused."""
    optimizer = make([p for p in net.parameters() if p.requires_grad])
    options: dict[str, Any] = {"update": le.FromOptimizer(optimizer), "steps": steps}
    asked = answer_problem(net), as_facts(new), as_facts(old)
    return le.forecast(*asked, **options, virtual=virtual, max_virtual=steps)


def baselines(net: GPT, new: Tensor, old: Tensor) -> dict[str, np.ndarray]:
    """Scores that need no forecast, larger where a fact is likelier to be lost."""
    with torch.no_grad():
        one, other = (net.features(tokens)[:, 1:-1].flatten(1) for tokens in (old, new))
    cosine = -le.stiffness(answer_problem(net), as_facts(new), as_facts(old), form="cos").mean(0)
    return {
        "feature cosine": (F.normalize(one, dim=1) @ F.normalize(other, dim=1).T).amax(1).numpy(),
        "representation product": (one @ other.T).amax(1).numpy(),
        "gradient cosine": cosine.numpy(),
    }


def one_trial(net: GPT, new: Tensor, old: Tensor) -> dict[str, dict[str, float]]:
    """AUROC of every score for every fine-tune."""
    plain, found = baselines(net, new, old), {}
    for name, (wrapped, make, steps) in FINE_TUNES.items():
        here = wrapped(net)
        began = time.perf_counter()
        moved = fine_tuned(here, make, new, steps)
        lost = ~known(moved, old)
        walked = forecast(here, make, new, old, steps, steps).old
        assert (walked.lost == lost).mean() > 0.99, "every step taken in a copy is the fine-tune"
        row = {
            "margin before": auroc(-walked.margin_before, lost),
            "loss before": auroc(walked.loss_before, lost),
            "lost": float(lost.sum()),
            "known before": float(len(old)),
            "new learned": float(known(moved, new).mean()),
            "simulation seconds": time.perf_counter() - began,
            **{score: auroc(values, lost) for score, values in plain.items()},
        }
        for virtual in VIRTUAL:
            row |= {f"{part}, virtual={virtual}": float("nan") for part in FORECAST}
            row[f"refused, virtual={virtual}"] = 1.0
            try:
                told = forecast(here, make, new, old, steps, virtual)
            except ValueError:
                continue
            check = told.check(answer_problem(moved, params=".*"))
            row |= {
                f"auroc, virtual={virtual}": auroc(-told.old.margin_after, lost),
                f"rank correlation, virtual={virtual}": check.rank_correlation,
                f"forecast lost, virtual={virtual}": float(told.old.lost.sum()),
                f"lost where forecast, virtual={virtual}": row["lost"],
                f"gradient cosine where forecast, virtual={virtual}": row["gradient cosine"],
                f"seconds, virtual={virtual}": told.seconds,
                f"refused, virtual={virtual}": 0.0,
            }
        found[name] = row
    return found


def replayed(net: GPT, new: Tensor, pool: Tensor, test: Tensor, seed: int) -> dict[str, dict[str, float]]:
    """What is forgotten and learned with 16 facts replayed, by how they are chosen."""
    make, steps = replay_optimizer, REPLAY_STEPS
    told = {virtual: forecast(net, make, new, pool, steps, virtual) for virtual in (0, 3)}
    rng = np.random.default_rng(seed)
    chosen = {
        "none": np.array([], dtype=int),
        "random": rng.choice(len(pool), REPLAYED, replace=False),
        "smallest margin": np.argsort(told[0].old.margin_before)[:REPLAYED],
        "at risk, virtual=0": told[0].at_risk(REPLAYED),
        "at risk, virtual=3": told[3].at_risk(REPLAYED),
    }
    likely = np.flatnonzero(told[3].old.lost)
    drawn = likely if len(likely) >= REPLAYED else np.arange(len(pool))
    chosen["drawn from those forecast lost, virtual=3"] = rng.choice(drawn, REPLAYED, replace=False)
    apart = np.ones(len(pool), dtype=bool)
    apart[np.concatenate(list(chosen.values()))] = False
    found = {}
    for name, rows in chosen.items():
        moved = fine_tuned(net, make, torch.cat([new, pool[torch.as_tensor(rows)]]), steps)
        found[name] = {
            "forgotten, test": float((~known(moved, test)).mean()),
            "forgotten, pool never replayed": float((~known(moved, pool))[apart].mean()),
            "new learned": float(known(moved, new).mean()),
        }
    return found


Trials = list[dict[str, dict[str, float]]]


def of_seed(seed: int) -> tuple[float, Trials, Trials]:
    """The share of facts known, forecasts and replays of one model."""
    torch.set_num_threads(1)
    tokens = facts(seed)
    torch.manual_seed(seed)
    net = GPT()
    train(net, tokens[:FACTS])
    right = known(net, tokens[:FACTS])
    held = tokens[:FACTS][torch.from_numpy(right)]
    unseen = tokens[FACTS:]
    unseen = unseen[torch.from_numpy(~known(net, unseen))]
    news = [unseen[trial * NEW : (trial + 1) * NEW] for trial in range(TRIALS)]
    half = len(held) // 2
    forecasts = [one_trial(net, new, held) for new in news]
    replays = [replayed(net, new, held[:half], held[half:], 10 * seed + i) for i, new in enumerate(news)]
    print(f"seed {seed} is done", flush=True)
    return float(right.mean()), forecasts, replays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "forecast-language-cpu.json")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    began = time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        shares, forecasts, replays = zip(*workers.map(of_seed, range(options.seeds)), strict=True)
    pairs = [(f"at risk, virtual={virtual}", other) for virtual in (0, 3) for other in ("random", "smallest margin")]
    pairs.append(("drawn from those forecast lost, virtual=3", "random"))
    report = {
        "machine": f"{os.cpu_count()} CPU cores, two processes of one thread",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - began),
        "known before": [round(share, 4) for share in shares],
        "forecast": collected(list(forecasts)),
        "replay": collected(list(replays)),
        "replay, paired": differences(list(replays), pairs),
    }
    for part in ("forecast", "replay"):
        for setting, row in report[part].items():  # type: ignore[attr-defined]
            print(f"{part}, {setting}: {_told(row)}", flush=True)
    options.out.write_text(json.dumps(_plain(report), indent=1) + "\n")


if __name__ == "__main__":
    main()
