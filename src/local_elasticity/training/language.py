"""Causal language models: one number a sequence (its log-probability), or every next-token distribution.

Both take a model that returns logits [b, T, V], or an object with `.logits`, as Hugging Face models do. Sources are
made by `sequences(input_ids, attention_mask)`; padding comes last and is left out of everything.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from local_elasticity.engine.problem import Problem
from local_elasticity.engine.response import Response
from local_elasticity.measures.relative import kl, relative


def sequences(input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
    """Sources for the problems below: the tokens, and of each sequence how many of them are predicted.

    >>> inputs, lengths = sequences(torch.tensor([[5, 3, 2], [4, 1, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    >>> lengths
    tensor([2., 1.])
    """
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    _check(input_ids, mask)
    return {"input_ids": input_ids, "attention_mask": mask}, mask[:, 1:].sum(1).float()


def sequence_problem(model: nn.Module) -> Problem:
    """The output is log p(sequence), the loss its negative mean over tokens, as in training.

    |change| of the output, `"relative"`, then compares by how many nats sequences became more or less likely.

    >>> import local_elasticity as le
    >>> model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6))
    >>> sources = sequences(torch.tensor([[0, 1, 2], [0, 1, 3], [4, 5, 4]]))
    >>> S = le.relative(le.respond(sequence_problem(model), sources, update=le.SGD(1e-2)))
    >>> S.diagonal()
    tensor([1., 1., 1.])
    """
    return Problem.of(_LogProbability(model), _mean_over_tokens, kind="numbers")


def token_problem(model: nn.Module) -> Problem:
    """The outputs are the logits of every next token, [T − 1, V], zero at padding; measure them with `token_kl`."""
    return Problem.of(_NextTokens(model), _token_loss, kind="numbers")


def token_kl(vocabulary: int) -> Any:
    """S_rel by the KL of the next-token distributions, summed over the tokens of a sequence: a measure.

    >>> import local_elasticity as le
    >>> model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6))
    >>> (inputs, lengths) = sequences(torch.tensor([[0, 1, 2], [0, 1, 3]]))
    >>> response = le.respond(token_problem(model), token_sources(inputs), update=le.SGD(1e-2))
    >>> token_kl(6)(response).diagonal()
    tensor([1., 1.])
    """

    def change(before: Tensor, difference: Tensor) -> Tensor:
        z, d = (part.unflatten(-1, (-1, vocabulary)) for part in (before, difference))
        return kl(z, d).sum(-1)

    def measure(response: Response) -> Tensor:
        return relative(response, change=change)

    measure.__name__ = "token_kl"
    return measure


def token_sources(inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Sources for `token_problem`: the labels are the next tokens, −100 at padding.

    >>> token_sources(sequences(torch.tensor([[5, 3, 2], [4, 1, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))[0])[1]
    tensor([[   3,    2],
            [   1, -100]])
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    _check(ids, mask)
    return inputs, torch.where(mask[:, 1:].bool(), ids[:, 1:], torch.full_like(ids[:, 1:], -100))


def _check(input_ids: Tensor, mask: Tensor) -> None:
    """Ones and then zeros, at least two ones: the model is not shown the mask, and the first token is not predicted."""
    if input_ids.ndim != 2 or mask.shape != input_ids.shape:
        raise ValueError(
            f"input_ids, attention_mask: expected two tensors [b, T], got {list(input_ids.shape)} and "
            f"{list(mask.shape)}"
        )
    seen = mask.bool()
    gaps = (seen[:, 1:] & ~seen[:, :-1]).any(1) | (mask != seen).any(1)
    if gaps.any():
        raise ValueError(
            f"attention_mask: row {int(gaps.nonzero()[0])} is not ones and then zeros; pad on the right, for example "
            'tokenizer.padding_side = "right"'
        )
    short = seen.sum(1) < 2
    if short.any():
        raise ValueError(
            f"input_ids: sequence {int(short.nonzero()[0])} has fewer than two tokens, so that nothing is predicted in "
            "it; leave it out"
        )


class _NextTokens(nn.Module):
    """The logits of the next tokens, zero at padding. Padding comes last, so that a causal model needs no mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        out = self.model(input_ids)
        logits: Tensor = getattr(out, "logits", out)
        return logits[:, :-1] * attention_mask[:, 1:, None]


class _LogProbability(_NextTokens):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        log_p = super().forward(input_ids, attention_mask).log_softmax(-1)
        taken = log_p.gather(-1, input_ids[:, 1:, None])[..., 0]
        return (taken * attention_mask[:, 1:]).sum(1, keepdim=True)


def _mean_over_tokens(log_probability: Tensor, lengths: Tensor) -> Tensor:
    return -(log_probability[:, 0] / lengths).mean()


def _token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
