"""Publishing finished outputs on the Hugging Face Hub."""
