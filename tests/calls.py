"""A call, or several, of every function that Structured has a rule for: which of its arguments move, and the others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.rules.in_place import copied


@dataclass(frozen=True)
class Moves:
    """A tensor that differs after the step; a positive one is still positive then."""

    shape: tuple[int, ...]
    positive: bool = False


@dataclass(frozen=True)
class Call:
    """Functions that take the same arguments to the same effect."""

    functions: tuple[Callable[..., Any], ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    coarse: bool = False
    """Whether the result is rounded to float32."""

    @property
    def name(self) -> str:
        return getattr(self.functions[0], "__name__", "fn")


def x(*shape: int) -> Moves:
    return Moves(shape)


def positive(*shape: int) -> Moves:
    return Moves(shape, True)


def call(functions: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(tuple(functions) if isinstance(functions, Iterable) else (functions,), args, kwargs)


def both(name: str) -> tuple[Any, Any]:
    """The function of this name in torch and the method of a tensor."""
    return getattr(torch, name), getattr(Tensor, name)


def attends_to_itself(sequence: Any, width: int, heads: int, weight: Any, *args: Any, **kwargs: Any) -> Any:
    """With small weights, so that scores do not overflow."""
    return F.multi_head_attention_forward(sequence, sequence, sequence, width, heads, weight / 1000, *args, **kwargs)


def turned(x: Tensor) -> Tensor:
    """Complex numbers, each turned by an angle of its place."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return pairs * torch.polar(torch.ones(pairs.shape[-1]), torch.arange(1.0, pairs.shape[-1] + 1)).to(pairs.dtype)


def rotated(x: Tensor) -> Tensor:
    return torch.view_as_real(turned(x)).flatten(-2)


REST_OF_ATTENTION = (None, None, False, 0.0, x(4, 4), x(4))
ATTENTION = (4, 2, x(12, 4), None, *REST_OF_ATTENTION)
"""The width, the heads, projections of queries, keys and values, what is rarely given, the projection of outputs."""

GENERATOR = torch.Generator().manual_seed(5)
SAME = torch.randn(2, 3, generator=GENERATOR).double()
SMALL = torch.randn(12, 4, generator=GENERATOR).double() / 1000
SIGNS = torch.tensor([[True, False, True], [False, False, True]])
COLUMNS = torch.tensor([[0, 2], [1, 1]])
ADD = (*both("add"), Tensor.__add__, Tensor.__radd__)
SUB = (*both("sub"), *both("subtract"), Tensor.__sub__)
MUL = (*both("mul"), *both("multiply"), Tensor.__mul__, Tensor.__rmul__)
DIV = (*both("div"), *both("divide"), *both("true_divide"), Tensor.__truediv__)
MATMUL = (*both("matmul"), torch.linalg.matmul, Tensor.__matmul__)
CLAMP = (*both("clamp"), *both("clip"))

ELEMENTWISE = [
    call((torch.relu, F.relu, Tensor.relu), x(2, 3)),
    call(F.relu, x(2, 3), inplace=False),
    call(F.leaky_relu, x(2, 3)),
    call(F.leaky_relu, x(2, 3), 0.3),
    call(F.hardtanh, x(2, 3)),
    call(F.hardtanh, x(2, 3), -0.5, 0.2),
    call((F.relu6, F.silu, F.hardsigmoid, F.hardswish, F.mish, F.logsigmoid, F.softsign, F.selu), x(2, 3)),
    call(F.elu, x(2, 3), 0.7),
    call(F.elu, x(2, 3)),
    call(F.celu, x(2, 3), 0.7),
    call(F.glu, x(2, 4)),
    call(F.glu, x(2, 4), 0),
    call((torch.tanh, Tensor.tanh, F.tanh), x(2, 3)),
    call((torch.sigmoid, Tensor.sigmoid, F.sigmoid), x(2, 3)),
    call(F.softplus, x(2, 3)),
    call(F.softplus, x(2, 3), 2.0, 10.0),
    call(F.softplus, x(2, 3), beta=0.5),
    call(F.gelu, x(2, 3)),
    call(F.gelu, x(2, 3), approximate="tanh"),
    call(ADD, x(2, 3), x(2, 3)),
    call(ADD, x(2, 3), x(3)),
    call(ADD, x(3), SAME),
    call(ADD, x(2, 3), 2),
    call(both("add"), x(2, 1), x(4, 1, 3), alpha=-0.5),
    call(torch.add, 2.0, x(2, 3)),
    call(SUB, x(2, 3), x(2, 3)),
    call(SUB, x(3), SAME),
    call(SUB, SAME, x(3)),
    call(both("sub"), x(2, 3), x(2, 3), alpha=2),
    call((torch.rsub, Tensor.__rsub__), x(2, 3), 1.5),
    call((torch.rsub, Tensor.__rsub__), x(2, 3), x(3)),
    call(torch.rsub, x(2, 3), x(3), alpha=0.5),
    call((*both("neg"), *both("negative"), *both("absolute"), Tensor.__neg__), x(2, 3)),
    call(MUL, x(2, 3), x(2, 3)),
    call(MUL, x(3), x(2, 1)),
    call(MUL, x(3), SAME),
    call(MUL, x(2, 3), 0.3),
    call(both("square"), x(2, 3)),
    call(DIV, x(2, 3), positive(2, 3)),
    call(DIV, x(3), positive(2, 1)),
    call(DIV, SAME, positive(3)),
    call(DIV, x(2, 3), 3),
    call((Tensor.__rtruediv__, Tensor.__rdiv__), positive(2, 3), 2.0),
    call((Tensor.__rtruediv__, Tensor.__rdiv__), positive(3), x(2, 3)),
    call(both("reciprocal"), positive(2, 3)),
    *(call(both(name), x(2, 3)) for name in ("exp", "expm1", "abs", "sin", "cos", "erf")),
    call(torch.special.erf, x(2, 3)),
    *(call(both(name), positive(2, 3)) for name in ("log", "log1p", "sqrt", "rsqrt")),
    *(call((*both("pow"), Tensor.__pow__), x(2, 3), p) for p in (0, 1, 2, 3.0, 7, 10)),
    *(call((*both("pow"), Tensor.__pow__), positive(2, 3), p) for p in (0.5, -0.5, -1, -2, 1.3, 9)),
    call((*both("pow"), Tensor.__pow__), x(2, 3), torch.tensor(3)),
    call((*both("pow"), Tensor.__pow__), positive(2, 3), SAME),
    call((*both("pow"), Tensor.__pow__), positive(2, 3), x(2, 3)),
    call((*both("pow"), Tensor.__pow__), positive(2, 1), x(3)),
    call((*both("pow"), Tensor.__pow__), x(2, 3), torch.tensor([1.0, 2.0, 3.0])),
    call(torch.pow, 2, x(2, 3)),
    call(Tensor.__rpow__, x(2, 3), 2.0),
    call(CLAMP, x(2, 3), -0.5, 0.5),
    call(CLAMP, x(2, 3), torch.tensor(-0.5), torch.tensor([0.5, 0.1, 1.0])),
    call(CLAMP, x(2, 3), x(2, 3), x(3)),
    call(CLAMP, SAME, max=x(3)),
    call(CLAMP, x(2, 3), min=0.1),
    call(CLAMP, x(2, 3), max=0),
    call(both("clamp_min"), x(2, 3), 0.1),
    call(both("clamp_max"), x(2, 3), 0.1),
    call((*both("clamp_min"), *both("clamp_max")), x(2, 3), x(3)),
    call((*both("maximum"), *both("minimum")), x(2, 3), x(2, 3)),
    call((*both("maximum"), *both("minimum")), x(2, 3), SAME),
    call((*both("maximum"), *both("minimum")), x(3), x(2, 1)),
    call(torch.where, SIGNS, x(2, 3), x(3)),
    call(torch.where, SIGNS, x(2, 3), 0.0),
    call(torch.where, SIGNS[0], SAME, x(2, 3)),
    call(torch.where, SIGNS, x(3), SAME),
    call(Tensor.where, x(2, 3), SIGNS, x(3)),
    call(Tensor.where, x(3), SIGNS, 1.0),
    call(both("masked_fill"), x(2, 3), SIGNS, -1.0),
    call(both("masked_fill"), x(2, 3), SIGNS[0], 2),
    call(both("masked_fill"), x(3), SIGNS, 2),
]

LAYERS = [
    call(F.linear, x(2, 3), x(4, 3), x(4)),
    call(F.linear, x(2, 5, 3), x(4, 3)),
    call(F.linear, SAME, x(4, 3)),
    call(F.linear, x(2, 3), SAME.repeat(2, 1), x(4)),
    call(both("addmm"), x(4), x(2, 3), x(3, 4)),
    call(both("addmm"), x(2, 4), x(2, 3), x(3, 4), beta=0.5, alpha=2.0),
    call(F.embedding, COLUMNS, x(3, 4)),
    call(F.embedding, COLUMNS, x(3, 4), padding_idx=1),
    call(torch.embedding, x(3, 4), COLUMNS),
    call(torch.embedding, x(3, 4), COLUMNS, 1, False, False),
    call(F.conv1d, x(2, 4, 7), x(6, 4, 3), x(6), 2, 1),
    call(F.conv1d, x(2, 4, 7), x(6, 2, 3), None, 1, 2, 2, 2),
    call(F.conv1d, x(2, 4, 7), x(6, 4, 3), x(6), padding="same"),
    call(F.conv1d, x(2, 4, 7), x(6, 4, 2), x(6), padding="same"),
    call(F.conv1d, x(2, 4, 7), x(6, 4, 2), padding="valid"),
    call(F.conv2d, x(2, 3, 6, 5), x(4, 3, 3, 2), x(4), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    call(F.conv2d, x(2, 4, 6, 5), x(4, 1, 3, 3), x(4), padding=1, groups=4),
    call(F.conv3d, x(2, 2, 3, 4, 4), x(4, 2, 2, 2, 2), x(4)),
    call(F.conv3d, x(2, 2, 3, 4, 4), x(4, 1, 2, 2, 2), x(4), groups=2, stride=2),
    call((F.conv_transpose1d,), x(2, 4, 5), x(4, 2, 3), x(4), 2, 1, 1, 2, 1),
    call(F.conv_transpose2d, x(2, 3, 4, 4), x(3, 2, 2, 2), x(2), stride=2),
    call(F.conv_transpose2d, x(2, 3, 4, 4), x(3, 2, 2, 2)),
    call(F.conv_transpose3d, x(1, 2, 2, 3, 3), x(2, 1, 2, 2, 2), x(1), dilation=2),
    call(F.batch_norm, x(2, 3), torch.zeros(3).double(), torch.full((3,), 2.0).double(), x(3), x(3)),
    call(F.batch_norm, x(2, 3, 4), torch.ones(3).double(), torch.full((3,), 2.0).double()),
    call((F.layer_norm,), x(2, 5, 4), (4,), x(4), x(4)),
    call((F.layer_norm,), x(2, 5, 4), (5, 4), x(5, 4), None, 1e-3),
    call((F.layer_norm,), x(2, 5, 4), (4,)),
    call(torch.layer_norm, x(2, 5, 4), (4,), x(4), x(4), 1e-5, False),
    call((F.rms_norm, torch.rms_norm), x(2, 5, 4), (4,), x(4), 1e-6),
    call((F.rms_norm, torch.rms_norm), x(2, 5, 4), (5, 4)),
    call((F.group_norm, torch.group_norm), x(2, 6, 5), 3, x(6), x(6), 1e-4),
    call((F.group_norm, torch.group_norm), x(2, 6, 2, 2), 2),
    call(F.instance_norm, x(2, 3, 5), None, None, x(3), x(3)),
    call(F.instance_norm, x(2, 3, 2, 4)),
    call(F.instance_norm, x(2, 3, 5), torch.zeros(3).double(), torch.ones(3).double(), x(3), x(3), False),
]

PRODUCTS = [
    call((*MATMUL, *both("mm")), x(2, 3), x(3, 4)),
    call(MATMUL, x(2, 5, 3), x(3, 4)),
    call(MATMUL, x(5, 3), x(2, 3, 4)),
    call(MATMUL, x(4, 1, 5, 3), x(2, 3, 5)),
    call(MATMUL, x(3), x(3, 4)),
    call(MATMUL, x(2, 5, 3), x(3)),
    call(MATMUL, x(3), x(3)),
    call(MATMUL, SAME, x(3, 4)),
    call(MATMUL, SAME, x(4, 3, 5)),
    call((*MATMUL, *both("bmm")), x(2, 5, 3), x(2, 3, 4)),
    call(Tensor.__rmatmul__, x(3, 4), x(2, 3)),
    call(Tensor.__rmatmul__, x(3, 4), SAME),
    call((*both("dot"), *both("vdot")), x(3), x(3)),
    call(both("mv"), x(2, 3), x(3)),
    call(both("outer"), x(2), x(3)),
    call(both("inner"), x(2, 3), x(4, 3)),
    call(both("inner"), x(3), SAME),
    call(both("inner"), x(3), torch.tensor(2.0).double()),
    call(torch.tensordot, x(2, 3, 4), x(3, 4, 2)),
    call(torch.tensordot, x(2, 3, 4), x(4, 2), 1),
    call(torch.tensordot, x(2, 3), SAME, dims=([0], [0])),
    call((*both("matrix_exp"), torch.linalg.matrix_exp), x(3, 3)),
    call(both("matrix_exp"), x(2, 3, 3)),
    call(torch.linalg.solve, positive(3, 3), x(3, 2)),
    call(torch.linalg.solve, positive(2, 3, 3), SAME.mT.expand(2, 3, 2)),
    call(torch.einsum, "bi,ij,jkl->bkl", x(2, 3), x(3, 2), x(2, 2, 2)),
    call(torch.einsum, "b...d,b...d->b...", x(2, 5, 3), x(2, 5, 3)),
    call(torch.einsum, "ii->i", [x(3, 3)]),
    call(both("baddbmm"), x(2, 5, 4), x(2, 5, 3), x(2, 3, 4)),
    call(both("baddbmm"), x(5, 4), x(2, 5, 3), x(2, 3, 4), beta=0.5, alpha=2),
    call(F.bilinear, x(2, 3), x(2, 4), x(5, 3, 4), x(5)),
    call(F.bilinear, x(2, 3), x(2, 4), x(5, 3, 4)),
    call((*both("softmax"), *both("log_softmax")), x(2, 3), -1),
    call((torch.special.softmax, torch.special.log_softmax), x(2, 3), -1),
    call((*both("softmax"), *both("log_softmax")), x(2, 3, 4), dim=1),
    call((*both("softmax"), *both("log_softmax")), x(2, 3), 1, dtype=torch.float64),
    call(F.cross_entropy, x(2, 3), torch.tensor([2, 0])),
    call(F.cross_entropy, x(2, 3, 4), torch.tensor([[2, 0, 1, 1], [0, 2, 2, -100]]), reduction="none"),
    call(F.cross_entropy, x(4, 3), torch.tensor([2, 1, 1, 0]), ignore_index=1, reduction="sum"),
    call(F.cross_entropy, x(3), torch.tensor(1)),
    call(both("logsumexp"), x(2, 3), -1),
    call(both("logsumexp"), x(2, 3), (0,), keepdim=True),
    call(F.scaled_dot_product_attention, x(2, 2, 5, 4), x(2, 2, 3, 4), x(2, 2, 3, 6)),
    call(F.scaled_dot_product_attention, x(2, 5, 4), x(2, 5, 4), x(2, 5, 4), is_causal=True, scale=0.3),
    call(F.scaled_dot_product_attention, x(2, 4, 5, 4), x(2, 2, 5, 4), x(2, 2, 5, 4), enable_gqa=True),
    call(F.scaled_dot_product_attention, x(3, 5, 4), x(3, 5, 4), x(3, 5, 4), torch.ones(5, 5).tril().bool()),
    call(F.scaled_dot_product_attention, x(3, 5, 4), x(3, 5, 4), x(3, 5, 4), x(5, 5)),
    call(F.scaled_dot_product_attention, x(3, 2, 4), x(3, 2, 4), x(3, 2, 4), torch.tensor([[True, True], [False] * 2])),
    call(torch.linalg.vector_norm, x(2, 3)),
    call(torch.linalg.vector_norm, x(2, 3), 2, -1, True),
    call(both("norm"), x(2, 3)),
    call(both("norm"), x(2, 3), dim=1, keepdim=True),
    call(both("norm"), x(2, 3), 2, -1),
    *(call(torch.linalg.vector_norm, x(2, 3), order, -1) for order in (1, torch.inf, 3.0, 1.5)),
    call(torch.linalg.vector_norm, x(2, 3), 2, dtype=torch.float64),
    call(both("norm"), x(2, 3), 1, -1),
    *(call(F.normalize, x(2, 3), p, -1) for p in (2.0, 1.0, 3.0)),
    call(torch.linalg.norm, x(2, 3)),
    call(torch.linalg.norm, x(2, 3), dim=-1, keepdim=True),
    call(torch.linalg.norm, x(2, 3), torch.inf, 0),
    call(torch.linalg.norm, x(2, 3, 4), "fro", (1, 2)),
    call((torch.var_mean, torch.std_mean), x(2, 3)),
    call((torch.var_mean, torch.std_mean), x(2, 3), -1, unbiased=False),
    call((torch.var_mean, torch.std_mean), x(2, 3), (0, 1), correction=0, keepdim=True),
    call((*both("var"), *both("std")), x(2, 3)),
    call((*both("var"), *both("std")), x(2, 3), 1),
    call((*both("var"), *both("std")), x(2, 3), -1, False, True),
    call((*both("var"), *both("std")), x(2, 3), (0, 1), correction=0),
    call((*both("var"), *both("std")), x(2, 3), unbiased=False),
    call((*both("var"), *both("std")), x(2, 3), False),
    call(F.cosine_similarity, x(2, 3), x(2, 3)),
    call(F.cosine_similarity, x(2, 1, 3), x(4, 3), dim=-1),
    call(torch._weight_norm, x(4, 3), positive(4, 1), 0),
    call(torch._weight_norm, x(4, 3, 2), positive(1, 3, 1), 1),
]

SHAPES = [
    call(both("reshape"), x(2, 3, 4), (6, 4)),
    call(both("reshape"), x(2, 3, 4), (2, -1)),
    call(Tensor.reshape, x(2, 3, 4), 4, -1, 2),
    call(Tensor.reshape, x(1), ()),
    call(both("permute"), x(2, 3, 4), (2, 0, -2)),
    call(Tensor.permute, x(2, 3, 4), 1, 2, 0),
    call([*both("transpose"), *both("swapaxes"), *both("swapdims")], x(2, 3, 4), 0, -1),
    call(both("transpose"), x(2, 3, 4), dim0=-1, dim1=1),
    call(both("flatten"), x(2, 3, 4)),
    call(both("flatten"), x(2, 3, 4), 1),
    call(both("flatten"), x(2, 3, 4), -2, -1),
    call(both("flatten"), x(2, 3, 4), start_dim=0, end_dim=1),
    call(both("unflatten"), x(2, 6), 1, (2, -1)),
    call(both("unflatten"), x(2, 6), -1, (2, 3)),
    *(call(both("unsqueeze"), x(2, 3), i) for i in (0, 2, -1, -3)),
    call(Tensor.expand, x(2, 1), 2, 3),
    call(Tensor.expand, x(1, 3), (5, -1, -1)),
    call(Tensor.expand, x(1, 3), torch.Size([4, 3])),
    call((*both("mean"), *both("sum")), x(2, 3, 4)),
    call((*both("mean"), *both("sum")), x(2, 3, 4), 1),
    call((*both("mean"), *both("sum")), x(2, 3, 4), (-1, 0), keepdim=True),
    call((*both("mean"), *both("sum")), x(2, 3, 4), dim=[2], dtype=torch.float64),
    call((*both("mean"), *both("sum")), x(2, 3, 4), axis=1),
    call(both("chunk"), x(2, 5), 2, 1),
    call(both("chunk"), x(2, 5), 2, dim=-1),
    call(both("split"), x(2, 5), 2, 1),
    call(both("split"), x(2, 5), [1, 4], dim=-1),
    call(torch.split, x(2, 5), split_size_or_sections=1),
    call(both("tensor_split"), x(2, 5), 2, 1),
    call(both("tensor_split"), x(2, 5), (1, 3), dim=-1),
    call(both("split_with_sizes"), x(2, 5), [1, 4], 1),
    call(both("narrow"), x(2, 5), 1, 2, 2),
    call(both("select"), x(2, 5), -1, 3),
    call(both("select"), x(2, 5), 0, -1),
    *(
        call(Tensor.__getitem__, x(2, 3, 4), index)
        for index in (
            0,
            (..., -1),
            (slice(None), slice(1, None), None),
            (slice(None), [0, 2]),
            (COLUMNS[1], slice(None), COLUMNS[0]),
            (slice(None), COLUMNS, COLUMNS),
            (0, slice(None), COLUMNS),
            (SIGNS,),
            SIGNS,
            (slice(None), SIGNS[0]),
            (COLUMNS[1], SIGNS[0]),
            (slice(None, None, 2), ..., None, slice(None, None, 3)),
            (),
        )
    ),
    call([Tensor.contiguous, *both("clone"), *both("detach")], x(2, 3)),
    call(Tensor.contiguous, x(2, 3, 4, 4), memory_format=torch.channels_last),
    call(torch.clone, x(2, 3), memory_format=torch.contiguous_format),
    call(Tensor.to, x(2, 3), torch.float64),
    call(Tensor.to, x(2, 3), SAME),
    call(Tensor.to, x(2, 3), "cpu", non_blocking=True),
    call(Tensor.to, x(2, 3, 4, 4), memory_format=torch.channels_last),
    call(Tensor.double, x(2, 3)),
    call(Tensor.type_as, x(2, 3), SAME),
    call(Tensor.type, x(2, 3), torch.float64),
    call(Tensor.type, x(2, 3), "torch.DoubleTensor"),
    Call((Tensor.type,), (x(2, 3), torch.float32), coarse=True),
    Call((Tensor.float,), (x(2, 3),), coarse=True),
    Call((Tensor.to,), (x(2, 3), torch.float32), coarse=True),
    call(both("squeeze"), x(2, 1, 3, 1)),
    call(both("squeeze"), x(2, 1, 3, 1), 1),
    call(both("squeeze"), x(2, 1, 3, 1), -1),
    call(both("squeeze"), x(2, 1, 3, 1), dim=(1, 3)),
    call(both("squeeze"), x(2, 1, 3, 1), 0),
    call((*both("movedim"), *both("moveaxis")), x(2, 3, 4), 0, -1),
    call((*both("movedim"), *both("moveaxis")), x(2, 3, 4), (0, 1), (1, 2)),
    call(both("roll"), x(2, 3), 1),
    call(both("roll"), x(2, 3), (1, -1), (0, 1)),
    call(both("flip"), x(2, 3), (0,)),
    call(both("flip"), x(2, 3), (-1, 0)),
    call(both("cumsum"), x(2, 3), -1),
    call(both("cumsum"), x(2, 3), dim=0),
    call(both("tile"), x(2, 3), (2,)),
    call(both("tile"), x(2, 3), (3, 1, 2)),
    call(both("gather"), x(2, 3), 1, COLUMNS),
    call(both("gather"), x(2, 3), -1, COLUMNS),
    call(both("index_select"), x(2, 3), 1, COLUMNS[0]),
    call(both("take_along_dim"), x(2, 3), COLUMNS, 1),
    call(both("take_along_dim"), x(2, 3), torch.tensor([5, 0])),
    call(both("repeat_interleave"), x(2, 3), 2),
    call(both("repeat_interleave"), x(2, 3), 2, 1),
    call(both("repeat_interleave"), x(2, 3), torch.tensor([1, 0, 2]), dim=-1),
    call((*both("tril"), *both("triu")), x(3, 3)),
    call((*both("tril"), *both("triu")), x(2, 3, 3), diagonal=-1),
    call(both("diagonal"), x(3, 3)),
    call(both("diagonal"), x(2, 3, 3), 1, -2, -1),
    call(both("unbind"), x(2, 3)),
    call(both("unbind"), x(2, 3), dim=-1),
    call(torch.rot90, x(2, 3, 4), 1, (1, 2)),
    call(Tensor.repeat, x(2, 3), 2, 1),
    call(Tensor.repeat, x(3), (2, 1, 2)),
    call(Tensor.expand_as, x(3), SAME),
    call(Tensor.reshape_as, x(3, 2), SAME),
    call(Tensor.unfold, x(2, 5), -1, 3, 2),
    call(Tensor.data.__get__, x(2, 3)),
    call([*both("t"), *(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH"))], x(2, 3)),
    call((*both("adjoint"), Tensor.mH.__get__), x(2, 3, 4)),
    call((*both("ravel"), *both("positive")), x(2, 3)),
    call(both("broadcast_to"), x(3), (2, 3)),
    call(both("diag_embed"), x(2, 3)),
    call([rotated, lambda t: turned(t).real, lambda t: turned(t).imag], x(2, 3, 4)),
    call([lambda t: torch.real(turned(t)), lambda t: torch.imag(turned(t).mT)], x(2, 3, 4)),
    call(Tensor.mT.__get__, x(2, 3, 4)),
    call(both("t"), x(3)),
    call(F.avg_pool1d, x(2, 3, 6), 2),
    call(F.avg_pool1d, x(2, 3, 6), 3, 2, 1, count_include_pad=False),
    call(F.avg_pool2d, x(2, 3, 6, 6), 2),
    call(F.avg_pool2d, x(2, 3, 5, 6), (3, 2), stride=1, padding=1, ceil_mode=True),
    call(F.avg_pool3d, x(2, 3, 4, 4, 4), 2, 1),
    call(F.adaptive_avg_pool1d, x(2, 3, 6), 4),
    call(F.adaptive_avg_pool2d, x(2, 3, 6, 5), (2, None)),
    call(F.adaptive_avg_pool2d, x(2, 3, 6, 5), 1),
    call(F.adaptive_avg_pool3d, x(2, 3, 4, 4, 4), 2),
    call((F.avg_pool1d, F.adaptive_avg_pool1d), x(3, 6), 2),
    *(call(F.interpolate, x(2, 3, 4, 5), scale_factor=2, mode=mode) for mode in ("nearest", "bilinear", "bicubic")),
    call(F.interpolate, x(2, 3, 4, 5), size=(3, 7), mode="bilinear", align_corners=True),
    call(F.interpolate, x(2, 3, 6, 6), size=3, mode="area"),
    call(F.interpolate, x(2, 3, 5), size=8, mode="linear"),
    call(F.interpolate, x(2, 1, 3, 3, 3), size=4, mode="trilinear"),
    call(F.pixel_shuffle, x(2, 8, 3, 3), 2),
    call(F.pixel_unshuffle, x(2, 2, 4, 4), 2),
    call(F.unfold, x(2, 3, 5, 5), 2, padding=1, stride=2),
    call(F.fold, x(2, 12, 4), 4, 2, stride=2),
    call(torch.channel_shuffle, x(2, 6, 3, 3), 3),
    call((torch.cat, torch.concat, torch.concatenate), [x(2, 3), x(2, 1), torch.ones(2, 2).double()], 1),
    call((torch.cat, torch.concat, torch.concatenate), (x(2, 3), x(1, 3)), dim=-2),
    call(torch.stack, [x(2, 3), SAME, x(2, 3)]),
    call(torch.stack, [x(2, 3), SAME], dim=-1),
    call((F.dropout, F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d), x(2, 3, 4), 0.5, False),
    call(F.dropout2d, x(2, 3, 4, 4), 0.5, False),
    call(F.dropout3d, x(2, 3, 2, 2, 2), training=False),
    call(torch.dropout, x(2, 3), 0.5, False),
    call((F.dropout,), x(2, 3), p=0.0),
    call(F.pad, x(2, 3, 4), (1, 2)),
    call(F.pad, x(2, 3, 4), (1, 2, 0, -1), value=3.0),
    call(F.pad, x(2, 3, 4), (1, 2), mode="reflect"),
    call(F.pad, x(2, 3, 4, 4), (1, 2, 1, 0), mode="replicate"),
    call(F.pad, x(2, 3, 4), (1, 2), "circular"),
    call((*both("scatter_add"),), x(2, 3), 1, COLUMNS, x(2, 2)),
    call((*both("scatter_add"),), SAME, 1, COLUMNS, x(2, 2)),
    call((*both("index_add"),), x(2, 3), 1, COLUMNS[0], x(2, 2), alpha=0.5),
    call(both("scatter"), x(2, 3), 1, COLUMNS[:, :1], x(2, 2)),
    call(both("scatter"), SAME, 1, COLUMNS[:, :1], x(2, 2)),
    call(both("scatter"), x(2, 3), 1, COLUMNS, 0.5),
    call(both("scatter"), x(2, 3), 1, COLUMNS, value=0.5),
    call(both("index_copy"), x(2, 3), 1, COLUMNS[0], x(2, 2)),
    call(both("index_fill"), x(2, 3), -1, COLUMNS[0], 0.5),
    call(both("index_put"), x(2, 3), (COLUMNS[0] % 2, COLUMNS[1]), x(2), True),
    call(both("index_put"), SAME, [SIGNS], x(3)),
    call(both("masked_scatter"), x(2, 3), SIGNS, x(2, 3)),
    call(both("masked_scatter"), x(2, 3), SIGNS[0], SAME),
    call(both("masked_select"), x(2, 3), SIGNS),
    call(both("masked_select"), x(3), SIGNS),
    call(both("select_scatter"), x(2, 3), x(2), 1, 0),
    call(both("slice_scatter"), x(2, 3), SAME[:, :2], 1, 1, 3),
    call(torch._VF._pack_padded_sequence, x(2, 3, 4), torch.tensor([3, 1]), True),
    call(torch._VF._pad_packed_sequence, x(4, 3), torch.tensor([2, 1, 1]), True, 0.5, 4),
    call((torch.hstack, torch.column_stack), [x(2, 3), SAME]),
    call(torch.hstack, [x(3), x(2)]),
    call(torch.column_stack, [x(2), SAME, x(2)]),
    call([lambda t: t.max(1, keepdim=True).values, lambda t: torch.min(t, -1)[0]], x(2, 3, 4)),
    call((torch.vstack, torch.row_stack), [x(2, 3), SAME]),
    call((torch.vstack, torch.row_stack), [x(3), x(3)]),
    call((*both("max"), *both("min")), x(2, 3, 4)),
    call((*both("max"), *both("min")), x(2, 3), x(2, 3)),
    call((*both("amax"), *both("amin")), x(2, 3, 4)),
    call((*both("amax"), *both("amin")), x(2, 3, 4), -1),
    call((*both("amax"), *both("amin")), x(2, 3, 4), (0, 2), keepdim=True),
    call((F.max_pool1d, torch.max_pool1d), x(2, 3, 7), 2),
    call((F.max_pool1d, torch.max_pool1d), x(2, 3, 7), 3, 1, 1, 2),
    call((F.max_pool1d, torch.max_pool1d), x(2, 3, 7), 3, 2, 1, ceil_mode=True),
    call((F.max_pool2d, torch.max_pool2d), x(2, 3, 7, 6), 2),
    call((F.max_pool2d, torch.max_pool2d), x(2, 3, 7, 6), 3, 2, ceil_mode=True),
    call((F.max_pool2d, torch.max_pool2d), x(2, 3, 7, 6), 3, (3, 4), 1, 1, True),
    call((F.max_pool3d, torch.max_pool3d), x(2, 3, 4, 4, 5), 2),
    call((F.max_pool3d, torch.max_pool3d), x(2, 3, 4, 4, 5), 2, (1, 2, 3), 1, 2, True),
    call(F.adaptive_max_pool1d, x(2, 3, 7), 3),
    call(F.adaptive_max_pool2d, x(2, 3, 7, 6), 1),
    call(F.adaptive_max_pool2d, x(2, 3, 7, 6), (4, None)),
    call(F.adaptive_max_pool3d, x(2, 3, 4, 5, 3), (3, 2, 3)),
    call((F.max_pool2d, torch.max_pool2d), x(2, 3, 7, 6), (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1)),
]


def set_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """x[index] = value, on a copy."""
    tensor = torch.clone(tensor)
    tensor[index] = value
    return tensor


WRITTEN = [
    call(copied, x(2, 3), x(3)),
    call(copied, x(2, 3), SAME),
    call(torch.zeros_like, x(2, 3)),
    call(torch.full_like, x(2, 3), 0.5),
    call(set_item, x(2, 3), 0, 1.0),
    call(set_item, x(2, 3), 0, x(3)),
    call(set_item, x(2, 3), (slice(None), 1), x(2)),
    call(set_item, x(2, 3), (slice(None), slice(0, 2)), x(1)),
    call(set_item, x(2, 3), SIGNS, 0.0),
    call(set_item, x(2, 3), (slice(None), [2, 0]), x(2, 2)),
    call(set_item, x(2, 3), (COLUMNS[0] % 2, COLUMNS[1]), x(2)),
]

WEIGHTS = [x(20, 3), x(20, 5), x(20), x(20)]

WRITTEN_OUT = [
    call((*both("log2"), *both("log10")), positive(2, 3)),
    call((*both("exp2"), *both("tan")), x(2, 3)),
    call((*both("hypot"), *both("logaddexp")), positive(2, 3), positive(2, 3)),
    call(both("lerp"), x(2, 3), x(2, 3), 0.3),
    call(both("lerp"), x(2, 3), SAME, x(2, 3)),
    call(both("addcmul"), x(2, 3), x(2, 3), SAME, value=0.5),
    call(both("addcdiv"), x(2, 3), SAME, positive(2, 3), value=0.5),
    call(both("float_power"), positive(2, 3), 1.5),
    call(both("float_power"), positive(2, 3), x(3)),
    call(torch.prelu, x(2, 3), x(3)),
    call(torch.prelu, x(2, 3, 4), x(1)),
    call(torch.lstm, x(4, 2, 3), (x(1, 2, 5), x(1, 2, 5)), WEIGHTS, True, 1, 0.0, False, False, False),
    call(torch.gru, x(2, 4, 3), x(1, 2, 5), [x(15, 3), x(15, 5)], False, 1, 0.0, False, False, True),
    *(
        call((torch.rnn_tanh, torch.rnn_relu), x(4, 2, 3), x(2, 2, 5), weights, True, 1, 0.0, False, True, False)
        for weights in ([x(5, 3), x(5, 5), x(5), x(5)] * 2,)
    ),
    call(torch.lstm_cell, x(2, 3), (x(2, 5), x(2, 5)), *WEIGHTS),
    call(torch.gru_cell, x(2, 3), x(2, 5), x(15, 3), x(15, 5), x(15), x(15)),
    call((torch.rnn_tanh_cell, torch.rnn_relu_cell), x(2, 3), x(2, 5), x(5, 3), x(5, 5)),
    call(F.multi_head_attention_forward, x(3, 2, 4), *[x(5, 2, 4)] * 2, 4, 2, SMALL, None, *REST_OF_ATTENTION),
    *(call(attends_to_itself, x(3, 2, 4), *ATTENTION, need_weights=weights) for weights in (False, True)),
    call(attends_to_itself, x(3, 2, 4), *ATTENTION, need_weights=False, attn_mask=torch.ones(3, 3).triu(1).bool()),
    *(call(F.embedding_bag, COLUMNS, x(3, 4), mode=mode) for mode in ("sum", "mean")),
    call(F.embedding_bag, COLUMNS, x(3, 4), padding_idx=-2),
    call(F.embedding_bag, COLUMNS.flatten(), x(3, 4), torch.tensor([0, 1, 1])),
    call(F.embedding_bag, COLUMNS.flatten(), x(3, 4), torch.tensor([0, 3, 4]), mode="sum", include_last_offset=True),
    call(F.embedding_bag, COLUMNS, x(3, 4), mode="sum", per_sample_weights=x(2, 2)),
]

CALLS = [*ELEMENTWISE, *LAYERS, *PRODUCTS, *SHAPES, *WRITTEN, *WRITTEN_OUT]
