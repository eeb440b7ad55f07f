"""What `tools.gpu_session` does on a GPU, stage by stage."""
