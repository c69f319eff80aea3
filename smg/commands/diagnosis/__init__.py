"""What `smg doctor` looks at, a file a subject: each gives findings, and none changes anything."""

__all__: list[str] = []
