"""Networks that people train today: a good hand-written loop against `auto`, and the linear response, in one run.

    python benchmarks/modern.py --device cuda                      # all networks, figures to results/modern-cuda.json
    python benchmarks/modern.py --device cuda --only "ViT-B/16"    # one of them, printed
    python benchmarks/modern.py --device cuda --adamw              # transformers with a live AdamW alone
    python benchmarks/modern.py --device cuda --large              # LoRA on 7B parameters alone
    python benchmarks/modern.py                                    # small networks on the CPU

A loop takes one `torch.func.functional_call` with stepped parameters for each source, all targets in one pass; a naive
one, timed on the CPU, copies the model and steps it by torch.optim. Loops and `auto` take turns; a figure is the median
of its turns, `auto`'s first call aside. Weights and inputs are random. A few rows are compared with a loop in float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map
from ways import environment

import local_elasticity as le
from local_elasticity.training.language import sequence_problem, sequences

RESULTS = Path(__file__).parent / "results"
TURNS, SAMPLED_ROWS, STEP_SIZE, ADAMW_RATE = 3, 2, 1e-3, 1e-4


@dataclass(frozen=True)
class Job:
    """A problem with examples that are sources and targets at once."""

    problem: le.Problem
    inputs: Any
    labels: Tensor
    optimizer: torch.optim.Optimizer | None = None

    @property
    def n(self) -> int:
        return len(self.labels)


def images(make: Callable[[], nn.Module], *, n: int = 60, size: int = 224, classes: int = 10, **options: Any) -> Job:
    """A classifier of random pictures."""
    model = make().eval()
    inputs = torch.randn(n, 3, size, size)
    return Job(le.Problem.of(model, "cross_entropy", **options), inputs, torch.arange(n) % classes)


def text(model: nn.Module, vocabulary: int, *, n: int, length: int, params: Any = None) -> Job:
    """The log-probability of random sequences."""
    inputs, lengths = sequences(torch.randint(0, vocabulary, (n, length)))
    problem = sequence_problem(model.eval())
    return Job(problem, inputs, lengths)


def torchvision_net(name: str) -> nn.Module:
    import torchvision

    net: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=10)
    return net


def vit(width: int, depth: int, heads: int, patch: int, size: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    shape = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    return ViTForImageClassification(
        ViTConfig(**shape, intermediate_size=4 * width, image_size=size, patch_size=patch, num_labels=10)
    )


def gpt2(**shape: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**shape))


def llama(**shape: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**shape))


def lora(n: int, length: int, **shape: Any) -> Job:
    """A Llama whose frozen weights are in bfloat16, with adapters of rank 8 at queries and values."""
    from peft import LoraConfig, get_peft_model

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # random weights take minutes on a CPU
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = llama(vocab_size=32000, **shape)
        finally:
            torch.set_default_dtype(before)
        model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
        for name, p in model.named_parameters():
            if "lora_B" in name:  # zero at first, so that half of the adapters would not move
                nn.init.normal_(p, std=0.02)
        return text(model, 32000, n=n, length=length)


SHAPE_1B = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32}
SHAPE_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}


def bert() -> Job:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_labels=4)).eval()
    ids = torch.randint(0, 30000, (32, 64))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Job(le.Problem.of(model, "cross_entropy", output=logits), inputs, torch.arange(32) % 4)


def logits(result: Any) -> Tensor:
    found: Tensor = result.logits
    return found


NETWORKS: dict[str, Callable[[], Job]] = {
    "ResNet-50": lambda: images(lambda: torchvision_net("resnet50")),
    "ViT-B/16": lambda: images(lambda: torchvision_net("vit_b_16")),
    "ConvNeXt-T": lambda: images(lambda: torchvision_net("convnext_tiny")),
    "EfficientNet-B0": lambda: images(lambda: torchvision_net("efficientnet_b0")),
    "MobileNetV3-S": lambda: images(lambda: torchvision_net("mobilenet_v3_small")),
    "ViT-tiny, CIFAR": lambda: images(lambda: vit(192, 6, 3, 4, 32), size=32, output=logits),
    "GPT-2 124M": lambda: text(gpt2(), 50257, n=32, length=64),
    "BERT-base": bert,
    "Llama 30M": lambda: text(
        llama(vocab_size=8192, hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8),
        8192,
        n=64,
        length=64,
    ),
    "Llama 1.1B, LoRA": lambda: lora(16, 128, num_key_value_heads=4, **SHAPE_1B),
}


WITH_ADAMW = ("ViT-B/16", "GPT-2 124M", "BERT-base")
"""Networks that are measured a second time, with a live AdamW that has taken two steps."""


class Mixer(nn.Module):
    """Patches, and two MLPs by turns over places and channels."""

    def __init__(self, width: int = 64, places: int = 64) -> None:
        super().__init__()
        self.patches, self.norms = nn.Conv2d(3, width, 4, 4), nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.over_places = nn.ModuleList(_mlp(places, 2 * places) for _ in range(2))
        self.over_channels = nn.ModuleList(_mlp(width, 2 * width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i, (places, channels) in enumerate(zip(self.over_places, self.over_channels, strict=True)):
            x = x + places(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * i + 1](x))
        found: Tensor = self.head(x.mean(1))
        return found


def _mlp(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.RNNBase], hidden: int) -> None:
        super().__init__()
        self.layer, self.head = layer(32, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(x)[0][:, -1])
        return found


def signals(model: nn.Module) -> Job:
    problem = le.Problem.of(model.eval(), "cross_entropy")
    return Job(problem, torch.randn(50, 20, 32), torch.arange(50) % 10)


def small_cnn() -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 80), nn.ReLU(), nn.Linear(80, 10)
    )


SMALL: dict[str, Callable[[], Job]] = {
    "ViT, 100 000": lambda: images(lambda: vit(64, 2, 4, 4, 32), n=50, size=32, output=logits),
    "GPT, 100 000": lambda: text(
        gpt2(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64), 256, n=50, length=32
    ),
    "MLP-Mixer, 100 000": lambda: images(Mixer, n=50, size=32),
    "LSTM, 100 000": lambda: signals(Recurrent(nn.LSTM, 140)),
    "GRU, 100 000": lambda: signals(Recurrent(nn.GRU, 160)),
    "CNN, 100 000": lambda: images(small_cnn, n=50, size=32),
}


def good_loop(job: Job, rows: range, dtype: torch.dtype = torch.float32) -> Tensor:
    """For each source: its gradient, a step, one pass of all targets, subtract."""
    problem = job.problem
    model, read = problem.model, problem.output or (lambda result: result)
    params = {name: p.detach().to(dtype) for name, p in model.named_parameters()}
    buffers = {name: b.to(dtype) if b.is_floating_point() else b for name, b in model.named_buffers()}
    inputs = tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, job.inputs)

    def outputs(weights: dict[str, Tensor], x: Any) -> Tensor:
        args, kwargs = ((), x) if isinstance(x, dict) else (x if isinstance(x, tuple) else (x,), {})
        found: Tensor = read(functional_call(model, {**weights, **buffers}, args, kwargs))
        return found

    with torch.no_grad():
        before = outputs(params, inputs)
    changes = []
    for row in rows:
        leaves = {name: params[name].requires_grad_() for name in problem.stepped}
        one = tree_map(lambda leaf, row=row: leaf[row : row + 1], inputs)
        loss = problem.loss(outputs({**params, **leaves}, one), job.labels[row : row + 1])
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            stepped = {
                name: p if g is None else p - STEP_SIZE * g for (name, p), g in zip(leaves.items(), found, strict=True)
            }
            changes.append(outputs({**params, **stepped}, inputs) - before)
    return torch.stack(changes).flatten(2)


def _called(model: nn.Module, x: Any) -> Any:
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def live_loop(job: Job, rows: range) -> Tensor:
    """For each source: weights and state put back, one step of a copy of the optimizer, one pass, subtract."""
    assert job.optimizer is not None
    problem = job.problem
    model, optimizer = copy.deepcopy((problem.model, job.optimizer))
    read = problem.output or (lambda result: result)
    state = [t for one in optimizer.state.values() for t in one.values() if isinstance(t, Tensor)]
    live = [p.detach() for p in model.parameters()] + state
    kept = [t.clone() for t in live]

    def outputs(x: Any) -> Tensor:
        found: Tensor = read(_called(model, x))
        return found

    with torch.no_grad():
        before = outputs(job.inputs)
    changes = []
    for row in rows:
        optimizer.zero_grad()
        one = tree_map(lambda leaf, row=row: leaf[row : row + 1], job.inputs)
        problem.loss(outputs(one), job.labels[row : row + 1]).backward()
        optimizer.step()
        with torch.no_grad():
            changes.append(outputs(job.inputs) - before)
            torch._foreach_copy_(live, kept)
    return torch.stack(changes).flatten(2)


def naive_loop(job: Job, rows: range) -> Tensor:
    """For each source: a copy of the model, one step of torch.optim, one pass of all targets, subtract."""
    problem = job.problem
    read = problem.output or (lambda result: result)

    def outputs(model: nn.Module, x: Any) -> Tensor:
        found: Tensor = read(_called(model, x))
        return found

    with torch.no_grad():
        before = outputs(problem.model, job.inputs)
    changes = []
    for row in rows:
        model = copy.deepcopy(problem.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
        one = tree_map(lambda leaf, row=row: leaf[row : row + 1], job.inputs)
        problem.loss(outputs(model, one), job.labels[row : row + 1]).backward()
        optimizer.step()
        with torch.no_grad():
            changes.append(outputs(model, job.inputs) - before)
    return torch.stack(changes).flatten(2)


def passes(job: Job, count: int) -> None:
    """As many passes of all targets as rows have: no loop over sources can take less time."""
    with torch.inference_mode():
        for _ in range(count):
            _called(job.problem.model, job.inputs)


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    found = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, found


def with_adamw(job: Job) -> Job:
    """The same with an optimizer that has taken two steps on all examples."""
    optimizer = torch.optim.AdamW(job.problem.model.parameters(), lr=ADAMW_RATE)
    read = job.problem.output or (lambda result: result)
    for _ in range(2):
        optimizer.zero_grad()
        job.problem.loss(read(_called(job.problem.model, job.inputs)), job.labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Job(job.problem, job.inputs, job.labels, optimizer)


def measured_with_adamw(make: Callable[[], Job], device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    job = make()
    job.problem.model.to(device)
    job = with_adamw(Job(job.problem, tree_map(lambda leaf: leaf.to(device), job.inputs), job.labels.to(device)))
    assert job.optimizer is not None
    sources, update = (job.inputs, job.labels), le.FromOptimizer(job.optimizer)

    def ours() -> le.Response:
        return le.respond(job.problem, sources, update=update, progress=False)

    first, response = timed(ours, device)
    live_loop(job, range(1))
    turns = [(timed(lambda: live_loop(job, range(job.n)), device)[0], *timed(ours, device)) for _ in range(TURNS)]
    loop_s, auto_s = (statistics.median(turn[i] for turn in turns) for i in (0, 1))
    response = turns[-1][2]
    return {
        "loop_s": loop_s,
        "auto_s": auto_s,
        "first_s": first,
        "engine": response.engine,
        "notes": list(response.notes),
        "loop / auto": loop_s / auto_s,
    }


def measured(
    name: str, make: Callable[[], Job], device: str, *, linear: bool, engine: str, turns: int = TURNS
) -> dict[str, Any]:
    torch.manual_seed(0)
    job = make()
    job.problem.model.to(device)
    job = Job(job.problem, tree_map(lambda leaf: leaf.to(device), job.inputs), job.labels.to(device))
    sources, update = (job.inputs, job.labels), le.SGD(STEP_SIZE)

    def ours(**options: Any) -> le.Response:
        return le.respond(job.problem, sources, update=update, progress=False, **options)

    first, response = timed(lambda: ours(engine=engine), device)
    print(f"{name}: first call {first:.3g} s, {response.engine}", flush=True)
    good_loop(job, range(1))
    loops, naive, autos, alone = [], [], [], []
    for _ in range(turns):
        loops.append(timed(lambda: good_loop(job, range(job.n)), device)[0])
        if device == "cpu":
            naive.append(timed(lambda: naive_loop(job, range(job.n)), device)[0])
            alone.append(timed(lambda: passes(job, job.n), device)[0])
        seconds, response = timed(lambda: ours(engine=engine), device)
        autos.append(seconds)
    print(
        f"{name}: loop {min(loops):.3g} to {max(loops):.3g} s, auto {min(autos):.3g} to {max(autos):.3g} s", flush=True
    )
    found = {
        "loop_s": statistics.median(loops),
        "auto_s": statistics.median(autos),
        "first_s": first,
        "engine": response.engine,
        "notes": list(response.notes),
    }
    found["loop / auto"] = found["loop_s"] / found["auto_s"]
    if naive:
        found["naive_s"] = statistics.median(naive)
        found["passes_s"] = statistics.median(alone)
        found["naive / auto"] = found["naive_s"] / found["auto_s"]
    found |= agreement(job, response)
    if linear:
        timed(lambda: ours(engine="linearized"), device)
        linearized = [timed(lambda: ours(engine="linearized"), device)[0] for _ in range(turns)]
        found["linearized_s"] = statistics.median(linearized)
        found["linearized / auto"] = found["linearized_s"] / found["auto_s"]
    print(name, json.dumps(found), flush=True)
    return found


@contextmanager
def exact_norms() -> Iterator[None]:
    """Norms of Llama in the precision of the model. Transformers computes them in float32, and a loop in float64 that
    rounds there shows its own error."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))

    before, LlamaRMSNorm.forward = LlamaRMSNorm.forward, forward
    try:
        yield
    finally:
        LlamaRMSNorm.forward = before


def measured_large(device: str) -> dict[str, Any]:
    """LoRA on 7B parameters, 64 sequences of 256 tokens: the first call on four of them, then all pairs; a few pairs
    against a loop in float64."""
    torch.manual_seed(0)
    job = lora(64, 256, **SHAPE_7B)
    print("7B parameters are there", flush=True)

    def ours(n: int, problem: le.Problem = job.problem, **options: Any) -> le.Response:
        some = {name: part[:n] for name, part in job.inputs.items()}
        return le.respond(problem, (some, job.labels[:n]), update=le.SGD(STEP_SIZE), progress=False, **options)

    first, response = timed(lambda: ours(4), device)
    print(f"first call, 4 x 4: {first:.1f} s, {response.engine}", flush=True)
    torch.cuda.reset_peak_memory_stats()
    seconds, response = timed(lambda: ours(64), device)
    print(f"64 x 64: {seconds:.1f} s", flush=True)
    found = {"first_s": first, "auto_s": seconds, "engine": response.engine, "notes": list(response.notes)}
    found["peak_GiB"] = torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps(found), flush=True)
    with exact_norms():
        truth = le.relative(ours(4, job.problem.to(torch.float64), engine=le.Looped())).double()
    return found | errors(le.relative(response)[:4, :4].double(), truth)


def agreement(job: Job, response: le.Response) -> dict[str, float]:
    """Resolved pairs of a few rows against a loop in float64: the worst and the median relative error."""
    with exact_norms():
        truth = good_loop(job, range(SAMPLED_ROWS), torch.float64)
    sizes = truth.norm(dim=2)
    own = torch.stack([sizes[i, i] for i in range(SAMPLED_ROWS)])[:, None]
    return errors(le.relative(response)[:SAMPLED_ROWS].double(), sizes / own)


def errors(S: Tensor, truth: Tensor) -> dict[str, float]:
    """Of the resolved pairs."""
    error = ((S - truth).abs() / truth.clamp_min(1e-2))[S.isfinite()]
    return {
        "worst": float(error.max()),
        "median": float(error.median()),
        "resolved": float(S.isfinite().double().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--machine", default="", help="the machine in words, as it is written into the results")
    parser.add_argument("--only", nargs="*", help="networks by name; nothing is written then")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--no-linear", action="store_true")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--adamw", action="store_true", help="measure AdamW alone, and put it into the results")
    parser.add_argument("--large", action="store_true", help="measure LoRA on 7B parameters, and put it there too")
    options = parser.parse_args()
    networks = NETWORKS if options.device == "cuda" else SMALL
    if options.adamw:
        results = json.loads((RESULTS / f"modern-{options.device}.json").read_text())["networks"]
        for name in WITH_ADAMW:
            results[name]["adamw"] = measured_with_adamw(networks[name], options.device)
            print(name, "AdamW", json.dumps(results[name]["adamw"]), flush=True)
            torch.cuda.empty_cache()
        write(results, options)
        return
    if options.large:
        results = json.loads((RESULTS / f"modern-{options.device}.json").read_text())["networks"]
        results["Llama 7B, LoRA"] = measured_large(options.device)
        print(json.dumps(results["Llama 7B, LoRA"]), flush=True)
        write(results, options)
        return
    results = {}
    for name, make in networks.items():
        if options.only and name not in options.only:
            continue
        try:
            linear = not options.no_linear
            results[name] = measured(
                name, make, options.device, linear=linear, engine=options.engine, turns=options.turns
            )
            if options.device == "cuda" and name in WITH_ADAMW:
                results[name]["adamw"] = measured_with_adamw(make, options.device)
                print(name, "AdamW", json.dumps(results[name]["adamw"]), flush=True)
        except Exception as error:  # the others shall be measured
            print(name, type(error).__name__, error, flush=True)
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        if options.device == "cuda":
            torch.cuda.empty_cache()
        if not options.only:
            write(results, options)


def write(results: dict[str, Any], options: argparse.Namespace, name: str = "modern") -> None:
    """What is known so far, after every network."""
    machine = options.machine or environment(options.device)["machine"]
    versions = {"torch": torch.__version__, "local_elasticity": le.__version__}
    path = RESULTS / f"{name}-{options.device}.json"
    path.write_text(json.dumps({"machine": machine, "versions": versions, "networks": results}, indent=1))


if __name__ == "__main__":
    main()
