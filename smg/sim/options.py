"""Everything that can be set on a simulated engine: `command` makes flags of this one struct, `start_sim` takes its fields as keywords."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

__all__ = ["PROTOCOLS", "Role", "SimOptions"]

Role: TypeAlias = Literal["regular", "prefill", "decode"]

PROTOCOLS = ("vllm", "sglang", "trtllm", "mlx", "tokenspeed", "openai")


class SimOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of each field is its flag's help text."""

    protocol: Annotated[Literal["vllm", "sglang", "trtllm", "mlx", "tokenspeed", "openai"], Meta(description="protocol to speak")] = "vllm"
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")] = 0
    status_port: Annotated[
        int,
        Meta(
            ge=-1,
            le=65535,
            description="HTTP port of /counters and of KV transfers; 0 = free, -1 = none, but free with a role, and 8998 for a prefill "
            "engine of SGLang or TokenSpeed",
        ),
    ] = -1
    model: Annotated[str, Meta(description="model folder; empty = the embedded one")] = ""
    served_name: Annotated[str, Meta(description="model name that is told to clients; empty = sim-model, or the folder's name")] = ""
    context_length: Annotated[int, Meta(ge=0, description="longest prompt plus output in tokens; 0 = as the model says")] = 0
    seed: Annotated[int, Meta(ge=0, description="seed of everything random")] = 0
    role: Annotated[Role, Meta(description="part in disaggregated serving")] = "regular"
    owned_by: Annotated[
        Literal["sim", "vllm", "sglang"],
        Meta(description="maker that /v1/models names over HTTP; its way to have prefill and decode apart"),
    ] = "sim"
    kv_connector: Annotated[
        str, Meta(description="connector that vLLM's GetServerInfo tells; empty = NixlConnector if the role needs one")
    ] = ""
    kv_lease_s: Annotated[float, Meta(gt=0, description="time after which a prefill's unclaimed blocks are released")] = 30.0
    speed: Annotated[float, Meta(ge=0, description="factor on the engine's speed; 0 = as fast as possible")] = 1.0
    prefill_base_ms: Annotated[float, Meta(ge=0, description="time of a prefill step whatever its size")] = 4.0
    prefill_token_us: Annotated[float, Meta(ge=0, description="time of each uncached prompt token")] = 33.0
    step_base_ms: Annotated[float, Meta(ge=0, description="time of a decode step whatever its batch")] = 7.0
    step_sequence_us: Annotated[float, Meta(ge=0, description="time that each sequence adds to a decode step")] = 50.0
    step_token_us: Annotated[float, Meta(ge=0, description="time that each token of the batch's contexts adds to a decode step")] = 0.0
    step_overlap: Annotated[
        float, Meta(ge=0, le=1, description="part of a step's base that goes on while prompts are computed in the same step; 0 = added up")
    ] = 0.0
    dp_size: Annotated[int, Meta(ge=1, le=256, description="data-parallel ranks, each with a batch and a KV cache of its own")] = 1
    max_running: Annotated[int, Meta(ge=1, description="sequences in a batch")] = 256
    max_waiting: Annotated[int, Meta(ge=0, description="sequences in the queue, above which a request is refused; 0 = no limit")] = 0
    max_prefill_tokens: Annotated[
        int, Meta(ge=1, description="prompt tokens that one step computes at most, beside the answers' tokens; longer prompts are cut")
    ] = 8192
    kv_blocks: Annotated[int, Meta(ge=1, description="blocks of the KV cache")] = 8192
    block_size: Annotated[int, Meta(ge=1, description="tokens in a block")] = 16
    prefix_cache: Annotated[bool, Meta(description="use blocks again for prompts that begin alike")] = True
    kv_events: Annotated[bool, Meta(description="offer the KV event stream")] = True
    kv_replay: Annotated[
        int, Meta(ge=0, description="KV event batches kept for replay; 0 = as vLLM's servicer: new ones only, OUT_OF_RANGE for any number")
    ] = 10000
    kv_heartbeat_ms: Annotated[float, Meta(ge=0, description="time between heartbeats in the KV event stream; 0 = none")] = 0.0
    kv_drop_every: Annotated[int, Meta(ge=0, description="keep every Nth KV batch from live subscribers, so that they see a gap")] = 0
    stream_interval: Annotated[int, Meta(ge=1, description="tokens in a streamed message")] = 1
    output: Annotated[Literal["echo", "text", "ids", "tool"], Meta(description="what is generated")] = "echo"
    text: Annotated[str, Meta(description="the text, or the tool call's JSON arguments; @FILE reads it from a file")] = ""
    ids_file: Annotated[str, Meta(description="file of token ids, separated by white space or commas")] = ""
    tool: Annotated[str, Meta(description="name of the tool that is called")] = "get_weather"
    tool_format: Annotated[str, Meta(description="family whose notation the tool call is written in")] = "hermes"
    think: Annotated[str, Meta(description="text between thinking marks before the output")] = ""
    tokens: Annotated[int, Meta(ge=0, description="exact number of output tokens before EOS; 0 = as the output is long")] = 0
    fault: Annotated[str, Meta(description="fault to inject: late, hang, rst, goaway, die, error, end; as in error:UNAVAILABLE@3")] = ""
    fault_every: Annotated[int, Meta(ge=1, description="inject the fault in every Nth request")] = 1
    ttft_ms: Annotated[float, Meta(ge=0, description="time that is added before the first token")] = 0.0
    itl_ms: Annotated[float, Meta(ge=0, description="least time between tokens")] = 0.0
    health: Annotated[Literal["ok", "down", "flap"], Meta(description="what health checks say")] = "ok"
    health_flap_every: Annotated[int, Meta(ge=1, description="checks after which a flapping engine changes its mind")] = 3
    allow_scripts: Annotated[bool, Meta(description="obey [[sim: …]] markers in prompts")] = False

    @property
    def meets(self) -> bool:
        """True where prefill and decode engines work at once, and meet at the prefill engine's port."""
        return self.protocol in ("sglang", "tokenspeed") or (self.protocol == "openai" and self.owned_by == "sglang")
