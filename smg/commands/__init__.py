"""One file a subcommand: `run(arguments) -> exit code`. Found by name in `smg.cli`, imported only when called."""

__all__: list[str] = []
