"""JavaScript that pages include, as published on npm: `sources.json` has packages, versions, and SHA-256 hashes."""
