"""Other people's formats and programs: what they read of ours, and what we read of theirs."""
