{{- define "trainingjob.fullname" -}}
{{ .Values.fullnameOverride }}
{{- end }}

{{- define "trainingjob.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "trainingjob.fullname" .) }}
{{- end }}

{{- define "trainingjob.webhook" -}}
{{ include "trainingjob.fullname" . }}-webhook
{{- end }}

{{- define "trainingjob.webhookServiceAccount" -}}
{{ .Values.webhook.serviceAccountName | default (include "trainingjob.webhook" .) }}
{{- end }}

{{- define "trainingjob.selectorLabels" -}}
app.kubernetes.io/name: trainingjob
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Another name than the operator's, so that no selector of one matches the pods of the other. */ -}}
{{- define "trainingjob.webhookSelectorLabels" -}}
app.kubernetes.io/name: trainingjob-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trainingjob.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{ include "trainingjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "trainingjob.webhookLabels" -}}
{{ include "trainingjob.labels" . | replace (include "trainingjob.selectorLabels" .) (include "trainingjob.webhookSelectorLabels" .) }}
{{- end }}

{{- /* An image reference. Takes a dict with `image` and `root`. */ -}}
{{- define "trainingjob.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.imageRegistry -}}
{{- $path := regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "" -}}
{{- $repository = printf "%s/%s" . $path -}}
{{- end -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* The trainer images by platform, as `cpu=IMAGE,tpu=IMAGE`. A platform without values has the default image. */ -}}
{{- define "trainingjob.trainerImages" -}}
{{- $default := .Values.trainer.image -}}
{{- $pairs := list -}}
{{- range $platform, $image := .Values.trainer.images -}}
{{- if or $image.repository $image.tag $image.digest -}}
{{- $whole := dict "repository" ($image.repository | default $default.repository) "tag" ($image.tag | default $default.tag) "digest" $image.digest -}}
{{- $pairs = append $pairs (printf "%s=%s" $platform (include "trainingjob.image" (dict "image" $whole "root" $))) -}}
{{- end -}}
{{- end -}}
{{ join "," $pairs }}
{{- end }}

{{- define "trainingjob.watchedNamespaces" -}}
{{- with .Values.watch.namespaces -}}
{matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [{{ join ", " . }}]}]}
{{- else -}}
{}
{{- end -}}
{{- end }}

{{- define "trainingjob.dnsPorts" -}}
{{- range .Values.networkPolicy.dnsPorts }}
- {protocol: UDP, port: {{ . }}}
- {protocol: TCP, port: {{ . }}}
{{- end }}
{{- end }}

{{- /* Destinations of the operator and its webhook: DNS, the API server at any address, and the administrator's. */ -}}
{{- define "trainingjob.egress" -}}
- ports: {{- include "trainingjob.dnsPorts" . | trim | nindent 4 }}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {port: {{ . }}}
    {{- end }}
{{- with .Values.networkPolicy.egress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The rules for the pods of jobs, as JSON. Empty: jobs have no policy. */ -}}
{{- define "trainingjob.jobNetwork" -}}
{{- with .Values.networkPolicy.jobs -}}
{{- if .enabled -}}
{{- $rules := dict "ingress" (.ingress | default list) -}}
{{- if .restrictEgress -}}
{{- $dns := dict "ports" (include "trainingjob.dnsPorts" $ | fromYamlArray) -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" $.Release.Namespace) -}}
{{- $operator := dict "matchLabels" (include "trainingjob.selectorLabels" $ | fromYaml) -}}
{{- $to := list (dict "namespaceSelector" $namespace "podSelector" $operator) -}}
{{- $rendezvous := dict "to" $to "ports" (list (dict "protocol" "TCP" "port" 8443)) -}}
{{- $_ := set $rules "egress" (concat (list $dns $rendezvous) (.egress | default list)) -}}
{{- end -}}
{{ toJson $rules }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "trainingjob.caSecret" -}}
{{ include "trainingjob.fullname" . }}-ca
{{- end }}

{{- define "trainingjob.tlsSecret" -}}
{{ include "trainingjob.fullname" . }}-tls
{{- end }}

{{- define "trainingjob.webhookTlsSecret" -}}
{{ include "trainingjob.webhook" . }}-tls
{{- end }}

{{- define "trainingjob.testHook" -}}
helm.sh/hook: test
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "trainingjob.testLabels" -}}
{{ include "trainingjob.labels" . | replace "app.kubernetes.io/name: trainingjob" "app.kubernetes.io/name: trainingjob-test" }}
{{- end }}

{{- /* Seconds that activities gained within the last hour. An increase over series of two leaders would miss some. */ -}}
{{- define "trainingjob.goodputOfLastHour" -}}
(sum by (namespace, name) (max by (namespace, name, bucket)
            (last_over_time(trainingjob_goodput_seconds{ {{- . -}} }[5m])))
            - sum by (namespace, name) (max by (namespace, name, bucket)
            (last_over_time(trainingjob_goodput_seconds{ {{- . -}} }[5m] offset 1h))))
{{- end -}}
