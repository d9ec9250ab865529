"""`rlds_beam.reverb.serving.served_tables`, under its documented import path."""

from rlds_beam.reverb.serving.served_tables import ServedTable as ServedTable
from rlds_beam.reverb.serving.served_tables import parse_tables as parse_tables
