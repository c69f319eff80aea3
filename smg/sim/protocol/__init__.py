"""The engine protocols that a simulated engine can speak, one file each with the same names: `Servicer` and `add_to_server`."""

__all__: list[str] = []
