"""Certificates: the CA, serving certificates, and when to renew them."""
