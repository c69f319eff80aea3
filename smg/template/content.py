"""Which form of message content a template understands: one string, a list of parts, or both; for each role, as templates treat roles
differently.

In: a compiled template. Out: `Formats`, which `messages.py` follows. Found by rendering small conversations and looking where a probe text
comes out; where the template refuses every probe, by the flow of `content` through its syntax tree. Words in comments or literals never
count
(known-bugs B75, B82).
"""

import re
import secrets
from typing import Any, Literal, TypeAlias

from jinja2 import nodes
from msgspec import Struct

from smg.errors import TemplateRefused
from smg.template.environment import CompiledTemplate
from smg.types.json import Json, JsonObject

__all__ = ["Format", "Formats", "iterates_content", "probe_formats"]

Format: TypeAlias = Literal["string", "parts", "both"]

PROBE_SECONDS = 0.5
# A part printed as Python or JSON rather than read.
PRINTED = re.compile(r"""['"]type['"]\s*:\s*['"]text['"]""")
CALL: JsonObject = {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {}}}
TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "probe", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


class Formats(Struct, frozen=True, kw_only=True):
    """The form of content that each role may have."""

    system: Format = "string"
    user: Format = "string"
    assistant: Format = "string"
    tool: Format = "string"

    def of(self, role: Json) -> Format:
        """Gives the format of a role's content; roles without their own count as the nearest that has."""
        match role:
            case "system" | "developer":
                return self.system
            case "assistant":
                return self.assistant
            case "tool" | "function":
                return self.tool
        return self.user


def probe_formats(template: CompiledTemplate, variables: JsonObject) -> Formats:
    """Finds the formats of a template; `variables` are its special tokens. Renders up to 16 small conversations."""
    fallback: Format = "both" if iterates_content(template.tree) else "string"
    found = {role: _probe(template, variables, role) or fallback for role in ("system", "user", "assistant", "tool")}
    return Formats(**found)


def _conversations(role: str, content: Json) -> list[list[JsonObject]]:
    """Small conversations with the content in one role; the first that renders decides."""
    user: JsonObject = {"role": "user", "content": "Hi."}
    probe: JsonObject = {"role": role, "content": content}
    match role:
        case "system":
            return [[probe, user]]
        case "assistant":
            return [[user, probe, user]]
        case "tool":
            call: JsonObject = {"role": "assistant", "content": "", "tool_calls": [CALL]}
            probe |= {"name": "probe", "tool_call_id": "call00001"}
            return [[user, call, probe], [user, call, probe, {"role": "assistant", "content": "So."}, user]]
    return [[probe], [{"role": "system", "content": "Be brief."}, probe]]


def _probe(template: CompiledTemplate, variables: JsonObject, role: str) -> Format | None:
    word = f"probe{secrets.token_hex(6)}"
    tools: Json = [TOOL] if role == "tool" else None
    string = any(word in text for text in _texts(template, variables, _conversations(role, word), tools))
    rendered = _texts(template, variables, _conversations(role, [{"type": "text", "text": word}]), tools)
    parts = any(word in text and not PRINTED.search(text) for text in rendered)
    if string and parts:
        return "both"
    return "string" if string else "parts" if parts else None


def _texts(template: CompiledTemplate, variables: JsonObject, conversations: list[list[JsonObject]], tools: Json) -> list[str]:
    texts = []
    for messages in conversations:
        values: dict[str, Any] = {**variables, "messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
        try:
            texts.append(template.render(values, seconds=PROBE_SECONDS))
        except TemplateRefused:
            continue
    return texts


def iterates_content(tree: nodes.Template) -> bool:
    """True when some loop goes over a message's `content`, directly or through variables and macro parameters."""
    carriers = _carriers(tree)
    return any(_carries(_unwrapped(loop.iter), carriers) for loop in tree.find_all(nodes.For))


def _unwrapped(node: nodes.Node) -> nodes.Node:
    """The iterable without plain filters around it."""
    while isinstance(node, nodes.Filter) and node.node is not None and node.name in ("list", "reverse", "selectattr"):
        node = node.node
    return node


def _carriers(tree: nodes.Template) -> set[str]:
    """The names that may hold content: found by following assignments and macro calls until nothing is added."""
    macros = {macro.name: [argument.name for argument in macro.args] for macro in tree.find_all(nodes.Macro)}
    names: set[str] = set()
    before = -1
    while before < len(names):
        before = len(names)
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and _carries(_unwrapped(assign.node), names):
                names.add(assign.target.name)
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name in macros:
                parameters = macros[call.node.name]
                names.update(name for name, value in zip(parameters, call.args, strict=False) if _carries(value, names))
                names.update(pair.key for pair in call.kwargs if pair.key in parameters and _carries(pair.value, names))
    return names


def _carries(node: nodes.Node, names: set[str]) -> bool:
    match node:
        case nodes.Name():
            return node.name in names
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem():
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        case nodes.CondExpr():
            return _carries(node.expr1, names) or (node.expr2 is not None and _carries(node.expr2, names))
        case nodes.Or() | nodes.And():
            return _carries(node.left, names) or _carries(node.right, names)
    return False
