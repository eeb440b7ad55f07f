"""What each program does once its flags are read; `experiments/*.py` reads them."""
