{{/* The settings of the group `batches`. */}}

{{- define "tokenbatch.batchesSettings" -}}
{{- $batches := .Values.batches -}}
{{- if not (and .Values.kafka.enabled .Values.aggregator.http.enabled) -}}
{{- fail "batches.enabled needs kafka.enabled, whose records say who computes what, and aggregator.http.enabled" -}}
{{- end -}}
{{- if eq (empty $batches.store) (empty $batches.volume) -}}
{{- fail "batches.enabled needs batches.store or batches.volume, and not both" -}}
{{- end -}}
{{- $settings := deepCopy $batches.config -}}
{{- $_ := set $settings "store" (default "file:///var/lib/tokenbatch/batches" $batches.store) -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The volume of the files; nothing where they are in an object store. */}}
{{- define "tokenbatch.batchesVolume" -}}
{{- if and .Values.batches.enabled .Values.batches.volume -}}
- name: batches
  {{- toYaml .Values.batches.volume | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* The topic of chunks; nothing without batches. */}}
{{- define "tokenbatch.batchesTopic" -}}
{{- if .Values.batches.enabled -}}
{{- default "batch.chunks.v1" .Values.batches.config.topic -}}
{{- end -}}
{{- end -}}
