"""The embedded cluster: API server, kube-scheduler loop, kubelet and cards in one process, and what is played on it."""
