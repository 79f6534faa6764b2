"""One page that shows results of any kind, alone or beside each other."""

from local_elasticity.explorable.write import write_report

__all__ = ["write_report"]
