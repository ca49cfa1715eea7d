"""Our parameters and the outside world: Hugging Face model directories."""
