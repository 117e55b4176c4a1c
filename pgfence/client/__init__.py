"""What a worker uses: the protocol, a Fence and its Leases."""
