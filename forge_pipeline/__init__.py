"""forge_pipeline: a declarative build for machine-learning models."""
