"""`python -m stages.encrypt TARGET`: run the encrypt stage for one target in the current folder."""

from forge_pipeline.pipeline.dvc_scripts import run

if __name__ == "__main__":
    run("encrypt")
