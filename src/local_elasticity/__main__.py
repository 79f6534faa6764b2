"""The command, also as python -m local_elasticity."""

import sys


def main() -> None:
    """Run the command; one line says what to install where its extra is missing."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        sys.stderr.write(f"error: {error.name} is not installed; pip install 'local-elasticity[cli]'\n")
        sys.exit(2)
    from local_elasticity.cli import main as run

    run()


if __name__ == "__main__":
    main()
