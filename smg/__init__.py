"""SMG: the serving layer between LLM clients and inference engines."""

__all__ = ["__version__"]

__version__ = "0.1.0"
