{{/* Names and labels. */}}

{{- define "tokenbatch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 38 | trimSuffix "-" -}}
{{- end -}}

{{/* What the names of all objects begin with. A Service's name begins with a letter and has no dot; a release's name may be otherwise. */}}
{{- define "tokenbatch.fullname" -}}
{{- $name := include "tokenbatch.name" . -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- $both := ternary (list $name $release) (list $release $name) (regexMatch "^[0-9]" $release) -}}
{{- $full = ternary $release (join "-" $both) (contains $name $release) -}}
{{- if regexMatch "^[0-9]" $full -}}
{{- $full = printf "%s-%s" .Chart.Name $full -}}
{{- end -}}
{{- end -}}
{{- $full = $full | trunc 38 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "objects would be called %s, which no Service may be called: set fullnameOverride to small letters, digits and -, with a letter at the start" $full) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* The labels that select this release's pods, or those of one component: (list $ "aggregator"). */}}
{{- define "tokenbatch.selector" -}}
{{- $root := index . 0 -}}
{{- $labels := dict "app.kubernetes.io/name" (include "tokenbatch.name" $root) "app.kubernetes.io/instance" $root.Release.Name -}}
{{- with index . 1 -}}
{{- $_ := set $labels "app.kubernetes.io/component" . -}}
{{- end -}}
{{- toYaml $labels -}}
{{- end -}}

{{/* All labels of an object: (list $ "aggregator"), and labels of the values that are added to commonLabels. */}}
{{- define "tokenbatch.labels" -}}
{{- $root := index . 0 -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" -}}
{{- $labels := dict "app.kubernetes.io/version" $root.Chart.AppVersion "helm.sh/chart" $chart -}}
{{- toYaml (merge (include "tokenbatch.labelsOfPods" . | fromJson) $labels) -}}
{{- end -}}

{{/* All labels of a pod, in the same way. None has the chart's version, or each new version would replace every pod. */}}
{{- define "tokenbatch.podLabels" -}}
{{- toYaml (include "tokenbatch.labelsOfPods" . | fromJson) -}}
{{- end -}}

{{/* The same as JSON, which holds any string. */}}
{{- define "tokenbatch.labelsOfPods" -}}
{{- $root := index . 0 -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/part-of" "tokenbatch/model" "tokenbatch/scrape" "strimzi.io/cluster" -}}
{{- $labels := include "tokenbatch.selector" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "tokenbatch" -}}
{{- range $given := prepend (slice . 2) $root.Values.commonLabels -}}
{{- range $key, $value := $given -}}
{{- if has $key $own -}}
{{- fail (printf "labels: %s: %s is given, but objects are selected by this label, which only the chart sets: take it out of the values" $key $value) -}}
{{- end -}}
{{- $_ := set $labels $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $labels -}}
{{- end -}}

{{/* The labels that select one model's pods: (list $ $model). */}}
{{- define "tokenbatch.modelSelector" -}}
{{ include "tokenbatch.selector" (list (index . 0) "model-server") }}
tokenbatch/model: {{ (index . 1).slug | quote }}
{{- end -}}

{{- define "tokenbatch.modelLabels" -}}
{{ include "tokenbatch.labels" (list (index . 0) "model-server") }}
tokenbatch/model: {{ (index . 1).slug | quote }}
{{- end -}}

{{- define "tokenbatch.modelPodLabels" -}}
{{ include "tokenbatch.podLabels" (list (index . 0) "model-server" (index . 1).podLabels) }}
tokenbatch/model: {{ (index . 1).slug | quote }}
{{- end -}}

{{/* Write the second mapping over the first, in place. Unlike mergeOverwrite, this keeps 0, false and the empty string; null removes. */}}
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
Every model with the defaults of modelServer, its slug and its name in Kubernetes: JSON of {items: [...]}.

A canary follows its model in the list. It is the same model with the values of the canary written over it. `share` is the part of the
requests that each of the two gets.
*/}}
{{- define "tokenbatch.models" -}}
{{- $root := . -}}
{{- $items := list -}}
{{- $slugs := dict -}}
{{- range list "aggregator" "aggregator-pods" "scaler" "dashboard" -}}
{{- $_ := set $slugs . (printf "the chart's own %s" .) -}}
{{- end -}}
{{- range $said := .Values.models -}}
{{- $canary := default dict $said.canary -}}
{{- if and $canary (not (dig "source" "revision" "" $canary)) -}}
{{- fail (printf "models: %s has a canary without source.revision, which its requests are routed by" $said.name) -}}
{{- end -}}
{{- if and $canary (kindIs "invalid" $canary.share) -}}
{{- fail (printf "models: %s has a canary without share: its part of the requests, 0 for none" $said.name) -}}
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
{{- fail (printf "models: %s and %s are too alike: the objects of both would be called %s" $said.name (get $slugs $slug) $slug) -}}
{{- end -}}
{{- $_ := set $slugs $slug $said.name -}}
{{- $source := default dict $model.source -}}
{{- $_ := set $model "source" $source -}}
{{- $_ := set $model "aliases" (default list $said.aliases) -}}
{{- $_ := set $model "slug" $slug -}}
{{- $_ := set $model "fullname" (printf "%s-%s" (include "tokenbatch.fullname" $root) $slug) -}}
{{- if and $source.hub $source.path -}}
{{- fail (printf "models: %s has both source.hub and source.path: give one of them" $said.name) -}}
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
A metric of this release's scaler, as a HorizontalPodAutoscaler names it: (list $ name slug).

In Prometheus all of them are series of one metric, with the name as a label.
*/}}
{{- define "tokenbatch.metric" -}}
{{- $labels := dict "scaler" (printf "%s-scaler" (include "tokenbatch.fullname" (index . 0))) -}}
{{- with index . 2 -}}
{{- $_ := set $labels "model" . -}}
{{- end -}}
{{- if eq (index . 0).Values.autoscaling.mode "adapter" -}}
{{- $_ := set $labels "metric" (index . 1) -}}
name: tokenbatch_scaler_figure
{{- else -}}
name: {{ index . 1 }}
{{- end }}
selector: {matchLabels: {{ toJson $labels }}}
{{- end -}}

{{/* Whether KEDA may scale to zero, by the chart's ScaledObject or by another: (list $ $autoscaling). */}}
{{- define "tokenbatch.toZero" -}}
{{- if and (eq (index . 0).Values.autoscaling.mode "keda") (lt (int (index . 1).minReplicas) 1) -}}true{{- end -}}
{{- end -}}

{{/* Whether an autoscaler sets the replicas: (list $ $autoscaling). */}}
{{- define "tokenbatch.scaled" -}}
{{- $root := index . 0 -}}
{{- $autoscaling := index . 1 -}}
{{- if and (ne $root.Values.autoscaling.mode "none") $autoscaling.enabled -}}true{{- end -}}
{{- end -}}
