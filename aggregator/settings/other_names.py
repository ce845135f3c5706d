"""What the settings of Kafka's clients, of vLLM and of TEI are called here, by the last part of their names."""

from __future__ import annotations

_SASL, _SSL = "kafka.sasl.", "kafka.ssl."
KAFKA_NAMES = {
    "brokers": "kafka.bootstrap_servers",
    "broker": "kafka.bootstrap_servers",
    "broker_list": "kafka.bootstrap_servers",
    "bootstrap": "kafka.bootstrap_servers",
    "bootstrap_server": "kafka.bootstrap_servers",
    "servers": "kafka.bootstrap_servers",
    "topic": "kafka.topics",
    "input_topic": "kafka.topics",
    "output_topic": "kafka.reply_topic",
    "group": "kafka.group_id",
    "consumer_group": "kafka.group_id",
    "session_timeout_ms": "kafka.client.session_timeout_s",
    "protocol": "kafka.security_protocol",
    "sasl_mechanism": f"{_SASL}mechanism",
    "sasl_username": f"{_SASL}username",
    "sasl_password": f"{_SASL}password",
    "sasl_plain_username": f"{_SASL}username",
    "sasl_plain_password": f"{_SASL}password",
    "sasl_jaas_config": f"give {_SASL}username and {_SASL}password_file",
    "ca_location": f"{_SSL}ca_file",
    "cafile": f"{_SSL}ca_file",
    "ssl_cafile": f"{_SSL}ca_file",
    "ssl_ca_location": f"{_SSL}ca_file",
    "certificate_location": f"{_SSL}cert_file",
    "key_location": f"{_SSL}key_file",
    "auto_offset_reset": "records before a group's first commit are always read: leave it out",
    "enable_auto_commit": "offsets are committed once their records are completed: leave it out",
    "max_poll_records": "it is a constant: leave it out",
}
"""Names of Kafka's clients."""

AGGREGATOR_NAMES = {
    **KAFKA_NAMES,
    "max_batch_tokens": "batching.token_budget",
    "max_num_batched_tokens": "batching.token_budget",
    "batch_tokens": "batching.token_budget",
    "max_batch_size": "batching.token_budget",
    "max_concurrent_requests": "batching.max_held_tokens",
    "max_queue_size": "batching.max_held_tokens",
    "port": "give host:port as grpc.bind, http.bind or telemetry.metrics_bind",
    "host": "give host:port as grpc.bind, http.bind or telemetry.metrics_bind",
    "hostname": "give host:port as grpc.bind, http.bind or telemetry.metrics_bind",
    "model": "models",
    "model_id": "models",
    "served_model_name": "models",
    "otlp_endpoint": "set OTEL_EXPORTER_OTLP_ENDPOINT",
}
