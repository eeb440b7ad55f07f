"""The adapter inside stock Flax attention: what it computes, passes on and refuses."""
