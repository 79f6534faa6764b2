"""The same kernels by neural-tangents with structured derivatives, in a virtual environment of its own (jax 0.4.20).

    .venv-tangents/bin/python benchmarks/tangents.py CASE.npz

Prints one line of JSON, as kernels.py does. Compilation is not counted.
"""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from jax import lax
from peak import forget_peak, peak_gib

REPEATS = 3


def linear(w, name, x):
    """x Wᵀ + b without a transpose, which structured derivatives would not see through."""
    return lax.dot_general(x, w[f"{name}.weight"], (((1,), (1,)), ((), ()))) + w[f"{name}.bias"]


def convolution(w, name, x, stride=1, padding=0):
    out = lax.conv_general_dilated(
        x,
        w[f"{name}.weight"],
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )
    bias = w.get(f"{name}.bias")
    return out if bias is None else out + bias[:, None, None]


def max_pool(x, window, stride, padding=0):
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, window, window), (1, 1, stride, stride), around)


def fnn(w, x):
    return linear(w, "3", jax.nn.relu(linear(w, "1", x.reshape(len(x), -1))))


def cnn(w, x):
    h = max_pool(jax.nn.relu(convolution(w, "0", x)), 2, 2)
    h = max_pool(jax.nn.relu(convolution(w, "3", h)), 2, 2)
    return linear(w, "9", jax.nn.relu(linear(w, "7", h.reshape(len(h), -1))))


def resnet(w, x):
    h = max_pool(jax.nn.relu(convolution(w, "stem", x, 2, 3)), 3, 2, 1)
    for stage in range(4):
        for block in range(2):
            name, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
            out = convolution(
                w, f"{name}.second", jax.nn.relu(convolution(w, f"{name}.first", h, stride, 1)), padding=1
            )
            same = f"{name}.shortcut.weight" not in w
            h = jax.nn.relu(out + (h if same else convolution(w, f"{name}.shortcut", h, stride)))
    return linear(w, "head", h.mean((2, 3)))


def main() -> None:
    case = np.load(sys.argv[1])
    net = {"fnn": fnn, "cnn": cnn, "resnet": resnet}[str(case["network"])]
    weights = {name[7:]: jnp.asarray(case[name]) for name in case.files if name.startswith("weight ")}
    x = jnp.asarray(case["x"])
    forget_peak()
    unused = peak_gib()
    kernel = jax.jit(
        nt.empirical_ntk_fn(
            lambda w, inputs: net(w, inputs),
            trace_axes=(-1,),
            vmap_axes=0,
            implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES,
        ),
        static_argnums=(1,),
    )
    began = time.perf_counter()
    K = np.asarray(kernel(x, None, weights), dtype=np.float64) * (3 if str(case["network"]) == "resnet" else 1)
    compiled = time.perf_counter() - began
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        kernel(x, None, weights).block_until_ready()
        times.append(time.perf_counter() - began)
    truth = case["truth"]
    error = float((np.linalg.norm(K - truth, axis=1) / np.linalg.norm(truth, axis=1)).max())
    grown = peak_gib() - unused
    print(
        json.dumps(
            {
                "seconds": sorted(times)[REPEATS // 2],
                "first": compiled,
                "peak memory GiB": grown,
                "error": error,
            }
        )
    )


if __name__ == "__main__":
    main()
