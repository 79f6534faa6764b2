"""A callback for Lightning (extra `lightning`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from local_elasticity.engine.problem import Problem
from local_elasticity.engine.update import DEFAULT_UPDATE, Update
from local_elasticity.training.callbacks import monitor_of
from local_elasticity.training.monitor import Monitor

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        "local_elasticity.training.lightning needs the extra 'lightning': pip install 'local-elasticity[lightning]'"
    ) from error


class MonitorCallback(Callback):  # type: ignore[misc]
    """Watches a Lightning run: `Trainer(callbacks=[MonitorCallback(sources, loss="cross_entropy", every=50)])`.

    Steps are the trainer's global steps: 0 is before training, n after n optimizer steps. The history is part of the
    trainer's checkpoints and continues when training resumes from one, or when the same trainer fits once more.

    Args:
        sources, options: as for `Monitor`; they are moved to the module's device. The trainer's own loggers are used
            unless `loggers=` names others.
        loss: for a module whose forward gives the outputs; or
        problem: a function from the LightningModule to a `Problem`.
        update: an update, or `le.FromOptimizer` itself for the step that the trainer's first optimizer would take.
    """

    def __init__(
        self,
        sources: Any,
        *,
        targets: Any = None,
        loss: Any = None,
        problem: Callable[[LightningModule], Problem] | None = None,
        update: Update | Callable[[Any], Update] = DEFAULT_UPDATE,
        **options: Any,
    ) -> None:
        self.sources, self.targets, self.options = sources, targets, options
        self.problem = problem or (lambda module: Problem.of(module, loss))
        self.update = update
        self.monitor: Monitor | None = None
        self._state: dict[str, Any] | None = None
        self._told = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state = self._state
        if state is None and self.monitor is not None and self._told == trainer.global_step:  # the trainer continues
            state = self.monitor.state_dict()
        self.monitor = monitor_of(
            self.problem(pl_module),
            (self.sources, self.targets),
            self.update,
            {"loggers": trainer.loggers, **self.options},
            device=pl_module.device,
            optimizer=trainer.optimizers[0],
            last_step=trainer.estimated_stepping_batches,
        )
        if state is not None:
            self.monitor.load_state_dict(state)
        elif trainer.global_step:
            self.monitor.resume(trainer.global_step)
        self._state, self._told = None, trainer.global_step or -1
        self._tell(trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        self._tell(trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor is not None:
            self.monitor.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.monitor is None else {"monitor": self.monitor.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict.get("monitor")

    def _tell(self, step: int) -> None:
        """Batches that only accumulate gradients do not count."""
        if step > self._told and self.monitor is not None:
            self._told = step
            self.monitor.step(step)
