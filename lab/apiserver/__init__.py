"""An in-memory Kubernetes API server for lab and tests: real HTTP and TLS, admission webhooks, faults on demand.

It behaves as kube-apiserver 1.37 in every point the contract suite (tests/contract) touches.
"""

from .admission import AdmissionCounts
from .faults import Faults, RequestFault
from .frontend import RequestCounts, RequestKey
from .server import ApiServer, ApiServerSettings

__all__ = [
    "AdmissionCounts",
    "ApiServer",
    "ApiServerSettings",
    "Faults",
    "RequestCounts",
    "RequestFault",
    "RequestKey",
]
