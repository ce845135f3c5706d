{{/* The settings of the group `kafka`, with the files that they name. */}}

{{- define "tokenbatch.kafkaSettings" -}}
{{- $kafka := .Values.kafka -}}
{{- if not $kafka.enabled -}}
enabled: false
{{- else -}}
{{- $settings := deepCopy $kafka.config -}}
{{- $_ := include "tokenbatch.kafkaPorts" . -}}
{{- $_ := set $settings "bootstrap_servers" $kafka.bootstrapServers -}}
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

{{/* The ports of the brokers: JSON of {items: [...]}. */}}
{{- define "tokenbatch.kafkaPorts" -}}
{{- $servers := required "kafka.bootstrapServers must be set: host:port of your Kafka, several separated by commas" .Values.kafka.bootstrapServers -}}
{{- include "tokenbatch.ports" (list "kafka.bootstrapServers" $servers ":9092") -}}
{{- end -}}

{{/* The ports of servers that are separated by commas: (list "the.value" servers "the port, :N, of a server that names none"). */}}
{{- define "tokenbatch.ports" -}}
{{- $ports := list -}}
{{- range splitList "," (index . 1) -}}
{{- $server := trim . -}}
{{- if $server -}}
{{- if regexMatch `^(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/\s]+)$` $server -}}
{{- $server = printf "%s%s" $server (index $ 2) -}}
{{- end -}}
{{- $port := regexFind `:[0-9]{1,5}$` $server | trimPrefix ":" | atoi -}}
{{- if not (and (regexMatch `^(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/\s]+):[0-9]+$` $server) (gt $port 0) (lt $port 65536)) -}}
{{- fail (printf "%s: %s is not host:port" (index $ 0) (trim .)) -}}
{{- end -}}
{{- $ports = append $ports $port -}}
{{- end -}}
{{- end -}}
{{- if not $ports -}}
{{- fail (printf "%s: %s names no server: give host:port" (index . 0) (index . 1)) -}}
{{- end -}}
{{- toJson (dict "items" (uniq $ports)) -}}
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
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: password}]}
      {{- end }}
      {{- with $kafka.saslToken }}
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: token}]}
      {{- end }}
      {{- with $kafka.ca }}
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: ca.crt}]}
      {{- end }}
      {{- with $kafka.clientCertificate }}
      - secret:
          name: {{ .secretName | quote }}
          items: [{key: {{ default "tls.crt" .certKey | quote }}, path: tls.crt}, {key: {{ default "tls.key" .keyKey | quote }}, path: tls.key}]
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
          name: {{ .secretName | quote }}
          items: [{key: {{ default "tls.crt" .certKey | quote }}, path: tls.crt}, {key: {{ default "tls.key" .keyKey | quote }}, path: tls.key}]
      {{- end }}
      {{- with $door.clientCa }}
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: client-ca.crt}]}
      {{- end }}
      {{- with $door.tokens }}
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: tokens}]}
      {{- end }}
      {{- with $door.jwks }}
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: jwks.json}]}
      {{- end }}
{{- end -}}
{{- end -}}
