"""Quota that counts every live pod from its admission, exact over any number of webhook replicas."""
