{{/* The settings of the group `kafka`, with the files that they name. */}}

{{- define "tokenbatch.kafkaSettings" -}}
{{- $kafka := .Values.kafka -}}
{{- if not $kafka.enabled -}}
enabled: false
{{- else -}}
{{- $settings := deepCopy $kafka.config -}}
{{- $servers := required "kafka.bootstrapServers must be set: host:port of your Kafka, several separated by commas" $kafka.bootstrapServers -}}
{{- $_ := set $settings "bootstrap_servers" $servers -}}
{{- if .Values.strimzi.enabled -}}
{{- $_ := set $settings "create_topics" false -}}
{{- end -}}
{{- $sasl := dict -}}
{{- if $kafka.saslPassword -}}
{{- $_ := set $sasl "password_file" "/etc/tokenbatch/kafka/password" -}}
{{- end -}}
{{- if $kafka.saslToken -}}
{{- $_ := set $sasl "token_file" "/etc/tokenbatch/kafka/token" -}}
{{- end -}}
{{- if $sasl -}}
{{- $_ := set $settings "sasl" (merge $sasl (default dict $settings.sasl)) -}}
{{- end -}}
{{- $ssl := dict -}}
{{- if $kafka.ca -}}
{{- $_ := set $ssl "ca_file" "/etc/tokenbatch/kafka/ca.crt" -}}
{{- end -}}
{{- if $kafka.clientCertificate -}}
{{- $_ := set $ssl "cert_file" "/etc/tokenbatch/kafka/tls.crt" -}}
{{- $_ := set $ssl "key_file" "/etc/tokenbatch/kafka/tls.key" -}}
{{- end -}}
{{- if $ssl -}}
{{- $_ := set $settings "ssl" $ssl -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}
{{- end -}}

{{/* One volume with the Secrets for Kafka; nothing if the values name none. */}}
{{- define "tokenbatch.kafkaVolume" -}}
{{- $kafka := .Values.kafka -}}
{{- if and $kafka.enabled (or $kafka.saslPassword $kafka.saslToken $kafka.ca $kafka.clientCertificate) -}}
- name: kafka
  projected:
    defaultMode: 0440
    sources:
      {{- with $kafka.saslPassword }}
      - secret: {name: {{ .secretName }}, items: [{key: {{ .key }}, path: password}]}
      {{- end }}
      {{- with $kafka.saslToken }}
      - secret: {name: {{ .secretName }}, items: [{key: {{ .key }}, path: token}]}
      {{- end }}
      {{- with $kafka.ca }}
      - secret: {name: {{ .secretName }}, items: [{key: {{ .key }}, path: ca.crt}]}
      {{- end }}
      {{- with $kafka.clientCertificate }}
      - secret:
          name: {{ .secretName }}
          items: [{key: {{ default "tls.crt" .certKey }}, path: tls.crt}, {key: {{ default "tls.key" .keyKey }}, path: tls.key}]
      {{- end }}
{{- end -}}
{{- end -}}

{{- define "tokenbatch.kafkaMount" -}}
{{- if include "tokenbatch.kafkaVolume" . -}}
- {name: kafka, mountPath: /etc/tokenbatch/kafka, readOnly: true}
{{- end -}}
{{- end -}}

{{/* The topics that are read, as in the settings: JSON of {items: [...]}. */}}
{{- define "tokenbatch.topics" -}}
{{- toJson (dict "items" (default (list (dict "name" "embed.requests.v1")) .Values.kafka.config.topics)) -}}
{{- end -}}

{{/* One volume with the certificates and credentials of the gRPC port; nothing if the values name none. */}}
{{- define "tokenbatch.frontDoorVolume" -}}
{{- $door := .Values.aggregator.frontDoor -}}
{{- if or $door.tls $door.clientCa $door.tokens $door.jwks -}}
- name: grpc
  projected:
    defaultMode: 0440
    sources:
      {{- with $door.tls }}
      - secret:
          name: {{ .secretName }}
          items: [{key: {{ default "tls.crt" .certKey }}, path: tls.crt}, {key: {{ default "tls.key" .keyKey }}, path: tls.key}]
      {{- end }}
      {{- with $door.clientCa }}
      - secret: {name: {{ .secretName }}, items: [{key: {{ .key }}, path: client-ca.crt}]}
      {{- end }}
      {{- with $door.tokens }}
      - secret: {name: {{ .secretName }}, items: [{key: {{ .key }}, path: tokens}]}
      {{- end }}
      {{- with $door.jwks }}
      - secret: {name: {{ .secretName }}, items: [{key: {{ .key }}, path: jwks.json}]}
      {{- end }}
{{- end -}}
{{- end -}}
