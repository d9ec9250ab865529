"""Several datasets, of any formats, read as one."""
