"""Protobuf modules made from `proto/*.proto` at build time. Imported by `smg.engine` and `smg.sim` only."""

__all__: list[str] = []
