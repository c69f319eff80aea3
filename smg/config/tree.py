"""The one configuration tree. A field is a line here and nothing else: flag, environment name, TOML key and reference come from it.

`Meta.description` is the help text; `extra["flag"]` names the flags where they are not `--` + the field's name; `extra["choices"]` names a
registry whose names are allowed (`smg.config.choices`); `extra["secret"]` keeps the value out of what is printed. Units are in the names.
Read by `smg.config.load`, checked as a whole by `smg.config.check`.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = [
    "Admission",
    "Config",
    "Discovery",
    "Engines",
    "Health",
    "Logging",
    "Metrics",
    "Model",
    "PriorityScheduler",
    "Resilience",
    "Routing",
    "Server",
    "State",
    "Tenants",
    "Tls",
]


class Server(Struct, frozen=True, kw_only=True):
    """The HTTP side."""

    host: Annotated[str, Meta(description="address to listen on")] = "0.0.0.0"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one and logs it")] = 30000
    workers: Annotated[int, Meta(ge=0, le=256, description="data worker processes; 0 = one a core")] = 0
    backlog: Annotated[int, Meta(ge=1, description="connections the kernel may queue")] = 2048
    max_payload_bytes: Annotated[int, Meta(ge=1, description="longest request body", extra={"flag": ["--max-payload-size"]})] = 536870912
    request_timeout_s: Annotated[float, Meta(gt=0, description="deadline of a request", extra={"flag": ["--request-timeout-secs"]})] = (
        1800.0
    )
    shutdown_grace_period_s: Annotated[
        float, Meta(ge=0, description="time for streams to end after SIGTERM", extra={"flag": ["--shutdown-grace-period-secs"]})
    ] = 180.0
    http_front: Annotated[
        Literal["native", "granian"],
        Meta(description="who speaks HTTP: native = HTTP/1.1, bounded; granian = also HTTP/2 and WebSocket"),
    ] = "native"
    max_client_buffer_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            description="bytes of a stream that a client may leave unread before it is given up",
            extra={"flag": ["--max-client-buffer"]},
        ),
    ] = 1048576
    keepalive_interval_s: Annotated[
        float,
        Meta(gt=0, description="silence after which a stream gets an SSE comment", extra={"flag": ["--keepalive-interval-secs"]}),
    ] = 10.0
    request_id_headers: Annotated[tuple[str, ...], Meta(description="request headers that may carry the request id, first match wins")] = (
        "x-request-id",
        "x-correlation-id",
        "x-trace-id",
        "request-id",
    )
    cors_allowed_origins: Annotated[tuple[str, ...], Meta(description="origins that browsers may call from; * = any")] = ()
    api_key: Annotated[
        tuple[str, ...],
        Meta(description="key that clients must send, as a Bearer token or as x-api-key; repeatable", extra={"secret": True}),
    ] = ()
    control_plane_api_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="ID:NAME:ROLE:KEY, a key for /workers; with any, the other keys do not open it; ROLE admin or user, who may not; "
            "repeatable",
            extra={"secret": True},
        ),
    ] = ()
    api_key_file: Annotated[str, Meta(description="file with one API key a line, such as a systemd credential")] = ""


class Tls(Struct, frozen=True, kw_only=True):
    """TLS towards clients, and towards engines."""

    cert_path: Annotated[str, Meta(description="server certificate, PEM", extra={"flag": ["--tls-cert-path"]})] = ""
    key_path: Annotated[str, Meta(description="server key, PEM, PKCS#8", extra={"flag": ["--tls-key-path"]})] = ""
    ca_cert_path: Annotated[str, Meta(description="authorities that sign engines' certificates", extra={"flag": ["--ca-cert-paths"]})] = ""
    client_cert_path: Annotated[str, Meta(description="client certificate shown to engines")] = ""
    client_key_path: Annotated[str, Meta(description="key of that certificate")] = ""


class Admission(Struct, frozen=True, kw_only=True):
    """How many requests run at once, over all data workers, and how the others wait."""

    max_concurrent_requests: Annotated[int, Meta(ge=-1, le=65535, description="requests that may run at once; 0 or -1 = any number")] = -1
    queue_size: Annotated[int, Meta(ge=0, le=65535, description="requests that may wait; one more is refused with 429")] = 100
    queue_timeout_s: Annotated[
        float, Meta(gt=0, description="time after which who waits is refused with 408", extra={"flag": ["--queue-timeout-secs"]})
    ] = 60.0
    rate_limit_tokens_per_second: Annotated[
        int,
        Meta(ge=-1, le=10**6, description="requests that may begin in a second, after a burst of max_concurrent_requests; 0 or -1 = any"),
    ] = -1


class PriorityScheduler(Struct, frozen=True, kw_only=True):
    """Priority classes, in the place of one queue: system, interactive, default, bulk, by the header x-smg-priority."""

    enabled: Annotated[bool, Meta(description="tell classes apart", extra={"flag": ["--priority-scheduler-enabled"]})] = False
    default_max_class: Annotated[
        Literal["system", "interactive", "default", "bulk"],
        Meta(
            description="highest class of tenants not in the file",
            extra={"flag": ["--priority-scheduler-default-max-class"]},
        ),
    ] = "default"
    config: Annotated[
        str, Meta(description="YAML file with classes and tenant_policies", extra={"flag": ["--priority-scheduler-config"]})
    ] = ""
    tenant_metric_top_n: Annotated[
        int, Meta(ge=0, le=1024, description="tenants that metrics name", extra={"flag": ["--priority-scheduler-tenant-metric-top-n"]})
    ] = 32


class Tenants(Struct, frozen=True, kw_only=True):
    """Who a request is counted for, and how much they may use."""

    api_key: Annotated[
        tuple[str, ...],
        Meta(description="TENANT:KEY, a key of a tenant's clients; repeatable", extra={"flag": ["--tenant-api-key"], "secret": True}),
    ] = ()
    trust_header: Annotated[
        bool,
        Meta(description="let a header name the tenant, where the key does not", extra={"flag": ["--trust-tenant-header"]}),
    ] = False
    header_name: Annotated[str, Meta(description="header that names the tenant", extra={"flag": ["--tenant-header-name"]})] = (
        "x-smg-tenant-id"
    )
    rate_limit_enabled: Annotated[
        bool, Meta(description="limit requests and tokens by tenant", extra={"flag": ["--tenant-rate-limit-enabled"]})
    ] = False
    rate_limit_config: Annotated[
        str, Meta(description="YAML file with default_policy and tenants", extra={"flag": ["--tenant-rate-limit-config"]})
    ] = ""
    rate_limit_url: Annotated[
        str,
        Meta(
            description="Redis or Valkey that keeps these limits for several nodes: redis://HOST:PORT/DB, rediss://…, unix:///PATH",
            extra={"flag": ["--rate-limit-url"], "secret": True},
        ),
    ] = ""
    rate_limit_fail: Annotated[
        Literal["open", "closed"],
        Meta(
            description="while that server does not answer: open = each node limits for itself, closed = 503",
            extra={"flag": ["--rate-limit-fail"]},
        ),
    ] = "open"


class Engines(Struct, frozen=True, kw_only=True):
    """Which engines there are and how they are called."""

    worker_urls: Annotated[
        tuple[str, ...],
        Meta(description="engine addresses: grpc://HOST:PORT, grpcs://HOST:PORT, unix:///PATH, http://HOST:PORT, https://HOST; repeatable"),
    ] = ()
    worker_url_allow: Annotated[
        tuple[str, ...],
        Meta(
            description="SCHEME://, NETWORK or SCHEME://NETWORK where engines may be that the workers API adds; repeatable; none = "
            "anywhere but at link-local addresses, which are allowed only by a network inside theirs"
        ),
    ] = ()
    pd_disaggregation: Annotated[
        bool, Meta(description="prefill and decode are computed by different engines; --prefill and --decode say so too")
    ] = False
    prefill: Annotated[
        tuple[str, ...],
        Meta(description="prefill engine, with the port where SGLang hands over its KV cache behind it: ADDRESS [PORT]; repeatable"),
    ] = ()
    decode: Annotated[tuple[str, ...], Meta(description="decode engine; repeatable")] = ()
    backend: Annotated[
        str, Meta(description="engine protocol; auto asks each engine", extra={"flag": ["--backend", "--runtime"], "choices": "engine"})
    ] = "auto"
    data_plane: Annotated[
        Literal["native", "aio"], Meta(description="how tokens are read from engines: native = without Python objects, aio = grpc.aio")
    ] = "native"
    connect_timeout_s: Annotated[
        float, Meta(gt=0, description="deadline of connecting to an engine", extra={"flag": ["--connect-timeout-secs"]})
    ] = 5.0
    stream_idle_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            description="silence in the middle of a stream after which its engine is given up, the first token not waited for; 0 = never",
            extra={"flag": ["--stream-idle-timeout-secs"]},
        ),
    ] = 120.0
    max_message_bytes: Annotated[int, Meta(ge=4194304, description="longest gRPC message, either way")] = 536870912
    drain_settle_s: Annotated[
        float,
        Meta(
            ge=0,
            description="longest time that a removed engine stays listed as draining while requests run there",
            extra={"flag": ["--drain-settle-secs"]},
        ),
    ] = 1800.0
    dp_aware: Annotated[bool, Meta(description="route to each data-parallel rank of an engine by itself")] = False
    max_connections: Annotated[
        int,
        Meta(ge=1, description="connections of a data worker to one HTTP engine", extra={"flag": ["--max-engine-connections"]}),
    ] = 1024
    forward_headers: Annotated[
        tuple[str, ...],
        Meta(description="further request headers that HTTP engines get; authorization = the client's own key in place of ours"),
    ] = ()


class Discovery(Struct, frozen=True, kw_only=True):
    """Engines that are found and not listed: in a watched file, in Kubernetes."""

    workers_file: Annotated[str, Meta(description="TOML file of engines, one [[workers]] each, that is read again when it changes")] = ""
    service_discovery: Annotated[bool, Meta(description="take ready Kubernetes pods with these labels for engines")] = False
    selector: Annotated[tuple[str, ...], Meta(description="KEY=VALUE, a label of engines' pods; repeatable, all must match")] = ()
    prefill_selector: Annotated[tuple[str, ...], Meta(description="KEY=VALUE, a label of prefill engines' pods; repeatable")] = ()
    decode_selector: Annotated[tuple[str, ...], Meta(description="KEY=VALUE, a label of decode engines' pods; repeatable")] = ()
    service_discovery_port: Annotated[
        int, Meta(ge=1, le=65535, description="port of engines in pods without the annotation smg.ai/worker-ports")
    ] = 80
    service_discovery_namespace: Annotated[str, Meta(description="namespace of the pods; empty = all")] = ""
    service_discovery_scheme: Annotated[Literal["grpc", "grpcs", "http", "https"], Meta(description="how engines in pods are reached")] = (
        "grpc"
    )
    model_id_from: Annotated[
        str, Meta(description="what names a pod's model: namespace, label:KEY or annotation:KEY; empty = the engine")
    ] = ""
    kubernetes_api: Annotated[str, Meta(description="http(s)://HOST[:PORT] of the API server; empty = as pods are told")] = ""
    kubernetes_account_dir: Annotated[str, Meta(description="folder with the token and ca.crt that the API server is asked with")] = (
        "/var/run/secrets/kubernetes.io/serviceaccount"
    )


class Routing(Struct, frozen=True, kw_only=True):
    """How an engine is chosen."""

    policy: Annotated[str, Meta(description="routing policy", extra={"choices": "policy"})] = "cache_aware"
    prefill_policy: Annotated[str, Meta(description="policy among prefill engines; empty: policy", extra={"choices": "policy"})] = ""
    decode_policy: Annotated[str, Meta(description="policy among decode engines; empty: policy", extra={"choices": "policy"})] = ""
    enable_igw: Annotated[bool, Meta(description="refuse requests that name no model, also while only one is served")] = False
    model_policy: Annotated[tuple[str, ...], Meta(description="MODEL=POLICY, the policy of one model; repeatable")] = ()
    dp_minimum_tokens_scheduler: Annotated[
        bool, Meta(description="with dp_aware: of the chosen engine's ranks take the one with the fewest tokens, whatever the policy")
    ] = False
    load_monitor_interval_s: Annotated[
        float,
        Meta(
            gt=0, le=86400, description="time between two questions to an engine for its load", extra={"flag": ["--load-monitor-interval"]}
        ),
    ] = 10.0
    request_cost_tokens: Annotated[
        int, Meta(ge=0, le=1 << 24, description="what a request in flight weighs, in prompt tokens to compute")
    ] = 64
    least_load_mean_prefill_tokens: Annotated[
        int, Meta(ge=0, le=1 << 24, description="prompt tokens of a waiting request of others, when its engine does not tell them")
    ] = 1024
    least_load_kv_pressure_weight: Annotated[
        float,
        Meta(ge=0, le=3600, description="seconds that an engine with a half full KV cache weighs more than one with an empty one; 0 = off"),
    ] = 0.15
    least_load_default_throughput: Annotated[
        float, Meta(gt=0, le=1e8, description="prompt tokens that an engine is taken to compute in a second, for that weight")
    ] = 2000.0
    overload_token_usage_threshold: Annotated[
        float, Meta(gt=0, le=1, description="part of an engine's KV cache in use above which others are preferred; 1 = off")
    ] = 1.0
    max_tree_size: Annotated[
        int, Meta(ge=16384, le=1 << 36, description="prompt tokens that the prefix index has room for, from the start on; 0.6 bytes each")
    ] = 67108864
    block_size: Annotated[
        int, Meta(ge=1, le=65536, description="prompt tokens that are known or not as one, until an engine says how long its blocks are")
    ] = 16
    prefix_token_count: Annotated[int, Meta(ge=1, description="prefix_hash: tokens at the beginning of a prompt that are hashed")] = 256
    prefix_hash_load_factor: Annotated[
        float, Meta(ge=1, description="prefix_hash: times its share of the work that an engine may have")
    ] = 1.25
    consistent_hashing_slack_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="consistent_hashing: prompt tokens that a key's engine may have queued over 1.25 times the mean before the next on "
            "the ring gets its requests; 0 = its own engine gets them all",
        ),
    ] = 2048
    assignment_mode: Annotated[
        Literal["random", "min_load", "min_group"],
        Meta(description="manual: who gets a new key: any engine, the one with the least load, or with the fewest keys"),
    ] = "random"
    max_idle_s: Annotated[
        float, Meta(ge=16, description="manual: time without use after which a key is forgotten", extra={"flag": ["--max-idle-secs"]})
    ] = 14400.0
    max_sticky_keys: Annotated[int, Meta(ge=64, le=1 << 28, description="manual: keys that are remembered; 8 bytes each")] = 131072
    routing_key_override: Annotated[bool, Meta(description="route requests with a routing key as manual does, whatever the policy")] = False
    balance_abs_threshold: Annotated[int, Meta(ge=0, description="bucket: tokens that an engine may have queued more than another")] = 64
    balance_rel_threshold: Annotated[float, Meta(ge=1, description="bucket: times the tokens that an engine may have")] = 1.5
    bucket_adjust_interval_s: Annotated[
        float, Meta(gt=0, description="bucket: time between new boundaries", extra={"flag": ["--bucket-adjust-interval-secs"]})
    ] = 5.0


class Health(Struct, frozen=True, kw_only=True):
    """How engines are watched."""

    failure_threshold: Annotated[
        int, Meta(ge=1, description="failed checks in a row until NotReady", extra={"flag": ["--health-failure-threshold"]})
    ] = 3
    success_threshold: Annotated[
        int, Meta(ge=1, description="good checks in a row until Ready", extra={"flag": ["--health-success-threshold"]})
    ] = 2
    check_endpoint: Annotated[
        str, Meta(description="path that HTTP engines are asked for", extra={"flag": ["--health-check-endpoint"]})
    ] = "/health"
    check_timeout_s: Annotated[float, Meta(gt=0, description="deadline of a check", extra={"flag": ["--health-check-timeout-secs"]})] = 5.0
    check_interval_s: Annotated[
        float, Meta(gt=0, description="time between checks of a ready engine", extra={"flag": ["--health-check-interval-secs"]})
    ] = 60.0
    startup_timeout_s: Annotated[
        float,
        Meta(gt=0, description="time until an engine that never was ready is Failed", extra={"flag": ["--worker-startup-timeout-secs"]}),
    ] = 1800.0
    remove_unhealthy: Annotated[
        bool, Meta(description="take an engine that is Failed away for good", extra={"flag": ["--remove-unhealthy-workers"]})
    ] = False
    disable_check: Annotated[bool, Meta(description="take every engine for ready", extra={"flag": ["--disable-health-check"]})] = False


class Resilience(Struct, frozen=True, kw_only=True):
    """What is done about engines that fail requests."""

    cb_failure_threshold: Annotated[
        int, Meta(ge=1, le=1000, description="failed requests in a row that open an engine's circuit breaker")
    ] = 10
    cb_success_threshold: Annotated[
        int, Meta(ge=1, le=63, description="requests that must go well to close it again; as many are tried at a time")
    ] = 3
    cb_timeout_s: Annotated[
        float, Meta(gt=0, description="time without requests once it has opened", extra={"flag": ["--cb-timeout-duration-secs"]})
    ] = 60.0
    cb_window_s: Annotated[
        float, Meta(gt=0, description="time within which the failures must come", extra={"flag": ["--cb-window-duration-secs"]})
    ] = 120.0
    disable_circuit_breaker: Annotated[bool, Meta(description="send requests whatever became of those before")] = False
    retry_max_retries: Annotated[
        int, Meta(ge=1, le=100, description="engines that a request is sent to at most, until one answers; the first counts")
    ] = 5
    retry_initial_backoff_ms: Annotated[int, Meta(ge=1, description="pause before an engine that failed the request gets it again")] = 50
    retry_max_backoff_ms: Annotated[int, Meta(ge=1, description="longest such pause")] = 30000
    retry_backoff_multiplier: Annotated[float, Meta(ge=1, description="times the pause before")] = 1.5
    retry_jitter_factor: Annotated[float, Meta(ge=0, le=1, description="part of a pause by which it is longer or shorter, at random")] = 0.2
    disable_retries: Annotated[bool, Meta(description="send each request once")] = False


class Model(Struct, frozen=True, kw_only=True):
    """What is known of the model besides what engines say."""

    model_path: Annotated[str, Meta(description="folder with tokenizer and templates", extra={"flag": ["--model-path", "--model"]})] = ""
    tokenizer_path: Annotated[str, Meta(description="tokenizer folder or file, before --model-path")] = ""
    chat_template: Annotated[str, Meta(description="file with a chat template, in place of the model's own")] = ""
    trust_request_chat_template: Annotated[bool, Meta(description="let requests bring chat templates, run here within bounds")] = False
    model_alias: Annotated[tuple[str, ...], Meta(description="ALIAS=MODEL, a further name for a model; repeatable")] = ()
    reasoning_parser: Annotated[
        str, Meta(description="reasoning parser; auto-detected when empty, none = off", extra={"choices": "reasoning_parser"})
    ] = ""
    tool_call_parser: Annotated[
        str, Meta(description="tool-call parser; auto-detected when empty, none = off", extra={"choices": "tool_parser"})
    ] = ""
    structural_tags: Annotated[
        bool, Meta(description="hold forced tool calls to the family's own format; off where engines' grammar backend refuses such tags")
    ] = True
    allow_special_tokens_in_text: Annotated[bool, Meta(description="let text from clients become control tokens")] = False
    tokenizer_cache_enable_l0: Annotated[bool, Meta(description="keep prompts of whole requests that come again")] = True
    tokenizer_cache_l0_max_entries: Annotated[int, Meta(ge=1, description="most requests kept in each data worker")] = 10000
    tokenizer_cache_l0_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            description="most memory for requests kept in each data worker",
            extra={"flag": ["--tokenizer-cache-l0-max-memory"]},
        ),
    ] = 16777216
    tokenizer_cache_enable_l1: Annotated[bool, Meta(description="keep token ids of what stands between control tokens")] = True
    tokenizer_cache_l1_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            description="most memory for these ids in each data worker and model",
            extra={"flag": ["--tokenizer-cache-l1-max-memory"]},
        ),
    ] = 16777216


class Logging(Struct, frozen=True, kw_only=True):
    """What is written down."""

    log_level: Annotated[Literal["debug", "info", "warn", "error"], Meta(description="lowest level that is logged")] = "info"
    log_dir: Annotated[str, Meta(description="folder for log files, besides standard error")] = ""
    log_json: Annotated[bool, Meta(description="one JSON object a line")] = False


class Metrics(Struct, frozen=True, kw_only=True):
    """The listener of Prometheus and probes, and one for probes alone."""

    prometheus_host: Annotated[str, Meta(description="address of the metrics listener")] = "0.0.0.0"
    prometheus_port: Annotated[int, Meta(ge=0, le=65535, description="port of the metrics listener; 0 takes a free one")] = 29000
    health_check_port: Annotated[
        int, Meta(ge=0, le=65535, description="port for /health, /liveness and /readiness alone, beside the others; 0 = none")
    ] = 0


class State(Struct, frozen=True, kw_only=True):
    """Where files are kept."""

    state_dir: Annotated[str, Meta(description="what outlives a restart; default $STATE_DIRECTORY or ~/.local/state/smg")] = ""
    runtime_dir: Annotated[str, Meta(description="folder for sockets; default $RUNTIME_DIRECTORY, else a temporary one")] = ""


class Config(Struct, frozen=True, kw_only=True):
    """The whole."""

    server: Server = Server()
    tls: Tls = Tls()
    admission: Admission = Admission()
    priority_scheduler: PriorityScheduler = PriorityScheduler()
    tenants: Tenants = Tenants()
    engines: Engines = Engines()
    discovery: Discovery = Discovery()
    routing: Routing = Routing()
    health: Health = Health()
    resilience: Resilience = Resilience()
    model: Model = Model()
    logging: Logging = Logging()
    metrics: Metrics = Metrics()
    state: State = State()
