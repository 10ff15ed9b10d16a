"""The federation of real processes, on NVFlare. Nothing else imports NVFlare."""
