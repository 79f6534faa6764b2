"""Networks that are wide enough for tensor cores: what is called resolved on a GPU is right, in float32 and with
products in parts, for steps from one that rounding may hide to one that changes much."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

import local_elasticity as le
from local_elasticity.training.language import sequence_problem, sequences
from tests.tolerances import RESOLVED_ERROR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("racing"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

EXAMPLES = 24
WIDTH = 192


class Encoder(nn.Module):
    """torch's own transformer encoder over patches."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Mixer(nn.Module):
    """Patches, then an MLP over places and one over channels."""

    def __init__(self):
        super().__init__()
        self.patches, self.norms = nn.Conv2d(3, WIDTH, 4, 4), nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.places = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.norms[1](x))).mean(1))


class Bottleneck(nn.Module):
    """Convolutions with batch norms around a dense and a grouped one."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 128, 4, 4), nn.Conv2d(128, 128, 3, 2, 1)
        self.grouped, self.up = nn.Conv2d(128, 128, 3, padding=1, groups=2), nn.Conv2d(128, 256, 1)
        self.norms, self.head = nn.ModuleList(map(nn.BatchNorm2d, (128, 128, 256))), nn.Linear(256, 10)

    def forward(self, x):
        x = F.relu(self.norms[0](self.down(self.stem(x))))
        x = F.relu(self.norms[1](self.grouped(x)) + x)
        return self.head(F.relu(self.norms[2](self.up(x))).mean((2, 3)))


class Inverted(nn.Module):
    """A depthwise convolution between two wide ones, squeeze and excitation, layer scale."""

    def __init__(self):
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 128, 4, 4), nn.Conv2d(128, 128, 7, padding=3, groups=128)
        self.norm, self.wide, self.narrow = nn.GroupNorm(1, 128), nn.Conv2d(128, 512, 1), nn.Conv2d(512, 128, 1)
        self.squeeze, self.excite = nn.Conv2d(128, 32, 1), nn.Conv2d(32, 128, 1)
        self.scale, self.head = nn.Parameter(torch.rand(128, 1, 1)), nn.Linear(128, 10)

    def forward(self, x):
        x = self.stem(x)
        out = self.narrow(F.gelu(self.wide(self.norm(self.depthwise(x)))))
        gate = F.hardsigmoid(self.excite(F.silu(self.squeeze(out.mean((2, 3), keepdim=True)))))
        return self.head((x + self.scale * gate * out).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.head = kind(64, 256, batch_first=True), nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def _language_model(name, **shape):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(vocab_size=1000, **shape)
    kind = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[name]
    return getattr(transformers, kind)(config)


def _classified(net, *shape):
    inputs, labels = torch.randn(EXAMPLES, *shape), torch.arange(EXAMPLES) % 10
    return le.Problem.of(net.cuda().eval(), "cross_entropy"), inputs, labels


def _read(net):
    inputs, lengths = sequences(torch.randint(0, 1000, (EXAMPLES, 32)))
    return sequence_problem(net.cuda().eval()), inputs, lengths


LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT2 = {"n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 64}

NETWORKS = {
    "transformer encoder": lambda: _classified(Encoder(), 3, 32, 32),
    "MLP-Mixer": lambda: _classified(Mixer(), 3, 32, 32),
    "bottleneck": lambda: _classified(Bottleneck(), 3, 64, 64),
    "inverted bottleneck": lambda: _classified(Inverted(), 3, 64, 64),
    "LSTM": lambda: _classified(Recurrent(nn.LSTM), 12, 64),
    "GRU": lambda: _classified(Recurrent(nn.GRU), 12, 64),
    "GPT-2": lambda: _read(_language_model("GPT2", **GPT2)),
    "Llama": lambda: _read(_language_model("Llama", num_key_value_heads=2, **LLAMA)),
}

UPDATES = {"small": lambda _: le.SGD(1e-5), "medium": lambda _: le.SGD(1e-2), "large": lambda _: le.SGD(0.3)}
UPDATES["adamw"] = lambda net: le.FromOptimizer(torch.optim.AdamW(net.parameters(), lr=1e-4))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_resolved_is_right_on_tensor_cores(network, update):
    torch.manual_seed(0)
    problem, inputs, labels = NETWORKS[network]()
    sources = tree_map(lambda leaf: leaf.cuda(), inputs), labels.cuda()
    step = UPDATES[update](problem.model)
    respond = partial(le.respond, sources=sources, update=step, progress=False)
    truth = le.relative(respond(problem.to(torch.float64), engine="looped")).double()
    for engine in (le.Structured("float32"), le.Structured("split_bf16"), "auto"):
        found = le.relative(respond(problem, engine=engine)).double()
        known = found.isfinite() & truth.isfinite()
        error = ((found - truth).abs() / truth.clamp_min(1))[known]
        assert error.le(RESOLVED_ERROR).all(), (engine, float(error.max()))
        assert known.double().mean() > 0.9, engine
