"""HTTP plumbing both services need: TLS, limits, health, metrics, access log, drain."""
