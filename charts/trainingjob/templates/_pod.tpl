{{- /* Parts that the pods of the operator and of its webhook share. */ -}}

{{- /* Annotations of a pod. A change of a table replaces the pods, since they read it at their start. */ -}}
{{- define "trainingjob.podAnnotations" -}}
{{- range $table := list "accelerators" "presets" "podProfiles" }}
{{- with index $.Values $table }}
trainingjob.dev/{{ kebabcase $table }}: {{ toJson . | sha256sum }}
{{- end }}
{{- end }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Settings of the program. Takes a dict with `root`, and `certificates`: `self` or a folder. */ -}}
{{- define "trainingjob.env" -}}
{{- $name := include "trainingjob.fullname" .root -}}
{{- with .root -}}
- name: TRAININGJOB_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: TRAININGJOB_NODE
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: TRAININGJOB_POD
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: TRAININGJOB_NAMESPACES
  value: {{ .Values.watch.namespaces | default list | join "," | quote }}
- name: TRAININGJOB_SERVICE
  value: {{ $name }}
- name: TRAININGJOB_TRAINER_IMAGE
  value: {{ include "trainingjob.image" (dict "image" .Values.trainer.image "root" .) }}
- name: TRAININGJOB_TRAINER_IMAGES
  value: {{ include "trainingjob.trainerImages" . | quote }}
- name: TRAININGJOB_TRAINER_PULL_POLICY
  value: {{ .Values.trainer.image.pullPolicy }}
- name: TRAININGJOB_ELASTIC_WORKLOAD_PRIORITY
  value: {{ .Values.kueue.elasticWorkloadPriority | default "" | quote }}
- name: TRAININGJOB_NODE_SIGNALS
  value: {{ ternary "" (toJson .Values.nodeSignals) (empty .Values.nodeSignals) | quote }}
- name: TRAININGJOB_WEBHOOK_ENABLED
  value: {{ .Values.webhook.enabled | quote }}
- name: TRAININGJOB_WEBHOOK_SERVICE
  value: {{ include "trainingjob.webhook" . }}
- name: TRAININGJOB_UNCHECKED_SERVICE_ACCOUNTS
  value: {{ .Values.webhook.allowUncheckedServiceAccounts | quote }}
- name: TRAININGJOB_WEBHOOK_CONFIGURATION
  value: {{ $name }}
- name: TRAININGJOB_CA_SECRET
  value: {{ include "trainingjob.caSecret" . }}
{{- range $table := list "accelerators" "presets" "podProfiles" }}
- name: TRAININGJOB_{{ snakecase $table | upper }}
  value: {{ ternary "" (printf "/etc/trainingjob/%s/%s.yaml" (kebabcase $table) $table) (empty (index $.root.Values $table)) | quote }}
{{- end }}
- name: TRAININGJOB_JOB_NETWORK
  value: {{ include "trainingjob.jobNetwork" . | quote }}
- name: TRAININGJOB_LOG_LEVEL
  value: "" # the file decides, so that a change needs no restart
- name: TRAININGJOB_LOG_LEVEL_FILE
  value: /etc/trainingjob/logs/level
- name: TRAININGJOB_LOG_FORMAT
  value: {{ .Values.logs.format }}
{{- end }}
- name: TRAININGJOB_CERTIFICATES
  value: {{ .certificates }}
- name: TRAININGJOB_WEBHOOK_PORT
  value: {{ .root.Values.webhook.port | quote }}
- name: TRAININGJOB_METRICS_PORT
  value: {{ .metricsPort | quote }}
- name: TRAININGJOB_METRICS_TLS_PORT
  value: {{ ternary .root.Values.metrics.tls.port "" .root.Values.metrics.tls.enabled | quote }}
- name: TRAININGJOB_METRICS_AUTHENTICATION
  value: {{ .root.Values.metrics.authentication.enabled | quote }}
{{- with include "trainingjob.extraEnv" .root }}
{{ . }}
{{- end }}
{{- end }}

{{- /* The administrator's variables. With a proxy, NO_PROXY also has the address of the API server, to which alone the
pods connect. A value from elsewhere stays as it is. */ -}}
{{- define "trainingjob.extraEnv" -}}
{{- $names := list -}}
{{- range .Values.extraEnv }}{{ $names = append $names (upper .name) }}{{ end -}}
{{- $hasProxy := or (has "HTTPS_PROXY" $names) (has "HTTP_PROXY" $names) -}}
{{- $server := "$(KUBERNETES_SERVICE_HOST)" -}}
{{- $variables := list -}}
{{- range .Values.extraEnv -}}
{{- if and $hasProxy (eq (upper .name) "NO_PROXY") (hasKey . "value") -}}
{{- $variables = append $variables (dict "name" .name "value" (join "," (compact (list .value $server)))) -}}
{{- else -}}
{{- $variables = append $variables . -}}
{{- end -}}
{{- end -}}
{{- if and $hasProxy (not (has "NO_PROXY" $names)) -}}
{{- $variables = append $variables (dict "name" "NO_PROXY" "value" $server) -}}
{{- end -}}
{{- with $variables -}}
{{ toYaml . }}
{{- end -}}
{{- end }}

{{- /* Ports of the probes and the metrics. Takes a dict with `root` and `port`. */ -}}
{{- define "trainingjob.metricsPorts" -}}
- {name: {{ include "trainingjob.probePort" .root }}, containerPort: {{ .port }}}
{{- if .root.Values.metrics.tls.enabled }}
- {name: metrics, containerPort: {{ .root.Values.metrics.tls.port }}}
{{- end }}
{{- end }}

{{- /* Name of the port of the probes. The kubelet does not depend on certificates. */ -}}
{{- define "trainingjob.probePort" -}}
{{ ternary "health" "metrics" .Values.metrics.tls.enabled }}
{{- end }}

{{- define "trainingjob.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: logs, mountPath: /etc/trainingjob/logs, readOnly: true}
{{- range $table := list "accelerators" "presets" "podProfiles" }}
{{- if index $.Values $table }}
- {name: {{ kebabcase $table }}, mountPath: /etc/trainingjob/{{ kebabcase $table }}, readOnly: true}
{{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "trainingjob.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
- name: logs
  configMap: {name: {{ include "trainingjob.fullname" $ }}-logs}
{{- range $table := list "accelerators" "presets" "podProfiles" }}
{{- if index $.Values $table }}
- name: {{ kebabcase $table }}
  configMap: {name: {{ include "trainingjob.fullname" $ }}-{{ kebabcase $table }}}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Fields of a pod's spec that do not depend on what it runs. */ -}}
{{- define "trainingjob.podSpec" -}}
enableServiceLinks: false
terminationGracePeriodSeconds: 30
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* Of several tolerations of a taint, the first one counts. */}}
tolerations:
{{- $tolerated := list }}
{{- range .Values.tolerations }}
{{- $tolerated = append $tolerated .key }}
{{- end }}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- if not (has $key $tolerated) }}
  - {key: {{ $key }}, operator: Exists, effect: NoExecute, tolerationSeconds: {{ $.Values.nodeFailureTolerationSeconds }}}
{{- end }}
{{- end }}
{{- with .Values.tolerations }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Takes a dict with `constraints` and `labels`, the labels of the pods to spread. */ -}}
{{- define "trainingjob.topologySpread" -}}
{{- with .constraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml . | nindent 4 | trim }}
    labelSelector:
      matchLabels: {{- $.labels | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Takes a dict with `root`, `name`, `labels` of the budget, and `selector`. It never blocks the drain of a node. */ -}}
{{- define "trainingjob.podDisruptionBudget" }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- .labels | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- .selector | nindent 6 }}
{{- end }}
