"""`python -m stages.ahead`: build all targets at once into the store, where `dvc repro` then finds every stage."""

from forge_pipeline.pipeline.dvc_scripts import ahead

if __name__ == "__main__":
    ahead()
