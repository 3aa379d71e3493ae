{{- /* Fail if a required value is missing. Every template begins with it: Helm renders them in no fixed order. */ -}}
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
{{- end }}
