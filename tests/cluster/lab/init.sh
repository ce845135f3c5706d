#!/usr/bin/env bash
# Process 1 of the cluster's namespaces: makes its mounts and its network, then starts every component.
set -euo pipefail
. "$(dirname "$0")/lab.env"
# Nothing may be left on the machine: what the components write elsewhere than $S goes to mounts that end with us.
mount --make-rshared /
mount -t tmpfs tmpfs /run
own_dirs
for k in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops; do # the kubelet sets these: let it set copies
  mkdir -p "/run/sysctl/$k"; cat /proc/sys/$k >"/run/sysctl/$k/v"; mount --bind "/run/sysctl/$k/v" /proc/sys/$k
done
echo "nameserver $NODE_IP" >/run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf
for c in cpu cpuacct memory; do echo $$ >/sys/fs/cgroup/$c/lab/cgroup.procs; done

ip link set lo up
ip link add node0 type bridge # stands for the node's network card (this kernel has no dummy device)
ip addr add $NODE_IP/24 dev node0
ip link set node0 up
ip route add 10.96.0.0/16 dev node0 # services; to anywhere else there is no way
sysctl -qw net.ipv4.ip_forward=1
cp "$HERE/cni.conflist" /etc/cni/

cd "$S"
start() { local name=$1; shift; "$@" >"log/$name" 2>&1 & }
start etcd kube etcd --data-dir etcd --unsafe-no-fsync --log-level warn
start containerd containerd --config "$HERE/containerd.toml"
start apiserver kube kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=$NODE_IP \
  --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --client-ca-file=pki/ca.crt --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file=pki/sa.key --service-account-signing-key-file=pki/sa.key \
  --kubelet-certificate-authority=pki/ca.crt --kubelet-client-certificate=pki/admin.crt --kubelet-client-key=pki/admin.key \
  --kubelet-preferred-address-types=InternalIP \
  --requestheader-client-ca-file=pki/ca.crt --requestheader-allowed-names=front-proxy \
  --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
  --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --proxy-client-cert-file=pki/front-proxy.crt --proxy-client-key-file=pki/front-proxy.key \
  --enable-aggregator-routing
until ctr -n k8s.io images import "$BIN/pause.tar"; do sleep 0.2; done
until kubectl get --raw /readyz >/dev/null 2>&1; do sleep 0.2; done
echo "apiserver ready after $SECONDS s"
start kcm kube kube-controller-manager --kubeconfig=pki/kcm.conf --leader-elect=false --bind-address=127.0.0.1 \
  --service-account-private-key-file=pki/sa.key --root-ca-file=pki/ca.crt --use-service-account-credentials \
  --cluster-signing-cert-file=pki/ca.crt --cluster-signing-key-file=pki/ca.key \
  --horizontal-pod-autoscaler-sync-period=2s
start scheduler kube kube-scheduler --kubeconfig=pki/scheduler.conf --leader-elect=false --bind-address=127.0.0.1
start proxy kube kube-proxy --config "$HERE/proxy.yaml" --hostname-override=node
start coredns kube coredns -conf "$HERE/Corefile"
cp "$HERE/kubelet.yaml" . # its relative paths are read against its own folder
start kubelet kube kubelet --config kubelet.yaml --kubeconfig=pki/kubelet.conf --hostname-override=node --node-ip=$NODE_IP
wait
