#!/usr/bin/env bash
# Makes everything that up.sh starts: Debian's packages and bin/. Needs root and Go; kubectl is expected in bin/.
set -euo pipefail
. "$(dirname "$0")/lab.env"
mkdir -p "$BIN"
if ! command -v buildah containerd runc nft conntrack debootstrap ip openssl >/dev/null || [ ! -e /usr/lib/cni/ptp ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends -o DPkg::Lock::Timeout=300 \
    buildah containerd runc containernetworking-plugins nftables conntrack debootstrap iproute2 openssl >/dev/null
fi
V=k8s.io/component-base/version
(cd "$HERE" && CGO_ENABLED=0 go build -trimpath -o "$BIN/kube" \
  -ldflags "-s -w -X $V.gitVersion=v1.36.3 -X $V.gitMajor=1 -X $V.gitMinor=36" .)
[ ! -e "$BIN/pause.tar" ] || exit 0
mkdir -p "$BIN/pause"; cp "$HERE/pause/Dockerfile" "$BIN/pause/"
(cd "$HERE/pause" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$BIN/pause/pause" pause.go)
images bud -q --isolation chroot -t localhost/pause:1 "$BIN/pause"
images push -q localhost/pause:1 "docker-archive:$BIN/pause.tar.part:localhost/pause:1"
mv "$BIN/pause.tar.part" "$BIN/pause.tar"
