"""Of vLLM what its HTTP tests import."""
