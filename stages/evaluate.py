"""`python -m stages.evaluate TARGET`: run the evaluate stage for one target in the current folder."""

from forge_pipeline.pipeline.dvc_scripts import run

if __name__ == "__main__":
    run("evaluate")
