"""A callback for the Hugging Face Trainer (extra `transformers`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from local_elasticity.engine.guard import raise_of_handler
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.update import DEFAULT_UPDATE, Update
from local_elasticity.training.callbacks import monitor_of
from local_elasticity.training.distributed import first
from local_elasticity.training.failures import first_line, tell
from local_elasticity.training.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "local_elasticity.training.transformers needs the extra 'transformers': "
        "pip install 'local-elasticity[transformers]'"
    ) from error

logger = logging.getLogger("local_elasticity")

STATE = "local_elasticity.pt"
"""The monitor's file in a checkpoint folder."""


class MonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Watches a run of the Hugging Face Trainer: `Trainer(..., callbacks=[MonitorCallback(sources, problem=…)])`.

    Steps are the trainer's global steps: 0 is before training, n after n optimizer steps. The state goes into every
    checkpoint folder and is found there when training resumes. A callback does not know from which folder training
    resumes: if it is not one of `output_dir`, name it in `TrainingArguments(resume_from_checkpoint=…)` as well.

    Args:
        sources, options: as for `Monitor`; they are moved to the model's device.
        problem: a function from the model to a `Problem`: `sequence_problem` or `token_problem` for a language model,
            or `lambda model: le.Problem.of(model, "cross_entropy", output=lambda out: out.logits)` for a classifier.
        update: an update, or `le.FromOptimizer` itself for the step that the trainer's optimizer would take.
    """

    def __init__(
        self,
        sources: Any,
        *,
        problem: Callable[[Any], Problem],
        targets: Any = None,
        update: Update | Callable[[Any], Update] = DEFAULT_UPDATE,
        **options: Any,
    ) -> None:
        self.sources, self.targets, self.problem, self.options = sources, targets, problem, options
        self.update = update
        self.monitor: Monitor | None = None
        self._lost = False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        self.monitor = monitor_of(
            self.problem(model),
            (self.sources, self.targets),
            self.update,
            self.options,
            device=next(model.parameters()).device,
            optimizer=optimizer,
            last_step=state.max_steps,
        )
        if not state.global_step:
            self.monitor.step(0)
        elif file := _saved(args, state):
            self.monitor.load_state_dict(torch.load(file, weights_only=True))
        else:
            self.monitor.resume(state.global_step)
            self._tell_if_lost(args, state)

    def _tell_if_lost(self, args: Any, state: Any) -> None:
        if self.monitor is not None and not len(self.monitor.history):
            logger.warning(
                "local elasticity: no %s in %s, so that the history begins after step %d; name the folder that "
                "training resumes from in TrainingArguments(resume_from_checkpoint=...)",
                STATE,
                _folder(args, state),
                state.global_step,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.step(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = _folder(args, state)
        if self.monitor is not None and first() and folder.exists():
            self._save(folder / STATE)

    def _save(self, file: Path) -> None:
        assert self.monitor is not None
        try:
            torch.save(self.monitor.state_dict(), file)
        except (OSError, RuntimeError) as error:  # torch raises a RuntimeError if the disk is full
            raise_of_handler(error)
            if not self._lost:
                self._lost = True
                tell(f"monitor: {file} cannot be written ({first_line(error)}); training continues", error)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.close()


def _saved(args: Any, state: Any) -> Path | None:
    """The monitor's file in the folder that training resumes from, if that is where it can be looked for."""
    named = args.resume_from_checkpoint
    folders = [Path(named)] if isinstance(named, str) else []
    return next((at / STATE for at in [*folders, _folder(args, state)] if (at / STATE).exists()), None)


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
