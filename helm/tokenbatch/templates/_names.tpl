{{/* Names and labels. */}}

{{- define "tokenbatch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 38 | trimSuffix "-" -}}
{{- end -}}

{{- define "tokenbatch.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 38 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tokenbatch.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 38 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 38 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels by which this release's pods are found; of a component where one is given: (list $ "aggregator"). */}}
{{- define "tokenbatch.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "tokenbatch.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* All labels of an object: (list $ "aggregator"). */}}
{{- define "tokenbatch.labels" -}}
{{- $root := index . 0 -}}
{{ include "tokenbatch.podLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* All labels of a pod: none that a new version of the chart changes, or each would roll every pod. (list $ "aggregator") */}}
{{- define "tokenbatch.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "tokenbatch.selector" . }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: tokenbatch
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels of one model's objects: (list $ $model). */}}
{{- define "tokenbatch.modelSelector" -}}
{{ include "tokenbatch.selector" (list (index . 0) "model-server") }}
tokenbatch/model: {{ (index . 1).slug }}
{{- end -}}

{{- define "tokenbatch.modelLabels" -}}
{{ include "tokenbatch.labels" (list (index . 0) "model-server") }}
tokenbatch/model: {{ (index . 1).slug }}
{{- end -}}

{{- define "tokenbatch.modelPodLabels" -}}
{{ include "tokenbatch.podLabels" (list (index . 0) "model-server") }}
tokenbatch/model: {{ (index . 1).slug }}
{{- end -}}

{{/* Write the second mapping over the first, in place: 0, false and the empty string count, unlike in mergeOverwrite; null takes away. */}}
{{- define "tokenbatch.override" -}}
{{- $base := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $base $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- include "tokenbatch.override" (list (get $base $key) $value) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Every model with the defaults of modelServer, its slug and its name in Kubernetes; JSON of {items: [...]}.

A canary follows its model, as another one with all that the model has but what the canary says itself; `share` is the
part of the model's requests that is for each of the two.
*/}}
{{- define "tokenbatch.models" -}}
{{- $root := . -}}
{{- $items := list -}}
{{- $slugs := dict -}}
{{- range $said := .Values.models -}}
{{- $canary := default dict $said.canary -}}
{{- if and $canary (not (dig "source" "revision" "" $canary)) -}}
{{- fail (printf "models: %s has a canary without source.revision, by which its requests find it" $said.name) -}}
{{- end -}}
{{- range $onTrial := ternary (list false true) (list false) (not (empty $canary)) -}}
{{- $model := deepCopy $root.Values.modelServer -}}
{{- include "tokenbatch.override" (list $model (omit (deepCopy $said) "canary")) -}}
{{- $slug := regexReplaceAll "[^a-z0-9]+" (lower $said.name) "-" | trunc 24 | trimAll "-" -}}
{{- $_ := set $model "share" (subf 1.0 (float64 (default 0.0 $canary.share))) -}}
{{- if $onTrial -}}
{{- include "tokenbatch.override" (list $model (deepCopy $canary)) -}}
{{- $slug = printf "%s-canary" ($slug | trunc 17 | trimSuffix "-") -}}
{{- end -}}
{{- $_ := set $model "onTrial" $onTrial -}}
{{- if hasKey $slugs $slug -}}
{{- fail (printf "models: %s and %s are too alike: both would be called %s" $said.name (get $slugs $slug) $slug) -}}
{{- end -}}
{{- $_ := set $slugs $slug $said.name -}}
{{- $source := default dict $model.source -}}
{{- $_ := set $model "source" $source -}}
{{- $_ := set $model "aliases" (default list $said.aliases) -}}
{{- $_ := set $model "slug" $slug -}}
{{- $_ := set $model "fullname" (printf "%s-%s" (include "tokenbatch.fullname" $root) $slug) -}}
{{- if and $source.hub $source.path -}}
{{- fail (printf "models: %s has both source.hub and source.path: give one" $said.name) -}}
{{- end -}}
{{- if and $source.volume (not $source.path) -}}
{{- $_ := set $source "path" "/models" -}}
{{- end -}}
{{- $items = append $items $model -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "items" $items) -}}
{{- end -}}

{{/*
A metric of this release's scaler, as an HorizontalPodAutoscaler names it: (list $ name slug).

An adapter finds all of them as one series of Prometheus, which has the name as a label.
*/}}
{{- define "tokenbatch.metric" -}}
{{- $labels := dict "scaler" (printf "%s-scaler" (include "tokenbatch.fullname" (index . 0))) -}}
{{- with index . 2 -}}
{{- $_ := set $labels "model" . -}}
{{- end -}}
{{- if eq (index . 0).Values.autoscaling.mode "adapter" -}}
{{- $_ := set $labels "metric" (index . 1) -}}
name: embed_scaler_figure
{{- else -}}
name: {{ index . 1 }}
{{- end }}
selector: {matchLabels: {{ toJson $labels }}}
{{- end -}}

{{/* A bound on replicas that an autoscaler holds: (list $ $autoscaling). */}}
{{- define "tokenbatch.scaled" -}}
{{- $root := index . 0 -}}
{{- $autoscaling := index . 1 -}}
{{- if and (ne $root.Values.autoscaling.mode "none") $autoscaling.enabled -}}true{{- end -}}
{{- end -}}
