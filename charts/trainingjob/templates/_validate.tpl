{{- /* Fail if a required value is missing or two ports collide. Every template begins with it: Helm renders them in no fixed order. */ -}}
{{- define "trainingjob.validate" -}}
{{- $missing := list -}}
{{- range $path := .Files.Lines "files/required-values.txt" -}}
{{- $value := $.Values -}}
{{- range $key := splitList "." $path -}}
{{- if kindIs "map" $value -}}
{{- $value = index $value $key -}}
{{- else -}}
{{- $value = index dict $key -}}
{{- end -}}
{{- end -}}
{{- if kindIs "invalid" $value -}}
{{- $missing = append $missing $path -}}
{{- end -}}
{{- end -}}
{{- with $missing -}}
{{- fail (printf "%s: missing. `helm upgrade --reuse-values` leaves out the values that are new in this chart: use `--reset-then-reuse-values` of Helm 3.14 or later. If your values set one of them to null, set it to a value." (join ", " .)) -}}
{{- end -}}
{{- $tls := list -}}
{{- if .Values.metrics.tls.enabled -}}
{{- $tls = list (list "metrics.tls.port" .Values.metrics.tls.port) -}}
{{- end -}}
{{- $operator := list (list "the operator's rendezvous" 8443) (list "the operator's probes and metrics" 8080) -}}
{{- include "trainingjob.differentPorts" (concat $operator $tls) -}}
{{- if .Values.webhook.enabled -}}
{{- $webhook := list (list "webhook.port" .Values.webhook.port) (list "webhook.metricsPort" .Values.webhook.metricsPort) -}}
{{- include "trainingjob.differentPorts" (concat $webhook $tls) -}}
{{- end -}}
{{- end }}

{{- /* Fail if two ports of a pod are equal. Takes a list of pairs: name and port. */ -}}
{{- define "trainingjob.differentPorts" -}}
{{- $names := dict -}}
{{- range $pair := . -}}
{{- $port := last $pair | int | toString -}}
{{- with get $names $port -}}
{{- fail (printf "%s: %s must differ from %s, %s: both are ports of the same pod. Choose another port." (first $pair) $port . $port) -}}
{{- end -}}
{{- $_ := set $names $port (first $pair) -}}
{{- end -}}
{{- end }}
