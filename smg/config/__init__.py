"""Configuration: one typed tree, filled from TOML files, environment and flags, in that order of precedence."""

__all__ = ["Config"]

from smg.config.tree import Config
