"""The API surfaces: each handler parses its wire form into a Job, and renders the pipeline's events in its own dialect."""

__all__: list[str] = []
