{{- define "trainingjob.fullname" -}}
{{ .Values.fullnameOverride }}
{{- end }}

{{- define "trainingjob.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "trainingjob.fullname" .) }}
{{- end }}

{{- define "trainingjob.selectorLabels" -}}
app.kubernetes.io/name: trainingjob
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trainingjob.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{ include "trainingjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* An image reference. Takes a dict with `image` and `root`. */ -}}
{{- define "trainingjob.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "trainingjob.caSecret" -}}
{{ include "trainingjob.fullname" . }}-ca
{{- end }}

{{- define "trainingjob.tlsSecret" -}}
{{ include "trainingjob.fullname" . }}-tls
{{- end }}
