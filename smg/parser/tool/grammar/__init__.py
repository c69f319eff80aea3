"""Grammars of tool calls: each a reader of one section, a state machine over characters. See `smg.parser.tool.reader`."""

__all__: list[str] = []
