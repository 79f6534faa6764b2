"""Causal language models: one number a sequence (its log-probability), or every next-token distribution.

All problems here take a model that returns logits [b, T, V], or an object with `.logits`, as Hugging Face models do.
Sources are made by `sequences(...)`: of tokens with a mask, of a batch as a tokenizer makes it, or of several. Padding,
on either side, and tokens with the label −100, such as those of a prompt, count for nothing. The masks that trainers
give for this, such as `completion_mask`, are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from local_elasticity.engine.loader_states import read_apart
from local_elasticity.engine.loss import IGNORED
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.response import Response
from local_elasticity.measures.relative import kl, relative

Batch = Mapping[str, Tensor]
"""`input_ids` [b, T], and perhaps `attention_mask`, `labels` and masks of answers of the same shape, as tokenizers and
trainers make it."""

ANSWERS = {"completion_mask": 1, "assistant_masks": 1, "assistant_mask": 1, "loss_mask": 1, "prompt_mask": 0}
"""Names of masks in a batch, with their value at tokens that are to be predicted."""


def sequences(
    input_ids: Tensor | Batch | Iterable[Batch], attention_mask: Tensor | None = None, labels: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Sources for the problems below: the tokens, and of each sequence how many of them are predicted.

    Args:
        input_ids: tokens [b, T]; or a batch with `input_ids` and perhaps `attention_mask` and `labels`; or several
            batches, such as a DataLoader of them, which are padded to one length. In a batch, `completion_mask`,
            `assistant_masks` and `loss_mask` (1 at tokens that are to be predicted) and `prompt_mask` (1 at others) are
            read as well; any other mask is refused.
        attention_mask: 1 at tokens, 0 at padding, which is on the right or on the left and may be −100.
        labels: −100 at tokens that are not to be predicted, such as those of a prompt; the tokens themselves elsewhere,
            not shifted.

    Returns:
        The inputs, padded on the right, and the numbers of predicted tokens [b].

    >>> inputs, lengths = sequences(torch.tensor([[5, 3, 2], [0, 4, 1]]), torch.tensor([[1, 1, 1], [0, 1, 1]]))
    >>> inputs["input_ids"][1], lengths
    (tensor([4, 1, 0]), tensor([2., 1.]))
    >>> sequences({"input_ids": torch.tensor([[5, 3, 2]]), "labels": torch.tensor([[-100, -100, 2]])})[1]
    tensor([1.])
    """
    if isinstance(input_ids, Tensor):
        batch = _read(input_ids, attention_mask, labels)
    elif isinstance(input_ids, Mapping):
        batch = _read_batch(input_ids)
    else:
        batch = _joined(list(read_apart(input_ids, _read_batch)))
    counted = predicted_tokens(**batch).sum(1).float()
    if bool((counted == 0).any()):
        row = int((counted == 0).nonzero()[0])
        raise ValueError(f"labels: no token of sequence {row} is predicted; leave it out, or give it a label")
    return batch, counted


def sequence_problem(model: nn.Module, params: str | Callable[[str, Tensor], bool] | None = None) -> Problem:
    """The output is log p(sequence), the loss its negative mean over tokens, as in training.

    |change| of the output, `"relative"`, then compares by how many nats sequences became more or less likely. `params`
    selects the parameters that step, as for `Problem.of`; their names begin with `model.` here.

    >>> import local_elasticity as le
    >>> model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6))
    >>> sources = sequences(torch.tensor([[0, 1, 2], [0, 1, 3], [4, 5, 4]]))
    >>> S = le.relative(le.respond(sequence_problem(model), sources, update=le.SGD(1e-2)))
    >>> S.diagonal()
    tensor([1., 1., 1.])
    """
    return Problem.of(_LogProbability(model), _mean_over_tokens, kind="numbers", params=params)


def token_problem(model: nn.Module, params: str | Callable[[str, Tensor], bool] | None = None) -> Problem:
    """The outputs are the logits of every next token, [T − 1, V], zero where none is predicted; measure them with
    `token_kl`."""
    return Problem.of(_NextTokens(model), _token_loss, kind="numbers", params=params)


def token_log_problem(model: nn.Module, params: str | Callable[[str, Tensor], bool] | None = None) -> Problem:
    """The outputs are the log-probabilities of the tokens, [T − 1], zero where none is predicted. Their sum, the loss
    and so the step are those of `sequence_problem`.

    `token_changes` measures with it by which tokens a sequence became more or less likely.

    >>> import local_elasticity as le
    >>> model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6))
    >>> sources = sequences(torch.tensor([[0, 1, 2], [0, 1, 3]]))
    >>> changes = le.respond(token_log_problem(model), sources, update=le.SGD(1e-2)).target_change
    >>> whole = le.respond(sequence_problem(model), sources, update=le.SGD(1e-2)).target_change
    >>> torch.allclose(changes.sum(-1), whole[..., 0])
    True
    """
    return Problem.of(_TokenLogProbabilities(model), _mean_over_all_tokens, kind="numbers", params=params)


def answer_problem(model: nn.Module, params: str | Callable[[str, Tensor], bool] | None = None) -> Problem:
    """The outputs are the logits of every next token, [V, T − 1], the loss their cross-entropy; for `le.forecast`.

    The labels are those of `token_sources`: −100 at what is not predicted, such as a prompt. A sequence is right where
    each of its predicted tokens is the likeliest, given those before it. Greedy decoding then gives that very answer.
    `params` selects the parameters that step, as for `Problem.of`; their names begin with `model.` here.

    >>> import local_elasticity as le
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6))
    >>> old = token_sources({"input_ids": torch.tensor([[0, 1, 5], [2, 3, 2], [4, 5, 4]])})
    >>> new = token_sources({"input_ids": torch.tensor([[0, 1, 2]]), "labels": torch.tensor([[-100, -100, 2]])})
    >>> found = le.forecast(answer_problem(model), new, old, update=le.SGD(0.5), steps=3, drop=0.1)
    >>> found.frame()["lost"].tolist()
    [True, False, True]
    """
    return Problem.of(_Answers(model), "cross_entropy", params=params)


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


def token_sources(inputs: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Sources for `token_problem`: the labels are the next tokens, −100 where none is predicted. `inputs` are those of
    `sequences`, or a batch that it takes.

    >>> token_sources(sequences(torch.tensor([[5, 3, 2], [4, 1, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))[0])[1]
    tensor([[   3,    2],
            [   1, -100]])
    """
    batch = dict(inputs) if "predicted" in inputs else _read_batch(inputs)
    return batch, torch.where(predicted_tokens(**batch), batch["input_ids"][:, 1:], IGNORED)


def predicted_tokens(input_ids: Tensor, attention_mask: Tensor, predicted: Tensor | None = None) -> Tensor:
    """Which of the next tokens [b, T − 1] count; the arguments are the inputs of `sequences`."""
    return (attention_mask if predicted is None else predicted)[:, 1:].bool()


def _read_batch(batch: Batch) -> dict[str, Tensor]:
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        raise TypeError(f"input_ids: expected tokens, or batches with input_ids, got {type(batch).__name__}")
    input_ids, labels = batch["input_ids"], batch.get("labels")
    for key, mask in batch.items():
        if key != "attention_mask" and key.endswith(("mask", "masks")) and mask is not None:
            labels = _answers(key, mask, input_ids, labels)
    return _read(input_ids, batch.get("attention_mask"), labels)


def _answers(key: str, mask: Tensor, input_ids: Tensor, labels: Tensor | None) -> Tensor:
    """The labels, with −100 where a mask by this name says that a token is not to be predicted."""
    if key not in ANSWERS:
        raise ValueError(
            f"{key}: expected {', '.join(ANSWERS)} beside attention_mask; leave it out of the batch, or pass labels "
            "that are -100 at the tokens that are not to be predicted"
        )
    if not isinstance(mask, Tensor) or mask.shape != input_ids.shape or bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"{key}: expected a tensor of 0 and 1 in the shape of input_ids, {list(input_ids.shape)}")
    left_out = mask != ANSWERS[key]
    return (input_ids if labels is None else labels).masked_fill(left_out, IGNORED)


def _read(input_ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None) -> dict[str, Tensor]:
    """One batch, padded on the right; with what is predicted, where labels say that."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    _check(input_ids, mask, labels)
    batch = {"input_ids": input_ids.masked_fill((mask == 0) & (input_ids < 0), 0), "attention_mask": mask}
    if labels is not None:
        batch["predicted"] = ((labels != IGNORED) & mask.bool()).to(mask.dtype)
    if bool(mask[:, -1].all()) and not bool(mask.all()):
        order = mask.argsort(dim=1, descending=True, stable=True)
        batch = {name: part.gather(1, order) for name, part in batch.items()}
    return batch


def _joined(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Batches of several lengths as one."""
    if not batches:
        raise ValueError("input_ids: there are no batches")
    longest = max(batch["input_ids"].shape[1] for batch in batches)
    keys = {key for batch in batches for key in batch}

    def part(batch: dict[str, Tensor], key: str) -> Tensor:
        found = batch["attention_mask"] if key == "predicted" and key not in batch else batch[key]
        return F.pad(found, (0, longest - found.shape[1]))

    return {key: torch.cat([part(batch, key) for batch in batches]) for key in sorted(keys)}


def _check(input_ids: Tensor, mask: Tensor, labels: Tensor | None) -> None:
    """Check that a mask is ones with zeros on one side, at least two ones: the model does not get the mask, and the
    first token is not predicted."""
    if input_ids.ndim != 2 or mask.shape != input_ids.shape:
        raise ValueError(
            f"input_ids, attention_mask: expected two tensors [b, T], got {list(input_ids.shape)} and "
            f"{list(mask.shape)}"
        )
    if labels is not None and labels.shape != input_ids.shape:
        raise ValueError(f"labels: expected the shape of input_ids, {list(input_ids.shape)}, got {list(labels.shape)}")
    seen = mask.bool()
    if labels is not None:
        _check_labels(input_ids, labels, seen)
    starts = (
        (seen[:, 1:] & ~seen[:, :-1]).any(1) if not bool(seen[:, -1].all()) else (seen[:, :-1] & ~seen[:, 1:]).any(1)
    )
    gaps = starts | (mask != seen).any(1)
    if gaps.any():
        raise ValueError(
            f"attention_mask: row {int(gaps.nonzero()[0])} is not ones with zeros on one side; pad all sequences "
            'on the right, or all on the left, for example tokenizer.padding_side = "right"'
        )
    short = seen.sum(1) < 2
    if short.any():
        raise ValueError(
            f"input_ids: sequence {int(short.nonzero()[0])} has fewer than two tokens, so that nothing is predicted in "
            "it; leave it out"
        )


def _check_labels(input_ids: Tensor, labels: Tensor, seen: Tensor) -> None:
    """Labels only select which tokens are predicted; no other tokens can be targets."""
    other = seen & (labels != IGNORED) & (labels != input_ids)
    if other.any():
        row, place = (int(index) for index in other.nonzero()[0])
        raise ValueError(
            f"labels: expected -100 or the token at each place, got {int(labels[row, place])} at place {place} of "
            f"sequence {row}, where the token is {int(input_ids[row, place])}; pass labels that are not shifted"
        )


class _NextTokens(nn.Module):
    """The logits of the next tokens, zero where none is predicted. Padding comes last, so that a causal model needs no
    mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, predicted: Tensor | None = None) -> Tensor:
        counted = attention_mask if predicted is None else predicted
        return self.logits(input_ids)[:, :-1].masked_fill(counted[:, 1:, None] == 0, 0)  # 0 · (−∞) would be NaN

    def logits(self, input_ids: Tensor) -> Tensor:
        """[b, T, vocabulary]."""
        out = self.model(input_ids)
        return getattr(out, "logits", out)


class _Answers(_NextTokens):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, predicted: Tensor | None = None) -> Tensor:
        return super().forward(input_ids, attention_mask, predicted).transpose(1, 2)


class _TokenLogProbabilities(_NextTokens):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, predicted: Tensor | None = None) -> Tensor:
        counted = attention_mask if predicted is None else predicted
        following = input_ids[:, 1:].masked_fill(counted[:, 1:] == 0, IGNORED)
        following = F.pad(following, (0, 1), value=IGNORED)  # the last token predicts none
        logits = self.logits(input_ids)
        losses = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED, reduction="none")
        return -losses.view_as(following)[:, :-1]


class _LogProbability(_TokenLogProbabilities):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, predicted: Tensor | None = None) -> Tensor:
        tokens = super().forward(input_ids, attention_mask, predicted)
        return tokens.sum(1, keepdim=True, dtype=torch.float64 if tokens.device.type == "cpu" else None)


def _mean_over_tokens(log_probability: Tensor, lengths: Tensor) -> Tensor:
    return -(log_probability[:, 0] / lengths).mean()


def _mean_over_all_tokens(log_probabilities: Tensor, lengths: Tensor) -> Tensor:
    return -(log_probabilities.sum(1) / lengths).mean()


def _token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
