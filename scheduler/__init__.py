"""The kube-scheduler extender: which node and which cards a pod gets, and the one write that says so."""
