#!/usr/bin/env bash
# Make a cluster of one machine with every launcher's API, each of a pinned version: tests/cluster/kind/up.sh NAME
set -euo pipefail
name=${1:-muster}
here=$(dirname "$0")
jobset=v0.12.0 kueue=v0.18.2 # the others' versions are in their kustomization.yaml
kubectl() { command kubectl --context "kind-$name" "$@"; }

kind get clusters | grep -qx "$name" || kind create cluster --name "$name" --config "$here/cluster.yaml" --wait 120s

kubectl apply --server-side -f "https://github.com/kubernetes-sigs/jobset/releases/download/$jobset/manifests.yaml"
kubectl apply --server-side -k "$here/trainer"
kubectl apply --server-side -k "$here/training-operator"
kubectl apply --server-side -f "https://github.com/kubernetes-sigs/kueue/releases/download/$kueue/manifests.yaml"
for namespace in jobset-system kubeflow-system kubeflow kueue-system; do
    kubectl --namespace "$namespace" wait deployment --all --for=condition=Available --timeout=300s
done
