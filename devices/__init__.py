"""The one model of accelerators that both services share: values and rules, no HTTP, logging or cluster calls.

`devices.kube` is the exception: it is the one door to the API server.
"""
