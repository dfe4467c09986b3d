"""Kubernetes manifests as plain YAML with kustomize bases and overlays, and what renders, changes and checks them."""
