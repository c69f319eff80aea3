"""Parsers of model output: text in, in any division; thoughts, text and tool calls out. `smg.pipeline` makes one a choice with `build`.

How the parts fit:

    build.py      names of families → a parser; the marks that the decoder must let through
    machine.py    the parser of most families: thinking, text, and sections of calls that a grammar's reader owns
    whole.py      parses one whole output, for /parse and `smg parse` (command.py)
    harmony.py, inkling.py, muse.py, functionary.py   families whose whole output has a format of its own
    reasoning/    families as data      tool/families.py   families as data      tool/grammar/   grammars as code
    one_call.py   holds a parser to one call
    matcher.py    finds marks in divided text    margin.py   white space beside marks    sink.py   collects pieces
    native.py     the same parsers in native code (`smg_ext`), made from the same families: those that run where nobody asks for these

Everything is a state machine over characters that looks at each once; what is held back is what may still become a mark. So the joined
pieces cannot depend on the division, and streaming gives what a whole text gives. Policies, the same in every mode and on every surface:

- White space. Newlines next to a mark are the format's: dropped at the outer ends of text and thoughts, kept between two texts. Spaces are
  the model's, but for families whose marks are prose (Granite 3.2). Without a mark nothing is dropped.
- A thinking block begins where the prompt opened one, or at its opening mark, wherever it stands outside a call; it may open again. It ends
  at its closing mark, at marks that the family says end it, at a tool call that has a name, or with the output: what was thought stays
  thought. A stray closing mark is dropped.
- A call begins when its whole name is known, not before. What fails before that is text, as it was written, marks included. When the
  output ends before that, what was written is text without its marks.
- A call whose output ends early keeps the arguments that came and gets no closing: what was cut never looks complete. A closing mark that
  is itself cut counts as whole where nothing else of the format begins like it. Elsewhere a partial mark at the end is text.
- Arguments in JSON are passed on as written, each character once; only control characters and needless backslashes inside strings are
  escaped. Missing, null and empty arguments are `{}`; arguments in a string are unwrapped when they are an object. Marks inside JSON
  strings are text.
- A call that is no JSON any more after its name has what is left as its arguments, up to its closing mark: it never looks complete. Of
  other keys in a call's object the first object stands in for arguments that are missing; the rest is dropped.
- Text that stands inside a call and is no part of its format is shown as text, as is what stands in a header's place and is none.
- `parallel_tool_calls: false`: the answer ends where a second call begins.
- Values without a type of their own get it from the schema; what fits no allowed type, or has none, is a string. HTML entities are text.
- Names that the request does not know are delivered where marks say that it is a call, and are text where only the shape does.
- Without tools no tool parser runs. A single tool that the request forces may come as bare arguments (`build(named=…)`).
- Names and ids are as the family writes them; where it writes no id the caller makes one.
- Closing marks outside a section are dropped; they are shown only after an opening mark that was shown.
"""

from smg.parser.base import Call, CallArguments, Parser, Piece, Text, Thought
from smg.parser.build import build, marks, schemas_of, wrote_thoughts
from smg.parser.detect import detect_reasoning, detect_tool, opens_thinking
from smg.parser.reasoning import REASONING
from smg.parser.tool import TOOLS, forced_tags
from smg.parser.whole import ParseCase, Parsed, ParsedCall, parse

__all__ = [
    "REASONING",
    "TOOLS",
    "Call",
    "CallArguments",
    "ParseCase",
    "Parsed",
    "ParsedCall",
    "Parser",
    "Piece",
    "Text",
    "Thought",
    "build",
    "detect_reasoning",
    "detect_tool",
    "forced_tags",
    "marks",
    "opens_thinking",
    "parse",
    "schemas_of",
    "wrote_thoughts",
]
