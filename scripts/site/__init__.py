"""The documentation as a site: what mkdocs does not do by itself. `mkdocs.yml` says how it is built."""
