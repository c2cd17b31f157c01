"""What the servers share: settings, errors, identities, logging, the HTTP endpoint for metrics and health."""
