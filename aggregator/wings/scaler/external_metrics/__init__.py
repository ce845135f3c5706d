"""The cluster's external metrics API: served over TLS, registered, described."""
