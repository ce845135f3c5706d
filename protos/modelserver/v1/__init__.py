"""Its first version: messages, and the curve and fingerprint that they carry."""
