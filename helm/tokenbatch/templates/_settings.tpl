{{/* The settings files of the processes. */}}

{{- define "tokenbatch.aggregatorSettings" -}}
{{- $settings := deepCopy .Values.aggregator.config -}}
{{- $models := list -}}
{{- $model := dict -}}
{{- range (include "tokenbatch.models" . | fromJson).items -}}
{{- $address := printf "k8s://%s.%s:50061" .fullname $.Release.Namespace -}}
{{- if .onTrial -}}
{{- $_ := set $model "servers" (append $model.servers $address) -}}
{{- $_ := set $model "canary" (dict "revision" .source.revision "share" .share) -}}
{{- continue -}}
{{- end -}}
{{- $model = dict "name" .name "aliases" .aliases "servers" (list $address) -}}
{{- if include "tokenbatch.toZero" (list $ .autoscaling) -}}
{{- $_ := set $model "scales_to_zero" true -}}
{{- end -}}
{{- if eq (dig "model" "task" "auto" .config) "both" -}}
{{- $_ := set $model "task" "both" -}}
{{- end -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- $door := .Values.aggregator.frontDoor -}}
{{- $tls := dict -}}
{{- if $door.tls -}}
{{- $_ := set $tls "cert_file" "/etc/tokenbatch/grpc/tls.crt" -}}
{{- $_ := set $tls "key_file" "/etc/tokenbatch/grpc/tls.key" -}}
{{- end -}}
{{- if $door.clientCa -}}
{{- $_ := set $tls "client_ca_file" "/etc/tokenbatch/grpc/client-ca.crt" -}}
{{- end -}}
{{- $authentication := dict -}}
{{- if $door.tokens -}}
{{- $_ := set $authentication "tokens_file" "/etc/tokenbatch/grpc/tokens" -}}
{{- end -}}
{{- if $door.jwks -}}
{{- $_ := set $authentication "jwt" (dict "jwks_file" "/etc/tokenbatch/grpc/jwks.json") -}}
{{- end -}}
{{- if $tls -}}
{{- include "tokenbatch.override" (list $settings (dict "grpc" (merge (dict "tls" $tls) (default dict $settings.grpc)))) -}}
{{- end -}}
{{- if $authentication -}}
{{- include "tokenbatch.override" (list $settings (dict "grpc" (mustMerge (dict "authentication" $authentication) (default dict $settings.grpc)))) -}}
{{- end -}}
{{- if .Values.aggregator.http.enabled -}}
{{- include "tokenbatch.override" (list $settings (dict "http" (merge (dict "bind" "0.0.0.0:8000") (default dict $settings.http)))) -}}
{{- end -}}
{{- if .Values.redis.enabled -}}
{{- include "tokenbatch.override" (list $settings (dict "redis" (include "tokenbatch.redisSettings" . | fromYaml))) -}}
{{- end -}}
{{- if .Values.batches.enabled -}}
{{- include "tokenbatch.override" (list $settings (dict "batches" (include "tokenbatch.batchesSettings" . | fromYaml))) -}}
{{- end -}}
{{- $callers := printf "k8s://%s-aggregator.%s:50051" (include "tokenbatch.fullname" .) .Release.Namespace -}}
{{- include "tokenbatch.override" (list $settings (dict
  "kafka" (include "tokenbatch.kafkaSettings" . | fromYaml)
  "models" $models
  "tenants" (merge (dict "aggregators" $callers) (default dict $settings.tenants))
  "demand" (dict "bind" "0.0.0.0:50052")
  "tokenizer" (merge (dict "cache" "/var/cache/tokenbatch/tokenizers") (default dict $settings.tokenizer)))) -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The settings of a model's servers: (list $ $model). */}}
{{- define "tokenbatch.modelServerSettings" -}}
{{- $model := index . 1 -}}
{{- $settings := deepCopy $model.config -}}
{{- $served := dict "name" $model.name "path" (default "" (coalesce $model.source.path $model.source.hub)) "revision" (default "" $model.source.revision) -}}
{{- include "tokenbatch.override" (list $settings (dict
  "model" (merge $served (default dict $settings.model))
  "profile" (merge (dict "cache" "/var/cache/tokenbatch/profiles") (default dict $settings.profile)))) -}}
{{- if gt (int $model.gpu.serversPerGpu) 1 -}}
{{- $share := dict "gpu_share" (round (divf 1.0 $model.gpu.serversPerGpu) 3) -}}
{{- $_ := set $settings "engine" (merge (deepCopy (default dict $settings.engine)) $share) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "tokenbatch.scalerSettings" -}}
{{- $settings := deepCopy .Values.scaler.config -}}
{{- $name := include "tokenbatch.fullname" . -}}
{{- $models := list -}}
{{- range (include "tokenbatch.models" . | fromJson).items -}}
{{- $model := dict "name" .slug "deployment" .fullname -}}
{{- if ne .slug .name -}}
{{- $_ := set $model "demand_of" .name -}}
{{- end -}}
{{- if lt .share 1.0 -}}
{{- $_ := set $model "share" .share -}}
{{- end -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- $bind := ternary "0.0.0.0:8443" "" (eq .Values.autoscaling.mode "hpa") -}}
{{- $address := printf "k8s://%s-aggregator-pods.%s:50052" $name .Release.Namespace -}}
{{- include "tokenbatch.override" (list $settings (dict
  "kafka" (include "tokenbatch.kafkaSettings" . | fromYaml)
  "models" $models
  "aggregators" (merge (dict "addresses" (list $address)) (default dict $settings.aggregators))
  "peers" (list (printf "k8s://%s-scaler.%s:50071" $name .Release.Namespace))
  "api" (dict "bind" $bind "service" (printf "%s-scaler" $name)))) -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* Seconds from SIGTERM to SIGKILL: the pause before, the drain, and a margin. (list pause drain) */}}
{{- define "tokenbatch.grace" -}}
{{- add (int (index . 0)) (int (ceil (index . 1))) 10 -}}
{{- end -}}
