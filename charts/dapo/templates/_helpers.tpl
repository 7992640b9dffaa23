{{- define "dapo.name" -}}
{{- if contains "dapo" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-dapo" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- /* (list . "operator") -> labels by which a component's pods are found */ -}}
{{- define "dapo.selector" -}}
app.kubernetes.io/name: dapo
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "dapo.labels" -}}
{{ include "dapo.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- /* (list . "operator" .Values.operator.image) -> image reference */ -}}
{{- define "dapo.image" -}}
{{- $root := index . 0 -}}
{{- index . 2 | default (printf "%s%s:%s" $root.Values.image.prefix (index . 1) ($root.Values.image.tag | default $root.Chart.AppVersion)) -}}
{{- end }}

{{- define "dapo.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* "fixed", or "assigned" where the cluster chooses the users of pods */ -}}
{{- define "dapo.podUser" -}}
{{- $onOpenShift := .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- .Values.podSecurity.user | default ($onOpenShift | ternary "assigned" "fixed") -}}
{{- end }}

{{- /* (list . 1000) -> what the restricted pod security standard requires of a pod, with this user and group */ -}}
{{- define "dapo.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- if eq (include "dapo.podUser" (index . 0)) "fixed" }}
  runAsUser: {{ index . 1 }}
  runAsGroup: {{ index . 1 }}
  fsGroup: {{ index . 1 }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dapo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "dapo.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "dapo.keep" -}}
{{- if .Values.stores.keep }}
helm.sh/resource-policy: keep
{{- end }}
{{- end }}

{{- /*
Argo CD has neither Helm's hooks nor its order: `pre-upgrade` would come before the first Postgres. Its own annotations
replace them: what the stores need is in wave -2, then come the tables, then everything else.
*/ -}}
{{- define "dapo.syncHook" -}}
argocd.argoproj.io/hook: Sync
argocd.argoproj.io/hook-delete-policy: BeforeHookCreation
argocd.argoproj.io/sync-wave: {{ . | quote }}
{{- end }}
{{- define "dapo.early" -}}argocd.argoproj.io/sync-wave: "-2"{{- end }}

{{- define "dapo.credentials" -}}{{ include "dapo.name" . }}-credentials{{- end }}
{{- define "dapo.databaseSecret" -}}{{ .Values.postgres.embedded | ternary (include "dapo.credentials" .) .Values.postgres.existingSecret }}{{- end }}
{{- define "dapo.postgresHost" -}}{{ include "dapo.name" . }}-postgres.{{ .Release.Namespace }}.svc:5432{{- end }}
{{- define "dapo.minioUrl" -}}http://{{ include "dapo.name" . }}-minio.{{ .Release.Namespace }}.svc:9000{{- end }}

{{- /* Role names in the database and user names in MinIO, by namespace */ -}}
{{- define "dapo.writer" -}}dapo_writer_{{ . | replace "-" "_" }}{{- end }}
{{- define "dapo.storeUser" -}}dapo-{{ . }}{{- end }}

{{- /* Peers of a network policy: the pods of jobs, and components of this release (list . "operator" ...) */ -}}
{{- define "dapo.jobPods" }}
{{- if .namespaces }}
- namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .namespaces }}}
  podSelector:
    matchExpressions:
      - {key: dapo.io/job, operator: Exists}
- namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .namespaces }}}
  podSelector:
    matchLabels:
      app.kubernetes.io/name: dapo
    matchExpressions:
      - {key: app.kubernetes.io/component, operator: In, values: [demo, test, sweep]}
{{- end }}
{{- end }}
{{- define "dapo.own" }}
{{- $root := index . 0 }}
{{- range rest . }}
- podSelector:
    matchLabels: {{ include "dapo.selector" (list $root .) | nindent 6 }}
{{- end }}
{{- end }}

{{- /* The names of the job namespaces, separated by commas */ -}}
{{- define "dapo.namespaceNames" -}}
{{- range $index, $namespace := .Values.jobNamespaces }}{{ if $index }},{{ end }}{{ $namespace.name }}{{ end }}
{{- end }}

{{- /* "true" when the operator watches nodes */ -}}
{{- define "dapo.watchNodes" -}}
{{- ternary .Values.operator.clusterWide .Values.operator.watchNodes (kindIs "invalid" .Values.operator.watchNodes) -}}
{{- end }}

{{- /* What the pods of all jobs get, as JSON for the operator; empty: nothing */ -}}
{{- define "dapo.podTemplates" -}}
{{- $templates := dict }}
{{- with .Values.jobs }}
{{- range $key, $template := dict "all" .podTemplate "head" .head.podTemplate "trainer" .trainer.podTemplate "rollout" .rollout.podTemplate }}
{{- if $template }}{{ $_ := set $templates $key $template }}{{ end }}
{{- end }}
{{- end }}
{{- if $templates }}{{ toJson $templates }}{{ end }}
{{- end }}

{{- define "dapo.operatorRules" }}
{{- range .Files.Get "files/operator-permissions.yaml" | fromYamlArray }}
{{- if or (not .scheduler) (has .scheduler $.Values.operator.gangSchedulers) }}
- {{ omit . "why" "scheduler" | toYaml | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end }}
