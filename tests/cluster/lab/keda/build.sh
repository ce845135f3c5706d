#!/usr/bin/env bash
# Makes localhost/keda: KEDA's own operator, webhooks and metrics adapter from its Go module, less the clouds. After ../build.sh.
set -euo pipefail
. "$(dirname "$0")/../lab.env"
VERSION=v2.21.0
SUM=h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps= # its sources; what they need is in their own go.sum
KEDA=$BIN/keda
of=$(cd "$HERE/keda" && find . -type f ! -name kustomization.yaml -exec sha256sum {} + | sort | sha256sum)
mkdir -p "$KEDA"
cp "$HERE/keda/kustomization.yaml" "$KEDA/"
[ "$(cat "$KEDA/made-of" 2>/dev/null)" != "$of" ] || ! images inspect --type image localhost/keda:2 >/dev/null 2>&1 || exit 0
with_go
module=$(go mod download -json "github.com/kedacore/keda/v2@$VERSION")
field() { sed -n "s/^\t\"$1\": \"\(.*\)\",\?$/\1/p" <<<"$module"; }
[ "$(field Sum)" = "$SUM" ] || { echo "KEDA $VERSION is $(field Sum), not $SUM" >&2; exit 1; }
rm -rf "$KEDA"/{src,config,bin}
cp -r --no-preserve=mode "$(field Dir)" "$KEDA/src"
mv "$KEDA/src/config" "$KEDA/"
"$HERE/keda/cut.sh" "$KEDA/src"
cd "$KEDA/src"
programs=(./cmd/operator ./cmd/webhooks ./cmd/adapter)
of_packages=$(go list -deps "${programs[@]}" | wc -l)
mkdir "$KEDA/bin"
go build -v -trimpath -o "$KEDA/bin" -ldflags "-s -w" "${programs[@]}" 2>&1 | compiled "$of_packages"
images bud -q --isolation chroot -t localhost/keda:2 --file "$HERE/keda/Dockerfile" "$KEDA/bin"
rm -rf "$KEDA/src" "$KEDA/bin"
echo "$of" >"$KEDA/made-of"
