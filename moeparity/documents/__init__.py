"""Files in YAML: read strictly and checked against a schema, every mistake with its file and line."""
