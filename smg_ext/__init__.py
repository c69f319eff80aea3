"""Native code of SMG, one concern a module. Imported by `smg._ext` and by nothing else."""

__all__: list[str] = []
