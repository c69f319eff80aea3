"""The flags of the Rust original's `launch`, all front ends taken together. One that the tree lacks is refused by name, not as a slip."""

__all__ = ["ORIGINAL_FLAGS"]

NAMES = """
api-key assignment-mode backend balance-abs-threshold balance-rel-threshold balance-token-usage-threshold block-size
bucket-adjust-interval-secs ca-cert-paths cache-threshold cb-failure-threshold cb-success-threshold cb-timeout-duration-secs
cb-window-duration-secs chat-template client-cert-path client-key-path control-plane-api-keys control-plane-audit-enabled
cors-allowed-origins decode decode-policy decode-selector disable-audit-logging disable-circuit-breaker disable-health-check
disable-retries disable-tokenizer-autoload dp-aware dp-minimum-tokens-scheduler drain-settle-secs enable-igw enable-mesh enable-trace
enable-wasm encode encode-policy encode-selector engine-metrics epd-disaggregation eviction-interval eviction-interval-secs
health-check-endpoint health-check-interval-secs health-check-port health-check-timeout-secs health-failure-threshold
health-success-threshold history-backend host jwt-audience jwt-issuer jwt-jwks-uri jwt-role-claim jwt-role-mapping
least-load-default-throughput least-load-kv-pressure-weight least-load-mean-prefill-tokens load-monitor-interval log-dir log-json
log-level max-concurrent-requests max-idle-secs max-payload-size max-tree-size mcp-config-path mesh-advertise-host mesh-host
mesh-peer-urls mesh-port mesh-server-name model model-alias model-id-from model-path multimodal-shm-min-bytes
multimodal-tensor-transport oracle-connect-descriptor oracle-dsn oracle-external-auth oracle-password oracle-pool-max oracle-pool-min
oracle-pool-timeout-secs oracle-tns-alias oracle-user oracle-username oracle-wallet-path otlp-traces-endpoint
overload-token-usage-threshold pd-disaggregation policy port postgres-db-url postgres-pool-max postgres-pool-max-size prefill
prefill-policy prefill-selector prefix-hash-load-factor prefix-token-count priority-scheduler-config
priority-scheduler-default-max-class priority-scheduler-enabled priority-scheduler-tenant-metric-top-n prometheus-duration-buckets
prometheus-host prometheus-port queue-size queue-timeout-secs rate-limit-tokens-per-second reasoning-parser redis-pool-max
redis-pool-max-size redis-retention-days redis-url remove-unhealthy-workers request-id-headers request-timeout-secs
retry-backoff-multiplier retry-initial-backoff-ms retry-jitter-factor retry-max-backoff-ms retry-max-retries router-disable-arg-fallback
router-selector routing-key-override runtime runtime-worker-threads schema-config selector service-discovery service-discovery-namespace
service-discovery-port shutdown-grace-period-secs storage-context-headers storage-hook-wasm-path tenant-api-key tenant-header-name
tenant-rate-limit-config tenant-rate-limit-enabled tls-cert-path tls-key-path tokenizer-cache-enable-l0 tokenizer-cache-enable-l1
tokenizer-cache-l0-max-entries tokenizer-cache-l1-max-memory tokenizer-path tool-call-parser trust-tenant-header webrtc-bind-addr
webrtc-stun-server worker-startup-check-interval worker-startup-delay worker-startup-timeout-secs worker-urls
"""

ORIGINAL_FLAGS = frozenset("--" + name for name in NAMES.split())
