"""Sources and outputs for each dataset format."""
