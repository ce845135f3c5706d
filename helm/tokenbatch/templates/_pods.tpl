{{/* What all pods share. */}}

{{/* The image: (list $ $image). */}}
{{- define "tokenbatch.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $registry := default $root.Values.image.registry $image.registry -}}
{{- $name := ternary (printf "%s/%s" $registry $image.repository) $image.repository (ne $registry "") -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The scaler's image: by default the aggregator's, which has its code. */}}
{{- define "tokenbatch.scalerImage" -}}
{{- $own := .Values.scaler.image -}}
{{- $image := merge (pick $own "registry" "repository") .Values.aggregator.image -}}
{{- if or $own.tag $own.digest -}}
{{- $image = merge (pick $own "tag" "digest") (omit $image "tag" "digest") -}}
{{- end -}}
{{- include "tokenbatch.image" (list . $image) -}}
{{- end -}}

{{/* As the restricted Pod Security Standard requires; the group may write to volumes. */}}
{{- define "tokenbatch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tokenbatch.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
A pod's spec with podSpec written over it, and container over its first container: (list $pods spec).

Containers, volumes, mounts, environment and ports are added to the chart's; a variable of the environment replaces that of the same name.
Everything else replaces what it names; null removes it.
*/}}
{{- define "tokenbatch.pod" -}}
{{- $pods := index . 0 -}}
{{- if or $pods.podSpec $pods.container -}}
{{- $spec := index . 1 | fromYaml -}}
{{- include "tokenbatch.lay" (list (first $spec.containers) $pods.container (list "env" "envFrom" "ports" "volumeMounts")) -}}
{{- include "tokenbatch.lay" (list $spec $pods.podSpec (list "containers" "initContainers" "volumes")) -}}
{{- toYaml $spec -}}
{{- else -}}
{{- index . 1 -}}
{{- end -}}
{{- end -}}

{{/* Write a mapping over another, in place, but append the lists of these names: (list base given names). */}}
{{- define "tokenbatch.lay" -}}
{{- $base := index . 0 -}}
{{- $given := deepCopy (index . 1) -}}
{{- range index . 2 -}}
{{- $ours := default list (get $base .) -}}
{{- $added := get $given . -}}
{{- if and $added (eq . "env") -}}
{{- $_ := set $given . (include "tokenbatch.env" (list $ours $added) | fromYamlArray) -}}
{{- else if $added -}}
{{- $_ := set $given . (concat $ours $added) -}}
{{- else if kindIs "slice" $added -}}
{{- $_ := unset $given . -}}
{{- end -}}
{{- end -}}
{{- include "tokenbatch.override" (list $base $given) -}}
{{- end -}}

{{/* The start of a pod's spec: (list $ $pods "component" "account" selector). */}}
{{- define "tokenbatch.podSpec" -}}
{{- $root := index . 0 -}}
{{- $pods := index . 1 -}}
{{- $selector := index . 4 -}}
serviceAccountName: {{ index . 3 }}
enableServiceLinks: false
securityContext:
  {{- include "tokenbatch.podSecurity" $root | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $pods.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with $pods.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- with $pods.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{/*
The value of spec.replicas, or nothing: (list $ name autoscaling replicas first).

An autoscaler's number must not be in the manifest, nor one that no value gives. But after a manifest that had the field, one without it removes
it, and the API server sets 1: then this is the present number. The annotation tokenbatch/replicas marks Deployments whose manifest never had the
field. Only KEDA wakes a Deployment that it has scaled to zero, by a ScaledObject of the chart or of somebody else.
*/}}
{{- define "tokenbatch.replicas" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $scaled := include "tokenbatch.scaled" (list $root (index . 2)) -}}
{{- $toZero := include "tokenbatch.toZero" (list $root (index . 2)) -}}
{{- $found := lookup "apps/v1" "Deployment" $root.Release.Namespace $name -}}
{{- if and (not $scaled) (not (kindIs "invalid" (index . 3))) -}}
{{- int64 (index . 3) -}}
{{- else if $found -}}
{{- if and (eq (int64 $found.spec.replicas) 0) (not $toZero) (or (not $scaled) (ne $root.Values.autoscaling.mode "keda")) -}}
{{- if eq $root.Values.autoscaling.mode "keda" -}}
{{- fail (printf "the Deployment %s has zero replicas, and none of the chart's ScaledObjects would start one. Nothing was changed. If one of your own does, upgrade with autoscaling.minReplicas 0 of its model; otherwise:\n  kubectl --namespace %s scale deployment/%s --replicas=1\nThen:\n  helm upgrade, with the same arguments" $name $root.Release.Namespace $name) -}}
{{- end -}}
{{- fail (printf "the Deployment %s has zero replicas, and with autoscaling.mode %s nobody would start one. Nothing was changed. If KEDA scales it, first:\n  helm upgrade with autoscaling.mode=keda and modelServer.autoscaling.minReplicas=1\nand otherwise:\n  kubectl --namespace %s scale deployment/%s --replicas=1\nThen:\n  helm upgrade, with the same arguments" $name $root.Values.autoscaling.mode $root.Release.Namespace $name) -}}
{{- end -}}
{{- if ne (dig "metadata" "annotations" "tokenbatch/replicas" "" $found) "autoscaler" -}}
{{- int64 $found.spec.replicas -}}
{{- end -}}
{{- else if not $scaled -}}
{{- index . 4 -}}
{{- end -}}
{{- end -}}

{{/* Wait until clients have stopped sending to this pod. Kubernetes has a sleep of its own since 1.30. */}}
{{- define "tokenbatch.preStop" -}}
{{- if gt (int .preStopSeconds) 0 -}}
lifecycle:
  preStop:
    exec:
      command: [python, -c, "import time; time.sleep({{ int .preStopSeconds }})"]
{{- end -}}
{{- end -}}

{{/* The startup probe: (list probe seconds). */}}
{{- define "tokenbatch.startup" -}}
startupProbe:
  {{- toYaml (index . 0) | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ max 1 (ceil (divf (index . 1) 5)) }}
{{- end -}}

{{/* The chart's environment variables, and those of the values, which replace variables of the same names: (list own given). */}}
{{- define "tokenbatch.env" -}}
{{- $seen := dict -}}
{{- range index . 1 -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "env: %s is given twice" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- $all := list -}}
{{- range index . 0 -}}
{{- if not (hasKey $seen .name) -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $all (index . 1)) -}}
{{- end -}}

{{/* The memory that an aggregator may take, in MiB: docs/operate.md has the formula. 692 are 300 for the process, 128 for a batch, 192 for streams and 72 for partitions. */}}
{{- define "tokenbatch.aggregatorMiB" -}}
{{- $ledger := dig "limits" "memory_bytes" 268435456 .Values.aggregator.config | int64 -}}
{{- $held := dig "batching" "max_held_tokens" 500000 .Values.aggregator.config | int64 -}}
{{- $cache := dig "batching" "cache_bytes" 0 .Values.aggregator.config | int64 -}}
{{- $models := len (include "tokenbatch.models" . | fromJson).items -}}
{{- add 692 (div (add (div (mul 5 (add $ledger (mul $cache $models))) 4) (mul 24 $held $models) 1048575) 1048576) -}}
{{- end -}}

{{/* An amount of memory as Kubernetes writes it, in MiB; empty for ways to write it that are rare: 1e9, 128974848000m. */}}
{{- define "tokenbatch.mib" -}}
{{- $said := toString . -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $said -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- with get $units (trimPrefix $number $said) -}}
{{- divf (mulf (float64 $number) .) 1048576 | floor | int64 -}}
{{- end -}}
{{- end -}}
