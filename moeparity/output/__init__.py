"""What every report is written with: tables, files, strict JSON, words."""
