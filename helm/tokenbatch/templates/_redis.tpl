{{/* The settings of the group `redis`, with the files that they name. */}}

{{- define "tokenbatch.redisSettings" -}}
{{- $redis := .Values.redis -}}
{{- $settings := deepCopy $redis.config -}}
{{- $_ := set $settings "enabled" true -}}
{{- $_ := include "tokenbatch.redisPorts" . -}}
{{- $_ := set $settings "servers" $redis.servers -}}
{{- if $redis.password -}}
{{- $_ := set $settings "user" (merge (dict "password_file" "/etc/tokenbatch/redis/password") (default dict $settings.user)) -}}
{{- end -}}
{{- $tls := dict -}}
{{- if $redis.ca -}}
{{- $_ := set $tls "ca_file" "/etc/tokenbatch/redis/ca.crt" -}}
{{- end -}}
{{- if $redis.clientCertificate -}}
{{- $_ := set $tls "cert_file" "/etc/tokenbatch/redis/tls.crt" -}}
{{- $_ := set $tls "key_file" "/etc/tokenbatch/redis/tls.key" -}}
{{- end -}}
{{- if $tls -}}
{{- $_ := set $settings "tls" (set $tls "enabled" true) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The ports of the Redis servers: JSON of {items: [...]}. Redis has no port that goes without saying. */}}
{{- define "tokenbatch.redisPorts" -}}
{{- include "tokenbatch.ports" (list "redis.servers" (required "redis.servers must be set: host:port of your Redis" .Values.redis.servers) "") -}}
{{- end -}}

{{/* One volume with the Secrets for Redis; nothing if the values name none. */}}
{{- define "tokenbatch.redisVolume" -}}
{{- $redis := .Values.redis -}}
{{- if and $redis.enabled (or $redis.password $redis.ca $redis.clientCertificate) -}}
- name: redis
  projected:
    defaultMode: 0440
    sources:
      {{- with $redis.password }}
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: password}]}
      {{- end }}
      {{- with $redis.ca }}
      - secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: ca.crt}]}
      {{- end }}
      {{- with $redis.clientCertificate }}
      - secret:
          name: {{ .secretName | quote }}
          items: [{key: {{ default "tls.crt" .certKey | quote }}, path: tls.crt}, {key: {{ default "tls.key" .keyKey | quote }}, path: tls.key}]
      {{- end }}
{{- end -}}
{{- end -}}
