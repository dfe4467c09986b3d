"""The one door to the Kubernetes API server: a client of raw JSON, and reflectors that follow what it holds."""
