"""The processes of a gateway: supervisor, control process, data workers, and the application that these serve. Nothing is imported here."""

__all__: list[str] = []
