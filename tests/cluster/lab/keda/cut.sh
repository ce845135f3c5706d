#!/usr/bin/env bash
# cut.sh FOLDER: takes out of a copy of KEDA's sources what its tests here never ask for: tests, clouds and most scalers.
set -euo pipefail
stubs=$(cd "$(dirname "$0")" && pwd)/stubs
scalers='cpu_memory cron external external_mock kubernetes_workload'
types='cpu|cron|external|external-mock|external-push|kubernetes-workload|memory'
cd "$1"
find . -name '*_test.go' -delete
rm -rf pkg/scalers/{aws,azure,gcp,kafka,liiklus,openstack,splunk,sumologic} pkg/mock
rm pkg/scaling/resolver/{aws,azure,gcp}_*_handler.go pkg/eventemitter/azure_*_handler.go
for file in pkg/scalers/*_scaler.go; do
  name=$(basename "$file" _scaler.go)
  [[ " $scalers " == *" $name "* ]] || rm "$file"
done
builder=pkg/scaling/scalers_builder.go
awk -v types="^\tcase \"($types)\":$" '/^\tcase "/ { left_out = $0 !~ types } /^\tdefault:/ { left_out = 0 } !left_out' "$builder" >"$builder.cut"
mv "$builder.cut" "$builder"
cp -r "$stubs/." .
