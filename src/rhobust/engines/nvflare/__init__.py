"""The federation of real processes, on NVFlare: kits, processes, what a site answers, what the coordinator asks.

Nothing outside this package imports NVFlare, and whatever imports it is itself imported only when a federation is used
(`pip install 'rhobust[federated]'`).
"""
