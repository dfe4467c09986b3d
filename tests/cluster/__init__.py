"""Slotwise on a real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, built from their Go modules."""
