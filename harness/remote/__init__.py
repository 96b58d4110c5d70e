"""A host over ssh: code and inputs go by digest, work survives the line, runs come home."""
