"""What maintainers run: pages of documentation, compilers for absent TPUs, a soak test."""
