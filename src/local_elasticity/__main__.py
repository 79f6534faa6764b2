"""python -m local_elasticity: the command."""

from local_elasticity.cli import main

if __name__ == "__main__":
    main()
